"""A server's calls with interceptors around their handlers."""

# Interceptors run where the handler does, in the worker or the event loop. One call's chain is used there alone.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rrpc._call.chain import REFUSED, Chain, drive, drive_async
from rrpc._call.context import context
from rrpc._call.peer import Peer
from rrpc._call.steps import Sleep
from rrpc._call.stream_hooks import StreamHooks
from rrpc.errors import Cancelled, DeadlineExceeded, PermissionDenied
from rrpc.interceptors import ServerInterceptor, links

from .dispatch import Dispatch, check_memory

if TYPE_CHECKING:
    from rrpc._call.chain import Link, Steps
    from rrpc._call.context import Context
    from rrpc.metadata import Metadata

    from .dispatch import Handler
    from .served_stream import ServedStream

_NOBODY = Peer()
_STAMPS = ("request received", "arguments fetched", "taken by a worker")


def intercept(dispatch: Dispatch, interceptors: Sequence[ServerInterceptor]) -> None:
    """Put ``interceptors`` around every handler, and around the answer to calls of methods that aren't there."""
    gate: tuple[Link, ...] = (_gate,) if any(one.names_callers for one in interceptors) else ()
    unary = (*links(interceptors, "unary"), *gate)
    stream = (*links(interceptors, "stream"), *gate)
    if stream:
        for handler in dispatch.streams.values():
            handler.around = partial(_around_stream, handler, stream)
        dispatch.missing_stream = lambda name, kind: _Missing(dispatch, name, kind, stream)
    if unary:
        known = {name: _Intercepted(handler, unary) for name, handler in dispatch.handlers.items()}
        dispatch.handlers = _Handlers(known, lambda name: _Intercepted(_Missing(dispatch, name, 0), unary))


def _gate(call: IncomingCall) -> Steps:
    """The innermost link, where tokens name callers: refuses what the policy doesn't permit even with the token."""
    context = call.context
    subject = getattr(context, "_token_subject", "")
    # The core has asked the policy before, but without the token, which an interceptor has checked since.
    if why := context._core.why_denied(context._handle, subject):
        raise PermissionDenied(
            why + (f", with the token of {subject!r:.80}" if subject else ", without a token")
        )
    return (yield call)


class _Handlers(dict[bytes, Any]):
    def __init__(self, known: Mapping[bytes, Any], missing: Callable[[bytes], Any]) -> None:
        super().__init__(known)
        self._missing = missing

    # Only `handlers[name]` comes here. get() and `in` find the methods that there are.
    def __missing__(self, name: bytes) -> Any:
        return self._missing(name)


