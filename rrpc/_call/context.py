"""The ``context`` of a handler: caller, metadata, deadline and cancellation of the call that it serves."""

# The worker or loop that runs the handler makes the Context and ends it. Handlers may pass it on, so any thread may
# use it.

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from rrpc import _core
from rrpc._fork import process_lock
from rrpc._options import deadline_after, time_until
from rrpc.metadata import Metadata, MetadataLike, merged, pack, unpack

from .chain import Link
from .peer import Peer, peer_of
from .registry import upper

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")
_current: ContextVar[Context | Around | _core.CurrentCall | None] = ContextVar("rrpc.context", default=None)
surrounding = _current.get
"""For clients: gives None, or what says by ``ended`` that calls made here inherit nothing."""
enter = _current.set
"""For servers: this thread or task runs the handler of this call from now on, until the context has ended."""
# Seconds after which `wait_cancelled` notices an end of which no callback told it.
_WAIT_STEP = 0.25


def current() -> Context | Around | None:
    """Returns, for clients, what the calls made here inherit from; they don't if it is None or has ended."""
    found = _current.get()
    return found.context() if isinstance(found, _core.CurrentCall) else found


class Cancellable(Protocol):
    """A call that a handler makes."""

    def cancel(self) -> object: ...
    def done(self) -> bool: ...


