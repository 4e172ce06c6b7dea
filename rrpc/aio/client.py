"""Clients for coroutines: the base of generated ones, usable untyped too."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rrpc.calls import CallOptions, OutgoingCall, course
from rrpc.channel import Channel, Contract
from rrpc.client import Untyped, links_of
from rrpc.interceptors import Chain, ClientInterceptor
from rrpc.metadata import MetadataLike, joined, pack
from rrpc.retry import HedgingPolicy, RetryPolicy
from rrpc.stubs import contract_of

if TYPE_CHECKING:
    from .future import Future

__all__ = ["Client", "connect"]

_C = TypeVar("_C", bound="Client")
_KEEP: Any = object()


class Client:
    """Calls to a server out of coroutines, by its methods' names or, of a generated class, by methods.

    Arguments as of :class:`rrpc.Client`. It connects in ``async with``, or by ``await client``, or else when a call
    needs it; none of them holds up the loop. One client may be used in many loops and threads.
    """

    rpc_fingerprints: ClassVar[dict[str, str]] = {}
    """Of a generated client: the interface of each service, by its name."""
    _rpc_contract: ClassVar[Contract | None] = None

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
        links, stream_links = links_of(interceptors), links_of(interceptors, "stream")
        self._options = CallOptions(timeout, metadata, wait_for_ready, links, retry, hedging, stream_links)
        self._contract = contract_of(type(self))
        self._owns = not isinstance(address, Channel)
        if isinstance(address, Channel):
            if options:
                raise TypeError(f"{', '.join(options)}: the channel has its options already")
            self._channel = address
        else:
            self._channel = Channel(address, **options)
        if self._contract is not None:
            self._channel.admit(self._contract)

    async def connect(self: _C) -> _C:
        """Connect now, within ``connect_timeout`` seconds; raises what :class:`rrpc.Client` does."""
        import asyncio

        await asyncio.wrap_future(self._channel.pick_soon(self._options.wait_for_ready))
        return self

    def with_options(
        self: _C,
        *,
        timeout: float | None = _KEEP,
        metadata: MetadataLike | None = _KEEP,
        wait_for_ready: bool = _KEEP,
        interceptors: Iterable[ClientInterceptor] | None = _KEEP,
        retry: RetryPolicy | None = _KEEP,
        hedging: HedgingPolicy | None = _KEEP,
    ) -> _C:
        """The same client with other options for its calls, on the same channel, which it doesn't close."""
        given: dict[str, Any] = {
            "timeout": timeout,
            "metadata": metadata,
            "wait_for_ready": wait_for_ready,
            "interceptors": _KEEP if interceptors is _KEEP else links_of(interceptors),
            "stream_links": _KEEP if interceptors is _KEEP else links_of(interceptors, "stream"),
            "retry": retry,
            "hedging": hedging,
        }
        clone = object.__new__(type(self))
        clone._options = replace(self._options, **{n: v for n, v in given.items() if v is not _KEEP})
        clone._contract, clone._channel, clone._owns = self._contract, self._channel, False
        return clone

    @property
    def address(self) -> str:
        """The address given to the constructor."""
        return self._channel.target

    async def call(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        out: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As :meth:`rrpc.Client.call`."""
        return await self.start(method, *args, timeout=timeout, metadata=metadata, out=out, **kwargs)

    def start(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        out: Any = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """As :meth:`call`, without waiting for the result: await the future."""
        from .starting import start_untyped

        return start_untyped(self, Untyped(method, args, kwargs, out), timeout, metadata)

    def _pack(self, metadata: MetadataLike | None) -> bytes:
        return pack(joined(self._options.metadata, metadata))

    def _course(self, request: Untyped, timeout: float | None, metadata: MetadataLike | None) -> Chain:
        return course(OutgoingCall(self._channel, request, self._options, timeout, metadata), self._options)

    def info(self) -> dict[str, Any]:
        """As :meth:`rrpc.Client.info`."""
        connections = self._channel.connections()
        facts = connections[0].core.info() if connections else {}
        return {**facts, "channel": self._channel.info()}

    def stats(self) -> dict[str, int]:
        """As :meth:`rrpc.Client.stats`."""
        total: dict[str, int] = {}
        for connection in self._channel.connections():
            for name, count in connection.core.stats().items():
                total[name] = total.get(name, 0) + count
        return total

    async def close(self) -> None:
        """End the connections; calls in flight fail with Unavailable. Closing twice does nothing.

        One that was given its channel, or made by :meth:`with_options`, leaves the channel open.
        """
        if self._owns:
            self._channel.close()

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


def connect(
    address: str | Sequence[str] | Channel, *, timeout: float | None = None, **options: Any
) -> Client:
    """A plain :class:`Client`, for calls by name: ``client = await rrpc.aio.connect(...)``, or with ``async with``."""
    return Client(address, timeout=timeout, **options)