class IncomingCall:
    """A server's call, as its interceptors see it."""

    __slots__ = ("_chain", "_handler", "_hooks", "_peer", "_reached", "context")
    _chain: Chain

    def __init__(self, handler: Handler, context: Context) -> None:
        self.context = context
        """Context that the handler gets from ``rrpc.context``."""
        self._handler = handler
        self._hooks: StreamHooks | None = None
        self._peer = _NOBODY
        self._reached = False

    @property
    def method(self) -> str:
        """The full name: ``lab.search.Nearest.search``."""
        return self.context.method

    @property
    def idempotent(self) -> bool:
        """Whether the interface says that running the method twice is as running it once."""
        method = self._handler.method
        return method is not None and method.idempotent

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Arguments by name, decoded and checked when first asked for, which may raise InvalidArgument."""
        values = self._values()  # which raises where there is no such method, nor a plan of it
        return dict(zip(self._handler.plan.names, values, strict=False))

    @property
    def metadata(self) -> Metadata:
        """Metadata that the caller sent."""
        return self.context.metadata

    @property
    def peer(self) -> Peer:
        """The caller: its address as text, and who it is."""
        peer = self._peer or self.context.peer
        subject = getattr(self.context, "_token_subject", "")
        return peer.with_token(subject) if subject and not peer.token else peer

    @property
    def deadline(self) -> float | None:
        """Deadline of the caller, by ``time.monotonic``; None: there is none."""
        return self.context.deadline

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self.context.cancelled

    def time_left(self) -> float | None:
        """Seconds until the deadline, 0 behind it; None: there is none."""
        return self.context.time_left()

    def stamps(self) -> dict[str, int]:
        """Returns when the request came, its arguments were fetched and a worker took it, by time.monotonic_ns."""
        context = self.context
        found = context._core.stamps(context._handle)
        return {} if found is None else dict(zip(_STAMPS, found, strict=True))

    def on_end(self, function: Callable[[BaseException | None], object]) -> None:
        """Calls ``function(error)`` once, after the call is answered; ``error`` is None after a result.

        It learns what ``yield call`` can't tell: an error in packing and sending the result, and Cancelled or
        DeadlineExceeded where the caller had given the call up when its answer was ready.
        """
        if self._hooks is None:
            self._hooks = StreamHooks(serving=True)
            self.context.on_end = self._hooks.end
        self._peer = self.peer  # which isn't known any more at the end
        self._hooks.on_end(self._chain.depth, function)

    def __repr__(self) -> str:
        return f"<rrpc.IncomingCall of {self.method}>"

    def _values(self) -> Sequence[Any]:
        raise NotImplementedError

    def _make(self) -> Any:
        raise NotImplementedError

    async def _make_async(self) -> Any:
        result = self._make()  # of an async generator the items
        return await result if isinstance(result, Awaitable) else result

    def _do(self, asked: Any) -> Any:
        """Does what a step asks for, for ``drive``."""
        if asked is self:
            return self._make()
        return self._sleep(asked.seconds) if type(asked) is Sleep else REFUSED

    async def _do_async(self, asked: Any) -> Any:
        if asked is self:
            return await self._make_async()
        return await (self._sleep_async(asked.seconds) if type(asked) is Sleep else asked)

    def _sleep(self, seconds: float) -> None:
        # Holds the worker, and ends early with the call.
        self.context.wait_cancelled(seconds)
        self._check()

    async def _sleep_async(self, seconds: float) -> None:
        import asyncio

        left = self.time_left()
        late = left is not None and left <= seconds  # timers may be early
        try:
            await asyncio.sleep(seconds if left is None else min(left, seconds))
        except asyncio.CancelledError:
            self._check()  # which says more, if it was the call that ended
            raise
        self._check(late)

    def _check(self, late: bool = False) -> None:
        """Raise what has ended the call."""
        if late or self.time_left() == 0:
            raise DeadlineExceeded(f"{self.method}(): the deadline passed while an interceptor slept")
        if self.cancelled:
            raise Cancelled(f"{self.method}(): the caller gave the call up while an interceptor slept")


class _Unary(IncomingCall):
    __slots__ = ("_blocks", "_decoded", "_payload")

    def __init__(self, handler: Handler, payload: bytes, blocks: list[Any] | None) -> None:
        super().__init__(handler, context())
        self._payload = payload
        self._blocks = blocks
        self._decoded: tuple[list[Any], Any, Any] | None = None

    def decode(self) -> tuple[list[Any], Any, Any]:
        """The arguments, and what the result is to be encoded with."""
        if self._decoded is None:
            decoded = self._handler.decode(self._payload, self._blocks)
            if decoded[1] is not None:
                check_memory(self.context._core, self.context._handle, decoded[1])
            self._decoded = decoded
            # The arguments hold the memory from now on.
            self._blocks = None
        return self._decoded

    def _values(self) -> Sequence[Any]:
        return self.decode()[0]

    def _make(self) -> Any:
        arguments = self.decode()[0]
        self._reached = True
        result = self._handler.function(*arguments)
        return result if self._handler.is_async else self._checked(result)

    async def _make_async(self) -> Any:
        return self._checked(await super()._make_async())

    def _checked(self, result: Any) -> Any:
        """Raises Internal where it isn't as declared, for interceptors to see. What they give is checked when sent."""
        self._handler.plan.check_result(result, self.decode()[0])
        return result


