"""Calls with streams on their way out: the one way in which they begin, for stubs and by name, with interceptors."""

# The thread that begins a call runs its interceptors, as far as their `yield call`. Functions for items run in the
# threads that send and receive, and whichever thread notices the end runs what `on_end` was given.

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from rrpc._call.chain import Chain
from rrpc._call.outgoing import CallOptions, OutgoingCall, connected, prepare
from rrpc._call.stream_attempts import Attempts
from rrpc._call.stream_hooks import StreamHooks
from rrpc._interface import RECEIVES, SENDS, Plan, untyped_request
from rrpc._interface.stream_items import untyped_item
from rrpc.codec import decode
from rrpc.errors import RpcError, Unavailable, goes_elsewhere
from rrpc.metadata import MetadataLike

from .blocking_driver import carry_out
from .blocking_guard import refuse_blocking
from .client import Client
from .stream_call import StreamCall
from .streams import DuplexStream, RequestStream, ResponseStream

if TYPE_CHECKING:
    from rrpc._call.retry import StreamRetries
    from rrpc._channel import Channel, Connection


class StreamRequest(Protocol):
    """Request of a call with streams, similar to ``rrpc._call.outgoing.Request``."""

    out: None
    idempotent: bool

    @property
    def method(self) -> str:
        """The full name."""

    def named(self) -> Mapping[str | int, Any]:
        """The arguments that aren't a stream, by name, or by place where the parameters' names aren't known."""

    def open(self, connection: Connection, timeout: float | None, metadata: MetadataLike) -> Any:
        """Send it: the core's stream."""

    def opened(self, attempts: Attempts) -> StreamCall:
        """The call that has begun so."""


class OutgoingStream(OutgoingCall):
    """A call with streams, as a client's interceptors see it: they may reach its items and its end."""

    __slots__ = ("chain", "ran_before", "retries")
    chain: Chain
    retries: StreamRetries | None
    """By whose policy it is made again when it has failed and nothing has come of it."""
    ran_before: bool
    """Value of ``may_have_run`` before the last attempt."""

    def map_sent(self, function: Callable[[Any], Any]) -> None:
        """Sends ``function(item)`` in place of each item."""
        self._hooks.map_sent(self.chain.depth, function)

    def map_received(self, function: Callable[[Any], Any]) -> None:
        """Gives the caller ``function(item)`` in place of each item received."""
        self._hooks.map_received(self.chain.depth, function)

    def on_end(self, function: Callable[[BaseException | None], object]) -> None:
        """Calls ``function(error)`` when the call has ended, with None if it succeeded."""
        self._hooks.on_end(self.chain.depth, function)

    def opened(self, found: Any) -> StreamCall:
        """Checks and returns the chain's result for a driver. Raises TypeError if it isn't a ``StreamCall``."""
        if not isinstance(found, StreamCall):
            raise TypeError(
                f"{self.method}(): an interceptor's stream() returned {type(found).__name__}; "
                "it returns what its `yield call` gave"
            )
        return found

    def failed(self, error: BaseException) -> None:
        """Ends the call for a driver after its chain failed with ``error``."""
        self.end()
        self._hooks.end(error)
        self.chain.call = None  # a cycle, which would keep the arguments

    def goes_on_after(self, error: RpcError) -> bool:
        """Returns whether ``Attempts`` may make the call again after ``error``."""
        if self.cancelled or self.time_left() == 0:
            return False
        return goes_elsewhere(error) or (self.retries is not None and self.retries.may_follow(self, error))

    def again(self, attempts: Attempts, error: RpcError) -> Chain:
        """Returns the course of another attempt after ``error``; the interceptors have done their part."""
        retries = self.retries
        if error.not_executed:
            # This attempt reached no handler, so it doesn't count.
            self.may_have_run = self.ran_before
        links: tuple[Any, ...] = ()
        if goes_elsewhere(error):
            assert self.connection is not None
            self.channel.failed(self.connection, error)
            links = () if retries is None else (retries.link,)
        elif retries is not None:
            links = (functools.partial(retries.link_after, error),)
        else:
            raise error
        return Chain(links, self, innermost=functools.partial(_moved, attempts))

    @property
    def _hooks(self) -> StreamHooks:
        assert self.chain.hooks is not None
        return self.chain.hooks


