"""Calls on their way out: what every call does that isn't plain.

``Prepared`` decides whether a call is plain: it has one connection, and nothing to ask of anybody, and goes straight to
the core (``rrpc/_client/begin_call.py``, ``rrpc/aio/start_call.py``). Every other call is an ``OutgoingCall`` that goes
its ``course``: a ``Chain`` of the links in ``CallOptions.links``, the outermost first, with ``over`` as the innermost,
which makes it over a connection of its channel. A link is a generator function of the call, as interceptors' methods
are; retries are one.

Deadlines are points in time by ``time.monotonic``. The timeouts of users and of the core become deadlines where they
come in, and deadlines become timeouts where the core is called.

A course does no I/O. It says what is to be done next, and a *driver* does that: a ``Sleep``, a ``Waiting``
(for a connection), an ``Exchange`` (of request and reply), in asyncio also whatever a link may await. There is a
driver for each style: ``rrpc/_client/blocking_driver.py`` and ``rrpc/aio/asyncio_driver.py``. What both do in callbacks
is in ``callbacks.py``.

What surrounds the caller, the handler of a call that it makes calls in, is found in ``context.current()``, the one
context variable that every call looks at; where there is something, calls leave the fast path.
"""

# One thread at a time uses an `OutgoingCall`, the one that carries out its course. Any thread may call `cancel`.

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from rrpc._options import deadline_after, seconds, time_until
from rrpc.errors import Cancelled, DeadlineExceeded, RpcError, goes_elsewhere, unsent
from rrpc.memory import memory_of
from rrpc.metadata import EMPTY, Metadata, MetadataLike, joined, pack, together, unpack

from .chain import Chain, Link
from .context import Around, Context, current, surrounding
from .steps import Exchange, Waiting

if TYPE_CHECKING:
    from rrpc._channel import Channel, Connection


# In the order of the six values of the core's `Call.stamps`.
STAMPS = ("begun", "arguments exposed", "request sent", "reply received", "results fetched", "results taken")


class Retrying(Protocol):
    """A ``RetryPolicy``, as calls see it."""

    def link(self, call: OutgoingCall) -> Generator[Any, Any, Any]:
        """Stands around a call without streams."""

    def stream_link(self, call: Any) -> Generator[Any, Any, Any]:
        """Stands around the opening of a call with streams."""


class Hedging(Protocol):
    """A ``HedgingPolicy``, as calls see it."""

    def over(self, call: OutgoingCall) -> Generator[Any, Any, Any]:
        """Makes the call in place of ``over``, in several attempts."""


@dataclass(frozen=True)
class CallOptions:
    """Options that a client applies to each of its calls."""

    timeout: float | None = None
    metadata: MetadataLike | None = None
    wait_for_ready: bool = False
    interceptors: tuple[Link, ...] = ()
    retry: Retrying | None = None
    hedging: Hedging | None = None
    stream_links: tuple[Link, ...] = ()
    """Links around calls with streams: their interceptors."""
    links: tuple[Link, ...] = field(init=False)
    """Links around each other call: the interceptors, then retries."""
    innermost: Link = field(init=False)
    plain: bool = field(init=False)
    """Whether calls can go straight to a connection that is there."""
    packed: bytes = field(init=False)
    """The metadata, as the core takes it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", None if self.timeout is None else seconds(self.timeout))
        if self.retry is not None and self.hedging is not None:
            raise ValueError("a call has a retry policy or a hedging policy, not both")
        links = self.interceptors if self.retry is None else (*self.interceptors, self.retry.link)
        object.__setattr__(self, "links", links)
        object.__setattr__(self, "innermost", over if self.hedging is None else self.hedging.over)
        object.__setattr__(self, "plain", not links and self.hedging is None)
        object.__setattr__(self, "packed", pack(self.metadata or {}))


class Request(Protocol):
    """A method and its arguments, with the means to encode them for a connection."""

    @property
    def method(self) -> str:
        """The full name: ``lab.search.Nearest.search``."""

    def named(self) -> Mapping[str | int, Any]:
        """The arguments by name, or by place where the parameters' names aren't known."""

    @property
    def idempotent(self) -> bool:
        """Whether the interface says that calling it twice does no more than once."""

    @property
    def out(self) -> Any:
        """The caller's array for the result, or None."""

    def encode(self, connection: Connection) -> tuple[bytes, bytes, Any]:
        """The wire name, the payload, the message with its buffers."""

    def decode(self, payload: bytes, blocks: list[Any] | None, message: Any) -> Any:
        """The result."""

    def decoder(self, message: Any) -> Callable[[bytes, Any], Any]:
        """Returns ``decode`` for this message, as a function of payload and blocks."""

    def error(self, error: RpcError) -> RpcError:
        """Returns the error as the class that the method declares for it."""

    def check(self, result: Any) -> Any:
        """A result that came from somewhere else, as the interface has it; raises Internal."""