class IncomingStream(IncomingCall):
    """A call of a server with streams: interceptors may reach its items and its end."""

    __slots__ = ("_items", "_served")

    def __init__(self, handler: Handler, served: ServedStream) -> None:
        super().__init__(handler, served.context)
        self._served = served
        self._hooks = self._items = StreamHooks(serving=True)
        served.map_sent, served.map_received = self._items.sent, self._items.received
        self.context.on_end = self._items.end
        self._peer = self.context.peer

    def map_sent(self, function: Callable[[Any], Any]) -> None:
        """Sends ``function(item)`` in place of each item that the handler yields."""
        self._items.map_sent(self._chain.depth, function)

    def map_received(self, function: Callable[[Any], Any]) -> None:
        """Gives the handler ``function(item)`` in place of each item that the caller sends."""
        self._items.map_received(self._chain.depth, function)

    def _values(self) -> Sequence[Any]:
        return self._served.arguments()

    def _make(self) -> Any:
        self._served.arguments()
        self._reached = True
        return self._served.begin()


class _Intercepted:
    """Takes the place of a handler: what is passed between its three functions is the call."""

    __slots__ = ("_handler", "_links", "function", "is_async", "method", "plan")

    def __init__(self, handler: Any, links: Sequence[Link]) -> None:
        self._handler = handler
        self._links = links
        self.method = handler.method
        self.plan = handler.plan
        self.is_async = handler.is_async
        self.function: Callable[[_Unary], Any] = self._run_async if handler.is_async else self._run

    def decode(self, payload: bytes, blocks: list[Any] | None) -> tuple[tuple[_Unary], None, None]:
        return (_Unary(self._handler, payload, blocks),), None, None

    def _run(self, call: _Unary) -> tuple[_Unary, Any]:
        call._chain = Chain(self._links, call, once=True)
        try:
            return call, _drive(call._chain, call)
        finally:
            del call._chain  # which holds the call

    async def _run_async(self, call: _Unary) -> tuple[_Unary, Any]:
        call._chain = Chain(self._links, call, once=True)
        try:
            return call, await _drive_async(call._chain, call)
        finally:
            del call._chain  # which holds the call

    def encode(self, answered: tuple[_Unary, Any], out: None, sizes: None) -> tuple[bytes, Any]:
        call, result = answered
        _, wanted, expected = call.decode()
        encoded: tuple[bytes, Any] = self._handler.encode(result, wanted, expected)
        return encoded


def _drive(chain: Chain, call: IncomingCall) -> Any:
    try:
        return drive(chain, call._do)
    except BaseException:
        # Where the chain never came to the handler, repeating the call is safe.
        call.context.not_executed = not call._reached
        raise


async def _drive_async(chain: Chain, call: IncomingCall) -> Any:
    try:
        return await drive_async(chain, call._do_async, chain.step())
    except BaseException:
        call.context.not_executed = not call._reached
        raise


def _around_stream(handler: Any, links: Sequence[Link], served: ServedStream) -> Any:
    call = IncomingStream(handler, served)
    call._chain = Chain(links, call, once=True, hooks=call._items)
    return (_drive_async if handler.is_async else _drive)(call._chain, call)


class _Missing:
    """Stands for a method that isn't there, or isn't one for such calls."""

    __slots__ = ("_error", "_links", "is_async")
    method = None
    plan = None

    def __init__(self, dispatch: Dispatch, name: bytes, kind: int, links: Sequence[Link] = ()) -> None:
        self._error = dispatch.unimplemented(name.decode(errors="replace"), kind)
        self._links = links
        other = dispatch.handlers.get(name) or dispatch.streams.get(name)
        self.is_async = other is not None and other.is_async  # calls of that name come to the loop

    def decode(self, payload: bytes, blocks: list[Any] | None) -> Any:
        raise self._error

    def around(self, served: ServedStream) -> Any:
        return _around_stream(self, self._links, served)