class Context:
    """One call, as its handler sees it."""

    __slots__ = (
        "_cancel_event",
        "_children",
        "_core",
        "_handle",
        "_metadata",
        "_name",
        "_token_subject",
        "deadline",
        "ended",
        "not_executed",
        "on_end",
        "sent",
        "task",
    )
    # Unset until something asks for them: most calls use neither.
    _cancel_event: threading.Event
    _token_subject: str
    links: tuple[Link, ...] = ()
    """Links around the calls that the handler makes, for clients; see ``Around``."""

    def __init__(self, core: Any, handle: int, name: bytes, ns_left: int, metadata: bytes) -> None:
        self._core = core
        self._handle = handle
        self._name = name
        self._metadata: bytes | Metadata = metadata
        self._children: _Children | None = None
        # A negative `ns_left` stands for no deadline.
        self.deadline = None if ns_left < 0 else monotonic() + ns_left * 1e-9
        """Deadline of the caller, by ``time.monotonic``; None: there is none."""
        self.task: asyncio.Task[Any] | None = None
        """Task that the handler runs in, if it is a coroutine. Servers set it."""
        self.ended = False
        """Whether the call is answered. The context stays where it was entered until another one is."""
        self.on_end: Callable[[BaseException | None], object] | None = None
        """Called once the call is answered, with its error or None. Servers set it."""
        self.sent = b""
        """Metadata of the reply, packed. Servers read it."""
        self.not_executed = False
        """Whether the call failed before a handler saw it. Servers read it."""

    @property
    def method(self) -> str:
        """``Service.method``."""
        return self._name.decode(errors="replace")

    @property
    def peer(self) -> Peer:
        """The caller: its address as text, and who it is; empty and anonymous once the call is answered.

        The text is ``host:port``, or ``pid 4711 uid 1000 (train.py)`` of a process on this host that calls over shared
        memory. Attributes such as ``kind``, ``name`` and ``uid`` hold what the transport has proved.
        """
        info = self._core.call_info(self._handle)
        return Peer() if info is None else peer_of(info[0], info[3], getattr(self, "_token_subject", ""))

    def set_token_subject(self, subject: str) -> None:
        """Names the caller by a token, for interceptors that have checked one.

        ``peer.token`` gives the subject from now on, and principals such as ``token:batch`` match it. Call it before
        the interceptor goes on to the handler.
        """
        if not isinstance(subject, str) or not subject:
            raise TypeError(f"a token's subject is a str that isn't empty, not {subject!r:.80}")
        self._token_subject = subject

    @property
    def metadata(self) -> Metadata:
        """The metadata that the caller sent with the call."""
        metadata = self._metadata
        if not isinstance(metadata, Metadata):
            metadata = self._metadata = unpack(metadata)
        return metadata

    def set_metadata(self, metadata: MetadataLike) -> None:
        """Adds metadata to the reply, result or error. A name that was set before gets the new values."""
        self.sent = pack(merged(unpack(self.sent), metadata) if self.sent else metadata)

    def send_initial_metadata(self, metadata: MetadataLike) -> None:
        """Sends metadata ahead of the items of a call with streams.

        Call it at most once, and before the first item is sent.
        """
        self._core.stream(self._handle).send_initial_metadata(pack(metadata))

    def time_left(self) -> float | None:
        """Seconds until the deadline, 0 behind it; None: there is none."""
        return time_until(self.deadline)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the caller gave up or is gone, or the deadline has passed."""
        cancelled: bool = self._core.is_cancelled(self._handle)
        return cancelled

    def add_cancel_callback(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` when the call is cancelled, on any thread; at once if it is cancelled already.

        It must not wait for anything. Once the call is answered it's never called.
        """
        self._core.on_cancel(self._handle, callback)

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Wait until the call is cancelled, at most ``timeout`` seconds; whether it is."""
        try:
            event = self._cancel_event
        except AttributeError:
            event = self._cancel_event = threading.Event()
            self.add_cancel_callback(event.set)
        deadline = deadline_after(timeout)
        while not self.cancelled:  # the callback is forgotten where another thread answers the call meanwhile
            left = time_until(deadline)
            if left == 0.0:
                return False
            event.wait(_WAIT_STEP if left is None else min(_WAIT_STEP, left))
        return True

    @overload
    def client(self) -> Any: ...
    @overload
    def client(self, cls: type[_T]) -> _T: ...
    def client(self, cls: type[Any] | None = None) -> Any:
        """Returns a client of the caller, for calls back over the same connection.

        It is of class ``cls``; without one it makes calls by name, in an event loop as a client of ``rrpc.aio``. It
        may be kept, and works as long as the connection does. Raises FailedPrecondition if the caller takes no calls,
        as it was connected without ``serve=``, or has another version of an interface of ``cls``; DeadlineExceeded if
        the caller doesn't say which by this call's deadline, or within ten seconds.
        """
        end = None if self.ended else self.deadline_of(None)
        return upper().client_over(self._core.peer(self._handle), cls, end)

    def deadline_of(self, deadline: float | None) -> float | None:
        """Returns the deadline of a call that the handler makes, for clients.

        It is the earlier one of the call's own ``deadline`` and this one's. A call in a task that the handler
        has started keeps its own.
        """
        return deadline if self._is_elsewhere() else self.earlier(deadline)

    def earlier(self, deadline: float | None) -> float | None:
        """Returns the earlier one of ``deadline`` and this call's."""
        own = self.deadline
        return deadline if own is None or (deadline is not None and deadline <= own) else own

    def adopt(self, call: Cancellable) -> None:
        """Cancels ``call``, which the handler makes, when this call is cancelled (for clients).

        Call ``release`` when ``call`` has ended. A call in a task that the handler has started isn't adopted.
        """
        if not self._is_elsewhere():
            self.add(call)

    def add(self, call: Cancellable) -> None:
        """Cancels ``call`` with this one."""
        children = self._children
        if children is None:
            children = self._first_children()
        children.add(call)

    def _first_children(self) -> _Children:
        # Before the lock, within which no finalizer is to begin a call.
        made = _Children(self._core, self._handle)
        with _making:
            children = self._children
            if children is not None:  # another thread was first
                return children
            self._children = made
        self.add_cancel_callback(made.cancel)
        return made

    def release(self, call: Cancellable) -> None:
        """Forgets an adopted call, which has ended (for clients).

        A call that nobody waits for needs no ``release``: the context forgets ended calls by itself.
        """
        children = self._children
        if children is not None:
            children.calls.discard(call)

    def _is_elsewhere(self) -> bool:
        """Returns whether this is a task that the handler has started, which may outlive the call."""
        if self.task is None:
            return False
        import asyncio

        try:
            return asyncio.current_task() not in (
                self.task,
                None,
            )  # None: a callback, for what goes on with a call
        except RuntimeError:  # a thread, in which the handler has something run
            return False

    def end(self) -> None:
        """Marks the call as answered, for servers; they call this when it is answered or is about to be."""
        # Calls that the handler has left under way are forgotten and not cancelled.
        self.ended = True
        self._children = None

    def __repr__(self) -> str:
        return f"<rrpc.Context of {self.method}>"


# From here on the variable holds a `CurrentCall` in handlers that the core calls by itself.
_core.set_context(_current, Context)
_making = process_lock()