class Prepared:
    """Holds what a call is made of before it begins."""

    __slots__ = ("around", "channel", "connection", "deadline", "metadata", "options", "request")

    def __init__(
        self,
        channel: Channel,
        request: Any,
        options: CallOptions,
        deadline: float | None,
        metadata: MetadataLike | None = None,
    ) -> None:
        self.channel = channel
        self.request: Request = request
        self.options = options
        self.metadata = metadata
        self.connection: Connection | None = None
        """Connection of a plain call; None if the call goes its course."""
        around: Any = surrounding()
        if around is None or around.ended:
            self.around: Context | Around | None = None
        else:
            # Makes the handler's Context if the core has called the handler by itself. Calls outside of handlers never
            # come here.
            self.around = around = current()
            deadline = around.deadline_of(deadline)
        self.deadline = deadline

    def time_left(self) -> float | None:
        """Returns the seconds until the deadline, 0 behind it; None: there is none."""
        return time_until(self.deadline)

    def sent(self) -> MetadataLike | bytes:
        """Returns the metadata to be sent, for the core."""
        own = self.options
        return own.packed if self.metadata is None else together(own.metadata, self.metadata)

    def pick(self) -> Connection | None:
        """Picks a connection now for a call that isn't plain, but has no links around it.

        The caller tells the channel, and what surrounds the call, of its end. Returns None if the call has to go its
        course, which raises the error, if there is one.
        """
        around, options = self.around, self.options
        if not options.plain or (around is not None and around.links) or self.time_left() == 0.0:
            return None
        try:
            return self.channel.pick_nowait(options.wait_for_ready)
        except RpcError:
            return None

    def course(self) -> Chain:
        """Returns the steps that make the call, from its beginning."""
        return course(OutgoingCall(self), self.options)


def prepare(
    channel: Channel,
    request: Any,
    options: CallOptions,
    timeout: float | None,
    metadata: MetadataLike | None,
) -> Prepared:
    """Prepares a call that a user makes, and decides whether it is plain."""
    wait = options.timeout if timeout is None else seconds(timeout)
    prepared = Prepared(channel, request, options, deadline_after(wait), metadata)
    # A timeout of 0 goes its course, which raises the error of a call that was never sent.
    if options.plain and prepared.around is None and wait != 0.0:
        prepared.connection = channel.ready
    return prepared


class OutgoingCall:
    """A client's call, as links see it."""

    __slots__ = (
        "_around",
        "_cancelled",
        "_done",
        "_interrupt",
        "_result",
        "_stamps",
        "attempt",
        "channel",
        "connection",
        "deadline",
        "may_have_run",
        "metadata",
        "private_only",
        "reply_metadata",
        "request",
        "traced",
        "wait_for_ready",
    )

    def __init__(self, prepared: Prepared) -> None:
        around, options = prepared.around, prepared.options
        self._around = around if around is not None and not around.ended else None
        self.channel = prepared.channel
        self.request = prepared.request
        self.deadline = prepared.deadline
        """Point in time by ``time.monotonic``; it covers connecting, all attempts, and the waits between them."""
        self.metadata: dict[str, Any] = joined(options.metadata, prepared.metadata)
        """Metadata to be sent; links may change it."""
        self.wait_for_ready = options.wait_for_ready
        self.attempt = 0
        """Number of attempts started."""
        self.connection: Connection | None = None
        """Connection of the last attempt."""
        self.may_have_run = False
        """Whether a handler may have seen it, in any attempt: making it again may do something twice."""
        self.reply_metadata: Metadata = EMPTY
        """Metadata of the last reply; an error has its own."""
        self.private_only = False
        """Whether it may go only over connections whose bytes nobody else can read, as it carries a secret."""
        self.traced = False
        """Whether the core is to read the clock for ``stamps``."""
        self._stamps: Sequence[int] = ()
        self._result: Any = None
        self._cancelled = False
        self._interrupt: Callable[[], object] | None = None
        self._done = False
        if self._around is not None:
            self._around.adopt(self)

    @property
    def links_around(self) -> tuple[Link, ...]:
        """Returns the links that the caller's context puts around the call."""
        return () if self._around is None else self._around.links

    @property
    def method(self) -> str:
        """The full name: ``lab.search.Nearest.search``."""
        return self.request.method

    @property
    def arguments(self) -> Mapping[str | int, Any]:
        """Arguments by name, or by position if the parameters' names aren't known. Links only read them."""
        return self.request.named()

    @property
    def idempotent(self) -> bool:
        """Whether the interface says that calling it twice does no more than once."""
        return self.request.idempotent

    @property
    def peer(self) -> str:
        """The address that it went to last; before it does, where it is to go."""
        return self.channel.target if self.connection is None else self.connection.address

    def stamps(self) -> dict[str, int]:
        """Returns ``time.monotonic_ns()`` at each stage that a ``traced`` call's last attempt reached."""
        return {name: stamp for name, stamp in zip(STAMPS, self._stamps) if stamp}  # noqa: B905

    def time_left(self) -> float | None:
        """Seconds until the deadline, 0 behind it; None: there is none."""
        return time_until(self.deadline)

    @property
    def cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._cancelled

    def done(self) -> bool:
        """Returns whether it has ended."""
        return self._done

    def end(self) -> None:
        """Marks the call as ended. Drivers call this."""
        self._done = True
        if self._around is not None:
            self._around.release(self)

    def cancel(self) -> None:
        """End it with Cancelled, from any thread, whatever it waits for; nothing if it has ended."""
        # No lock: this writes `_cancelled` and then reads `_interrupt`, and interrupt_with() writes and reads in the
        # other order. So at least one of the two sees what the other wrote.
        self._cancelled = True
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def interrupt_with(self, interrupt: Callable[[], object] | None) -> None:
        """Sets the callable that cancels a driver's wait, or None. Runs it if the call was cancelled already."""
        self._interrupt = interrupt
        if interrupt is not None and self._cancelled:
            interrupt()

    def nap(self, seconds: float) -> tuple[float, bool]:
        """Returns the seconds to sleep and, for ``check``, whether the deadline ends that; timers may be early."""
        left = self.time_left()
        return (seconds, False) if left is None or seconds < left else (left, True)

    def check(self, late: bool = False) -> None:
        """Raise what ends the call now: Cancelled or DeadlineExceeded."""
        error: RpcError
        if self._cancelled:
            error = Cancelled("the call was cancelled by its caller")
        elif late or (self.deadline is not None and monotonic() >= self.deadline):
            before = "sent again" if self.attempt else "sent"
            error = DeadlineExceeded(f"{self.method}(): the deadline passed before the call was {before}")
        else:
            return
        raise error if self.attempt else unsent(error)

    def late(self) -> RpcError:
        """Returns the error for a call that waits for answers when its time is up or it is cancelled."""
        if self._cancelled:
            return Cancelled("the call was cancelled by its caller")
        return DeadlineExceeded(f"{self.method}(): no attempt was answered within its timeout")

    def branch(self) -> OutgoingCall:
        """The same call, to be made beside this one."""
        # Without the options' metadata, which `self.metadata` has in it already.
        options = CallOptions(wait_for_ready=self.wait_for_ready)
        prepared = Prepared(self.channel, self.request, options, self.deadline, self.metadata)
        prepared.around, prepared.deadline = None, self.deadline  # what surrounds the caller has this one
        other = OutgoingCall(prepared)
        other.traced, other.private_only = self.traced, self.private_only
        return other

    def take_from(self, branch: OutgoingCall) -> None:
        """The branch was the one that succeeded."""
        self.connection, self.reply_metadata = branch.connection, branch.reply_metadata
        self._result, self._stamps = branch._result, branch._stamps

    def unconnected(self) -> RpcError:
        """Returns the error for a call that waits for a connection when its time is up or it is cancelled."""
        if self._cancelled:
            return unsent(Cancelled("the call was cancelled by its caller"))
        why = self.channel.why_not()
        return unsent(DeadlineExceeded(f"{self.method}(): no connection within its timeout{why}"))


