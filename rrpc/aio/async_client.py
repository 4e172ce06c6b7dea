"""Clients for coroutines: the base of generated ones, usable untyped too."""

# Calls belong to the loop that runs in the calling thread. `close` is for any thread, in a loop or not.

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._call.retry import RetryPolicy
from rrpc._channel import Channel
from rrpc._client.base_client import BaseClient, call_options
from rrpc._client.client import Untyped
from rrpc._client.hedging import HedgingPolicy
from rrpc.errors import Unavailable
from rrpc.interceptors import ClientInterceptor
from rrpc.metadata import MetadataLike

if TYPE_CHECKING:
    from .async_future import Future

_C = TypeVar("_C", bound="Client")


class Client(BaseClient):
    """Calls to a server out of coroutines, by its methods' names or, of a generated class, by methods.

    It connects in ``async with``, or by ``await client``, or else when a call needs it; none of them holds up the
    loop. One client may be used in many loops and threads. Arguments are those of ``rrpc.Client``, but for ``lazy``;
    connecting raises what ``rrpc.Client`` raises, and checks the address and the values of the transport's options.

    Args:
        address: An address, several of them, or a ``Channel``, as for ``rrpc.Client``. A ``Channel`` isn't closed.
        timeout: Seconds that a call may take by default; None sets no deadline.
        metadata: Metadata that goes with each call.
        wait_for_ready: Whether calls wait for a connection, in place of failing with Unavailable, where there is none.
        interceptors: ``ClientInterceptor`` objects around each call, the outermost first.
        retry: When calls that failed are made again.
        hedging: When calls are made a second time before the first has ended; not together with ``retry``.
        **options: Those of ``Channel`` (``poll``, ``connect_timeout``, ``policy``, ``serve`` and others) and of the
            transport.

    Raises:
        InvalidArgument: A number of seconds isn't from 0 up, or the metadata can't be sent.
        ValueError: Both ``retry`` and ``hedging`` are given, or there is no policy of that name, or no address.
        TypeError: An argument isn't of the type that it must be, there is no option of that name, or options are
            given beside a ``Channel``, which has its own.
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
        **options: Any,
    ) -> None:
        calls = call_options(timeout, metadata, wait_for_ready, interceptors, retry, hedging)
        super().__init__(address, calls, options)

    async def connect(self: _C) -> _C:
        """Connect now, within ``connect_timeout`` seconds; raises what ``rrpc.Client`` does."""
        import asyncio

        try:
            await asyncio.wrap_future(self._channel.pick_soon(self._options.wait_for_ready))
        except Unavailable as error:
            raise self._channel.connect_failure(error) from None
        return self

    async def call(
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
        """Calls a method by name and returns its result, like ``rrpc.Client.call``."""
        return await self.start(
            method, *args, timeout=timeout, metadata=metadata, out=out, borrow=borrow, **kwargs
        )

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
        """Starts a call and returns its future; the arguments are those of ``call``."""
        from .start_call import start

        return start(self._prepare(Untyped(method, args, kwargs, out, borrow), timeout, metadata))

    def close(self) -> _Done:
        """End the connections, at once; calls in flight fail with Unavailable. Closing twice does nothing.

        From any thread, in a loop or not; what it gives may be awaited, and needn't be. One that was given its channel,
        or made by ``with_options``, leaves the channel open.
        """
        if self._owns:
            self._channel.close()
        return _Done()

    def __await__(self: _C) -> Generator[Any, None, _C]:
        return self.connect().__await__()

    async def __aenter__(self: _C) -> _C:
        try:
            return await self.connect()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __enter__(self) -> None:
        raise TypeError(f"{type(self).__name__} is for coroutines: use it with `async with`")

    def __exit__(self, *exc_info: object) -> None: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"


class _Done(Coroutine[Any, Any, None]):
    """Awaitable that is complete already: awaiting it returns at once, and is optional."""

    def send(self, value: Any) -> Any:
        raise StopIteration

    def throw(self, *error: Any) -> Any:
        raise error[-1] if isinstance(error[-1], BaseException) else error[0]

    def close(self) -> None: ...

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def connect(
    address: str | Sequence[str] | Channel, *, timeout: float | None = None, **options: Any
) -> Client:
    """Makes a ``Client``, for calls by name: ``client = await rrpc.aio.connect(...)``, or with ``async with``.

    Args:
        address: As of ``rrpc.connect``: an address, several of one service, or a channel.
        timeout: Seconds that each call may take where it says nothing itself; None: no limit.
        **options: Those of ``rrpc.Client``.

    Raises:
        Unavailable: When it is awaited: it can't connect.
        InvalidArgument: The address isn't one.
    """
    return Client(address, timeout=timeout, **options)
