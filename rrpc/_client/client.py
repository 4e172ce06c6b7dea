"""Clients: the base of generated ones, usable untyped too."""

# Any thread may use a client. All that changes is in its channel, which has a lock.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._call.retry import RetryPolicy
from rrpc._channel import Channel, Connection
from rrpc._interface import OutSpec, decode_into, target_of, untyped_request
from rrpc.codec import decode
from rrpc.errors import RpcError
from rrpc.interceptors import ClientInterceptor
from rrpc.metadata import MetadataLike

from . import begin_call
from .base_client import BaseClient, call_options, links_of
from .blocking_guard import loop_here, refuse_blocking, refuse_in_coroutine
from .futures import Future
from .hedging import HedgingPolicy

__all__ = ["Client", "Untyped", "connect", "links_of"]

_C = TypeVar("_C", bound="Client")


class Client(BaseClient):
    """Calls to a server, by its methods' names or, of a generated class, by methods.

    It connects at once; with ``lazy`` when a call needs it. A connection that is lost is made again when a call needs
    it. A client may be used from many threads. After a fork the child needs a client of its own.

    Args:
        address: ``rrpc://host:port`` (the best way both ends share, out of those that the option ``transports``
            lists), or ``shm://``, ``verbs://``, ``tcp://`` to insist on one; several of them; or a ``Channel``,
            which the client then shares with others and doesn't close.
        timeout: Seconds that a call may take by default; None sets no deadline.
        metadata: Metadata that goes with each call.
        wait_for_ready: Whether calls wait for a connection, in place of failing with Unavailable, where there is none.
        interceptors: ``ClientInterceptor`` objects around each call, the outermost first.
        retry: When calls that failed are made again.
        hedging: When calls are made a second time before the first has ended; not together with ``retry``.
        lazy: Whether to connect only when a call needs it.
        **options: Those of ``Channel`` (``poll``, ``connect_timeout``, ``policy``, ``serve`` and others) and of the
            transport.

    Raises:
        Unavailable: Nobody serves there.
        DeadlineExceeded: Connecting took longer than ``connect_timeout`` seconds.
        FailedPrecondition: The server's version of a generated client's interface doesn't fit its own.
        InvalidArgument: The address has no such form, or an option or a number of seconds can't have that value.
        ValueError: Both ``retry`` and ``hedging`` are given, or there is no policy of that name, or no address.
        TypeError: An argument isn't of the type that it must be, there is no option of that name, or options are
            given beside a ``Channel``, which has its own.
        RuntimeError: It would connect in a coroutine, and hold up the event loop.
    """

    def __init__(
        self,
        address: str | Sequence[str] | Channel,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool = False,
        interceptors: Iterable[ClientInterceptor] | None = None,
        retry: RetryPolicy | None = None,
        hedging: HedgingPolicy | None = None,
        lazy: bool = False,
        **options: Any,
    ) -> None:
        calls = call_options(timeout, metadata, wait_for_ready, interceptors, retry, hedging)
        super().__init__(address, calls, options)
        if self._owns and not lazy:
            self._connect()

    def _connect(self) -> None:
        name = type(self).__name__
        refuse_blocking(
            f"{name}(...)", "a client of rrpc.aio, or lazy=True for one that is used elsewhere", 1
        )
        try:
            self._channel.connect()
        except BaseException:
            # A client whose constructor raises is never closed by its user.
            self._channel.close()
            raise

    def call(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        out: Any = None,
        borrow: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Calls ``"Service.method"`` without a generated client; the server checks the arguments.

        A dataclass in the result comes as a dict, an enum as its value. An argument that is called like one of those
        below is given by its place.

        Args:
            method: The service's name, a dot and the method's.
            *args: Arguments by their place.
            timeout: Seconds until DeadlineExceeded; None: the client's own, where it has one.
            metadata: Goes with the call, beside the client's own.
            out: A writable C-contiguous array, into which the one array of the result with its dtype and shape is
                written.
            borrow: Lends the arrays among the arguments to the server, and borrows those that the result lends, as
                ``rrpc.Borrowed`` does: all arrays of the result are read-only then, but for ``out``.
            **kwargs: Arguments by their names.

        Raises:
            RpcError: The call failed; its class says how: InvalidArgument where an argument can't be sent or is
                refused, DeadlineExceeded after ``timeout``, and others.
        """
        running = loop_here()
        if running is not None and running() is not None:
            refuse_in_coroutine(f"{type(self).__name__}.call()", "rrpc.aio.Client.call()", 1)
        return begin_call.call(self._prepare(Untyped(method, args, kwargs, out, borrow), timeout, metadata))

    def start(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        out: Any = None,
        borrow: bool = False,
        **kwargs: Any,
    ) -> Future[Any]:
        """Starts a call and returns its future without waiting for the result; the arguments are those of ``call``."""
        return begin_call.start(self._prepare(Untyped(method, args, kwargs, out, borrow), timeout, metadata))

    def close(self, timeout: float | None = None) -> None:
        """End the connections; calls in flight fail with Unavailable. Closing twice does nothing.

        One that was given its channel, or made by ``with_options``, leaves the channel open.
        """
        if self._owns:
            self._channel.close()

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # what checkers refuse without it

        async def __aenter__(self):
            raise TypeError(
                f"{type(self).__name__} blocks: use it with `with`, or `async with` a client of rrpc.aio"
            )

        async def __aexit__(self, *exc_info):
            pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"


def connect(
    address: str | Sequence[str] | Channel,
    *,
    timeout: float | None = None,
    **options: Any,
) -> Client:
    """Connects to a server for calls by name.

    Args:
        address: An address, several, or a ``Channel``, as for ``Client``.
        timeout: Seconds that a call may take by default; None sets no deadline.
        **options: All others of ``Client``.

    Returns:
        A ``Client``, connected unless ``lazy=True``. Close it, or use it in a ``with`` statement.

    Raises:
        RpcError: As ``Client`` does.
        ValueError: As ``Client`` does.
        TypeError: As ``Client`` does.
        RuntimeError: As ``Client`` does.
    """
    return Client(address, timeout=timeout, **options)


class Untyped:
    """A call by name: all that is known is what is given. Encoded once, however often it is sent."""

    __slots__ = ("_args", "_encoded", "_kwargs", "borrow", "method", "out")
    idempotent = False

    def __init__(
        self, method: str, args: Sequence[Any], kwargs: dict[str, Any], out: Any, borrow: bool = False
    ) -> None:
        if not isinstance(method, str):
            raise TypeError(f"the method must be a str such as 'Service.method', not {type(method).__name__}")
        self.method = method
        self.out = target_of(out)
        self.borrow = borrow
        """Whether the arrays in the arguments are lent, and those in the result borrowed."""
        self._args, self._kwargs = args, kwargs
        self._encoded: tuple[bytes, bytes, Any] | None = None

    def encode(self, connection: Connection) -> tuple[bytes, bytes, Any]:
        # Encoded once, since the payload depends on no connection: the server sorts out the arguments by itself.
        if self._encoded is None:
            spec = None if self.out is None else OutSpec.of(self.out)
            payload, message = untyped_request(self._args, self._kwargs, spec, self.borrow)
            self._encoded = self.method.encode(errors="replace"), payload, message or None
        return self._encoded

    def decode(self, payload: bytes, blocks: list[Any] | None, message: Any) -> Any:
        return decode_into(payload, blocks, self.out, self.borrow)

    def decoder(self, message: Any) -> Callable[[bytes, Any], Any]:
        if self.out is None and not self.borrow:
            return decode
        return partial(decode_into, out=self.out, borrow=self.borrow)

    def error(self, error: RpcError) -> RpcError:
        return error

    def named(self) -> Mapping[str | int, Any]:
        arguments: dict[str | int, Any] = dict(enumerate(self._args))
        arguments.update(self._kwargs)
        return arguments

    def check(self, result: Any) -> Any:
        return result