class _Children:
    """The calls that a handler makes, to be cancelled with the one that it serves."""

    __slots__ = ("_core", "_handle", "calls", "cancelled", "sweep_at")

    def __init__(self, core: _core.Server, handle: int) -> None:
        self._core, self._handle = core, handle
        self.calls: set[Cancellable] = set()
        self.cancelled = False
        self.sweep_at = 16

    def add(self, call: Cancellable) -> None:
        # Ended calls are swept when the set has doubled since the last sweep, which costs little for each call.
        if len(self.calls) >= self.sweep_at:
            # Copied, as other threads add and discard calls meanwhile.
            self.calls.difference_update([other for other in list(self.calls) if other.done()])
            self.sweep_at = 2 * len(self.calls) + 16
        self.calls.add(call)
        if self.cancelled:  # looked at after it was added, as cancel() looks for calls after it has said so
            call.cancel()

    def cancel(self) -> None:
        if self._core.is_late(self._handle):
            return  # their own deadlines are no later: they end with DeadlineExceeded, which a cancel would forestall
        self.cancelled = True
        for call in list(self.calls):
            call.cancel()


class Around:
    """Stands in a context's place: calls made there inherit less from the handler's, or have links around them."""

    __slots__ = ("_attached", "_inherits", "_lasts", "context", "links")

    def __init__(
        self,
        context: Context | None,
        *,
        links: tuple[Link, ...] = (),
        inherits: bool = True,
        lasts: bool = False,
        attached: bool = False,
    ) -> None:
        """``lasts``: its links don't end with the context. ``attached``: it inherits in any task."""
        self.context = context
        self.links = links
        self._inherits = inherits
        self._lasts = lasts
        self._attached = attached

    def with_link(self, link: Link) -> Around:
        """Returns a copy with one more link, inside of the others, which stays until it is removed."""
        links = () if self.ended else self.links
        return Around(
            self.context,
            links=(*links, link),
            inherits=self._inherits,
            lasts=True,
            attached=self._attached,
        )

    def detached(self) -> Around:
        """Returns a copy with the links alone: calls inherit neither deadline nor cancellation."""
        return Around(self.context, links=self.links, inherits=False, lasts=self._lasts)

    def attached(self) -> Around:
        """Returns one that inherits in any task."""
        return Around(self.context, links=self.links, lasts=self._lasts, attached=True)

    @property
    def ended(self) -> bool:
        """Whether calls needn't look at it: they inherit nothing and have no links."""
        gone = self.context is None or self.context.ended
        if self._attached and not gone:
            return False
        return not self.links or (gone and not self._lasts)

    def deadline_of(self, deadline: float | None) -> float | None:
        """Does the same as ``Context.deadline_of``."""
        source = self._source()
        if source is None:
            return deadline
        return source.earlier(deadline) if self._attached else source.deadline_of(deadline)

    def adopt(self, call: Cancellable) -> None:
        """Does the same as ``Context.adopt``."""
        source = self._source()
        if source is not None and self._attached:
            source.add(call)
        elif source is not None:
            source.adopt(call)

    def release(self, call: Cancellable) -> None:
        """Does the same as ``Context.release``."""
        if self.context is not None:
            self.context.release(call)

    def _source(self) -> Context | None:
        """Returns the context that calls inherit from, or None."""
        context = self.context
        return None if context is None or context.ended or not self._inherits else context


def around() -> Around:
    """Returns the caller's ``Around``, or a new one with the caller's context, if any."""
    found = current()
    return found if isinstance(found, Around) else Around(found)


def context() -> Context:
    """Returns the call that the running handler serves. Raises RuntimeError outside of a handler."""
    found = current()
    if isinstance(found, Around):
        found = found.context
    if found is None or found.ended:
        raise RuntimeError(
            "rrpc.context() is for handlers, while they run; a thread that a handler starts needs it passed on"
        )
    return found


@contextmanager
def detached() -> Iterator[None]:
    """Lets calls made in a ``with`` block inherit neither deadline nor cancellation from the call being served."""
    token = _current.set(around().detached())
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def attached() -> Iterator[None]:
    """Lets calls made in a ``with`` block inherit deadline and cancellation from the handler that started this task.

    The handler's own calls always do. Tasks that it starts may outlive its call, so theirs don't, except here.
    """
    token = _current.set(around().attached())
    try:
        yield
    finally:
        _current.reset(token)