def begin(
    channel: Channel,
    request: StreamRequest,
    options: CallOptions,
    timeout: float | None,
    metadata: MetadataLike | None,
) -> StreamCall:
    """Send the request; a connection is waited for."""
    call = begun_course(channel, request, options, timeout, metadata)
    try:
        return call.opened(carry_out(call.chain))
    except BaseException as error:
        call.failed(error)
        raise


def begun_course(
    channel: Channel,
    request: StreamRequest,
    options: CallOptions,
    timeout: float | None,
    metadata: MetadataLike | None,
) -> OutgoingStream:
    """The call, with the course that it is to go in ``chain``; what comes of that is a ``StreamCall``."""
    call = OutgoingStream(prepare(channel, request, options, timeout, metadata))
    call.retries = None
    links = (*call.links_around, *options.stream_links)
    innermost = functools.partial(_first, intercepted=bool(links))
    # Retries stand inside of the interceptors, which see one call.
    if options.retry is not None:
        links = (*links, options.retry.stream_link)
    call.chain = Chain(links, call, innermost=innermost, hooks=StreamHooks(serving=False))
    return call


def _first(call: OutgoingStream, intercepted: bool) -> Generator[Any, Any, StreamCall]:
    """The first attempt."""
    core = yield from _over(call)
    opened: StreamCall = cast("StreamRequest", call.request).opened(Attempts(core, call))
    _attend(call, opened, intercepted)
    return opened


def _moved(attempts: Attempts, call: OutgoingStream) -> Generator[Any, Any, None]:
    """Another one."""
    core = yield from _over(call)
    try:
        attempts.move_to(core)
    except BaseException:
        # `attempts` didn't take this one over, so nobody else would end it.
        core.cancel()
        raise


def _over(call: OutgoingStream) -> Generator[Any, Any, Any]:
    """The request over a connection of its channel; over another where the first turns out to take no calls."""
    request: Any = call.request
    while True:
        call.check()
        connection = yield from connected(call)
        if call.private_only:
            connection.check_private(call.method)
        call.attempt += 1
        call.connection = connection
        try:
            core = request.open(connection, call.time_left(), call.metadata)
        except Unavailable as error:
            call.channel.failed(connection, error)
            if not goes_elsewhere(error):
                raise
        else:
            # From now on a handler may see it; `again` takes that back where the server says that none has.
            call.ran_before, call.may_have_run = call.may_have_run, True
            call.interrupt_with(core.cancel)
            return core


def _attend(call: OutgoingStream, opened: StreamCall, intercepted: bool) -> None:
    """Sets up the cleanup at the call's end and, if ``intercepted``, the functions for its items."""
    hooks = call.chain.hooks
    assert hooks is not None

    def ended(error: BaseException | None) -> None:
        call.end()
        call.interrupt_with(None)
        connection = call.connection
        assert connection is not None
        if isinstance(error, RpcError):
            call.channel.failed(connection, error)
        else:
            call.channel.succeeded(connection)
            if call.retries is not None:
                call.retries.succeeded()
        hooks.end(error)
        call.chain.call = None  # a cycle, which would keep the arguments

    opened.on_end = ended
    if intercepted:
        encode, decode = opened.encode, opened.decode
        # The core must not read and pack items by itself here, since each has to pass the interceptors' functions.
        opened.encode_plan = opened.decode_plan = None
        opened.encode = lambda item: encode(hooks.sent(item))
        opened.decode = lambda *item: hooks.received(decode(*item))


