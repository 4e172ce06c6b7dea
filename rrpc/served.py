"""A server's calls with interceptors around their handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from .context import context
from .dispatch import Dispatch, check_memory
from .errors import Cancelled, DeadlineExceeded
from .interceptors import Chain, ServerInterceptor, drive, links

if TYPE_CHECKING:
    from .context import Context
    from .dispatch import Handler

__all__ = ["IncomingCall", "intercept"]

_NAP = 0.02


def intercept(dispatch: Dispatch, interceptors: Sequence[ServerInterceptor]) -> None:
    """Put ``interceptors`` around every handler, and around the answer to calls of methods that aren't there."""
    unary = links(interceptors, "unary")
    if unary:
        known = {name: _Intercepted(handler, unary) for name, handler in dispatch.handlers.items()}
        dispatch.handlers = _Handlers(known, lambda name: _Intercepted(_Missing(dispatch, name), unary))


class _Handlers(dict[bytes, Any]):
    def __init__(self, known: Mapping[bytes, Any], missing: Callable[[bytes], Any]) -> None:
        super().__init__(known)
        self._missing = missing

    def __missing__(self, name: bytes) -> Any:
        return self._missing(name)


class IncomingCall:
    """One call of a server, as its interceptors see it."""

    __slots__ = ("_blocks", "_decoded", "_handler", "_payload", "_reached", "context")

    def __init__(self, handler: Handler, payload: bytes, blocks: list[Any] | None) -> None:
        self.context: Context = context()
        """What the handler gets from :func:`rrpc.context`."""
        self._handler = handler
        self._payload = payload
        self._blocks = blocks
        self._decoded: tuple[list[Any], Any, Any] | None = None
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
        """By name. They are decoded, and checked, when they are first asked for: InvalidArgument may come of it."""
        values = self._decode()[0]
        return dict(zip(self._handler.plan.names, values, strict=True))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the caller sent."""
        return self.context.metadata

    @property
    def peer(self) -> str:
        """Where the call comes from, as text."""
        return self.context.peer

    @property
    def deadline(self) -> float | None:
        """When the caller gives up, by :func:`time.monotonic`; None: never."""
        return self.context.deadline

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self.context.cancelled

    def time_left(self) -> float | None:
        """Seconds until the deadline, 0 behind it; None: there is none."""
        return self.context.time_left()

    def __repr__(self) -> str:
        return f"<rrpc.IncomingCall of {self.method}>"

    def _decode(self) -> tuple[list[Any], Any, Any]:
        if self._decoded is None:
            decoded = self._handler.decode(self._payload, self._blocks)
            if decoded[1] is not None:
                check_memory(self.context._core, self.context._handle, decoded[1])
            self._decoded = decoded
            self._blocks = None
        return self._decoded

    def _handle(self) -> Any:
        arguments = self._decode()[0]
        self._reached = True
        return self._handler.function(*arguments)

    def _sleep(self, seconds: float) -> None:
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            self._check()
            sleep(min(left, _NAP))
        self._check()

    def _check(self) -> None:
        """Raise what has ended the call."""
        if self.time_left() == 0:
            raise DeadlineExceeded(f"{self.method}(): the deadline passed while an interceptor slept")
        if self.cancelled:
            raise Cancelled(f"{self.method}(): the caller gave the call up while an interceptor slept")


class _Intercepted:
    """Takes the place of a handler: what is passed between its three functions is the call."""

    __slots__ = ("_handler", "_links", "function", "is_async", "method", "plan")

    def __init__(self, handler: Any, links: Sequence[Any]) -> None:
        self._handler = handler
        self._links = links
        self.method = handler.method
        self.plan = handler.plan
        self.is_async = handler.is_async
        self.function = self._run

    def decode(self, payload: bytes, blocks: list[Any] | None) -> tuple[tuple[IncomingCall], None, None]:
        return (IncomingCall(self._handler, payload, blocks),), None, None

    def _run(self, call: IncomingCall) -> tuple[IncomingCall, Any]:
        try:
            return call, drive(Chain(self._links, call, once=True), call._handle, call._sleep)
        except BaseException:
            call.context.unseen = not call._reached
            raise

    def encode(self, answered: tuple[IncomingCall, Any], out: None, sizes: None) -> tuple[bytes, Any]:
        call, result = answered
        _, wanted, expected = call._decode()
        encoded: tuple[bytes, Any] = self._handler.encode(result, wanted, expected)
        return encoded


class _Missing:
    """Stands for a method that isn't there."""

    __slots__ = ("_dispatch", "_name")
    method = None
    plan = None
    is_async = False

    def __init__(self, dispatch: Dispatch, name: bytes) -> None:
        self._dispatch = dispatch
        self._name = name

    def decode(self, payload: bytes, blocks: list[Any] | None) -> Any:
        raise self._dispatch.unimplemented(self._name.decode(errors="replace"))