def course(call: OutgoingCall, options: CallOptions) -> Chain:
    """Returns the steps that make the call, as a chain. A driver carries them out."""
    links = (_conforming, *options.links) if options.interceptors else options.links
    return Chain((*call.links_around, *links), call, innermost=options.innermost)


def _conforming(call: OutgoingCall) -> Generator[Any, Any, Any]:
    """The outermost link, where there are others: what they made of the result is still what the interface says."""
    result = yield call
    # Dropped here: interceptors may keep the call, which is not to keep the memory of its result.
    own, call._result = call._result, None
    return result if result is own else call.request.check(result)


def connected(call: OutgoingCall) -> Generator[Any, Any, Connection]:
    """Picks a connection of the call's channel, waiting if needed. A step of a course uses ``yield from``."""
    picked = call.channel.pick_nowait(call.wait_for_ready)
    if picked is None:
        soon = call.channel.pick_soon(call.wait_for_ready)
        try:
            picked = yield Waiting(soon, call.unconnected)
        finally:
            soon.cancel()  # for whoever waits no longer
    return picked


def over(call: OutgoingCall) -> Generator[Any, Any, Any]:
    """The call over connections of its channel, one after the other until a handler may have seen it."""
    request = call.request
    while True:
        call.check()
        connection = yield from connected(call)
        # Checked for each attempt, as the next connection may go over another transport.
        if call.private_only:
            connection.check_private(call.method)
        name, payload, message = request.encode(connection)
        call.attempt += 1
        call.connection = connection
        # Stamps of an earlier attempt say nothing about this one.
        call._stamps = ()
        sent: tuple[Any, ...] = name, payload, message or None, memory_of(request.out), call.time_left()
        if call.metadata or call.traced:
            sent = (*sent, call.metadata, call.traced)
        exchange = Exchange(connection, sent)
        try:
            payload, blocks, packed = yield exchange
        except RpcError as error:
            # Never reset: an earlier attempt may have run where this one didn't.
            call.may_have_run |= not error.not_executed
            call.channel.failed(connection, error)
            if not goes_elsewhere(error):
                raise request.error(error) from None
        else:
            call.may_have_run = True
            call.channel.succeeded(connection)
            call.reply_metadata = unpack(packed)
            call._result = request.decode(payload, blocks, message)
            return call._result
        finally:
            if call.traced and exchange.handle is not None:
                call._stamps = exchange.handle.stamps() or ()