def opened_by(plan: Plan, attempts: Attempts, sizes: Any) -> StreamCall:
    """A call that has begun, of a method that is known."""
    sent, received = plan.sent, plan.received
    decode_item: Any = None
    if received is not None:
        decode_item = received.decode if sizes is None else functools.partial(received.decode, sizes=sizes)
    encode_item: Any = None if sent is None else sent.encode
    opened = StreamCall(attempts, plan.name, encode_item, decode_item, plan.decode_result, plan.errors.typed)
    opened.encode_plan = None if sent is None else sent.codec
    opened.decode_plan = None if received is None else received.codec
    return opened


class UntypedStream:
    """A call by name."""

    out = None
    idempotent = False

    def __init__(self, method: str, kind: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not isinstance(method, str):
            raise TypeError(f"the method must be a str such as 'Service.method', not {type(method).__name__}")
        self.method = method
        self._arguments: dict[str | int, Any] = dict(enumerate(args))
        self._arguments.update(kwargs.items())
        self._kind = kind
        self._payload, self._message = untyped_request(args, dict(kwargs), None)

    def named(self) -> Mapping[str | int, Any]:
        return self._arguments

    def open(self, connection: Connection, timeout: float | None, metadata: MetadataLike) -> Any:
        name, buffers = self.method.encode(errors="replace"), self._message or None
        return connection.core.open(name, self._payload, buffers, timeout, metadata, self._kind)

    def opened(self, attempts: Attempts) -> StreamCall:
        return StreamCall(attempts, self.method, untyped_item, decode, decode)


def kind_of(sends: bool, receives: bool) -> int:
    """Returns ``SENDS``, ``RECEIVES`` or both. Raises TypeError if there is neither."""
    kind = SENDS * bool(sends) | RECEIVES * bool(receives)
    if not kind:
        raise TypeError("a call without streams is client.call()")
    return kind


def open_stream(
    client: Client,
    method: str,
    /,
    *args: Any,
    sends: bool = False,
    receives: bool = True,
    timeout: float | None = None,
    metadata: MetadataLike | None = None,
    **kwargs: Any,
) -> Any:
    """Calls ``"Service.method"``, which has streams, without a generated client.

    The server checks arguments and items. Its errors come from the stream, after the items before them.

    Args:
        client: The client whose connection and options the call has.
        method: The service's and the method's name, joined by a dot.
        *args: The method's arguments, but for its stream. One with the name of an option is given so, by its place.
        sends: Whether the method takes a stream.
        receives: Whether the method gives a stream.
        timeout: Seconds that the whole call may take; None: that of the client's calls.
        metadata: Metadata that goes with the call, besides the client's.
        **kwargs: Arguments that are given by name.

    Returns:
        A ``RequestStream`` if the method only takes a stream, a ``ResponseStream`` if it only gives one, a
        ``DuplexStream`` if it does both.

    Raises:
        TypeError: It isn't an ``rrpc.Client``, the method's name isn't a str, or there is no stream either way.
        RuntimeError: It is called in a coroutine, where it would hold up the event loop.
        InvalidArgument: An argument or the metadata can't be sent, or ``timeout`` is no number of seconds from 0 up.
        Unavailable: There is no connection, and the client doesn't wait for one.
        DeadlineExceeded: The time was up before the call was sent.
    """
    if not isinstance(client, Client):
        raise TypeError(
            f"rrpc.open_stream() takes an rrpc.Client, not {type(client).__name__}; "
            "rrpc.aio.open_stream() is for the clients of rrpc.aio"
        )
    refuse_blocking("rrpc.open_stream()", "the stream of rrpc.aio.open_stream()", 1)
    kind = kind_of(sends, receives)
    request = UntypedStream(method, kind, args, kwargs)
    opened = begin(client._channel, request, client._options, timeout, metadata)
    return _OBJECTS[kind](opened)


_OBJECTS: dict[int, Callable[[StreamCall], Any]] = {
    SENDS: RequestStream,
    RECEIVES: ResponseStream,
    SENDS | RECEIVES: DuplexStream,
}
