"""The asyncio server: async handlers run in the loop that starts it, synchronous ones in worker threads."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

from rrpc._interface import Interface
from rrpc._server.authorization import Authorization
from rrpc._server.health import Health
from rrpc._server.server import Server as BlockingServer


class Server:
    """Serves instances of service classes, whose methods may be ``async def`` or synchronous, side by side.

    Arguments as of ``rrpc.Server``. Async handlers run in the event loop in which the server is started, up to
    ``max_concurrency`` at a time (1024 where nothing is said); synchronous ones in ``workers`` threads. Once nobody
    waits for its reply any more, an async handler gets ``asyncio.CancelledError``.
    As an async context manager it starts, and stops at the end.
    """

    def __init__(self, *services: object, listen: str | Sequence[str] = (), **options: Any) -> None:
        self._server = BlockingServer(*services, listen=listen, **options)
        self._ended = asyncio.Event()

    @property
    def addresses(self) -> list[str]:
        """Returns the addresses that the server is actually bound to, in the order asked for."""
        return self._server.addresses

    @property
    def health(self) -> Health:
        """Returns the states that ``rrpc.Health`` reports.

        To change one: ``server.health.set("Nearest", False)``.
        """
        return self._server.health

    @property
    def services(self) -> str:
        """The names of the services, separated by commas; the built-in ones aren't among them."""
        return self._server.services

    @property
    def unanswered(self) -> list[str]:
        """The methods whose handlers ran when ``drain`` gave up."""
        return self._server.unanswered

    @property
    def unfetched(self) -> int:
        """Results that clients hadn't fetched when ``drain`` gave up."""
        return self._server.unfetched

    def running(self) -> list[str]:
        """The methods whose handlers run at this moment."""
        return self._server.running()

    def interfaces(self) -> list[Interface]:
        """Returns the interface of every service, with the built-in services last."""
        return self._server.interfaces()

    def stats(self) -> dict[str, int]:
        """Returns the numbers of connections and of calls, like ``rrpc.Server.stats``."""
        return self._server.stats()

    def send_away(self, count: int) -> int:
        """Tells ``count`` of the clients to connect again, like ``rrpc.Server.send_away``.

        Returns how many were told.
        """
        return self._server.send_away(count)

    @property
    def started(self) -> bool:
        """Whether it takes calls."""
        return self._server.started

    @property
    def _core(self) -> Any:  # for serve= of clients
        return self._server._core

    async def start(self) -> Server:
        """Listen, and take calls from now on, those of async methods in this loop. ``await server`` does the same."""
        if self._server.lane is not None:
            self._server.lane.open_here()
        await asyncio.to_thread(self._server.start)
        return self

    def authorize(self, authorization: Authorization | None) -> None:
        """Sets who may call what, from the next call on, like ``rrpc.Server.authorize``."""
        self._server.authorize(authorization)

    async def listen(self, address: str) -> str:
        """Listen on one more address; gives the one really bound; else InvalidArgument, AddressInUse, Unavailable."""
        return await asyncio.to_thread(self._server.listen, address)

    def tls_problem(self) -> str:
        """Returns why changed certificates can't be used, like ``rrpc.Server.tls_problem``."""
        return self._server.tls_problem()

    def tls_refusals(self) -> tuple[int, str]:
        """Returns how many TLS handshakes came to nothing, like ``rrpc.Server.tls_refusals``."""
        return self._server.tls_refusals()

    def stop_listening(self) -> None:
        """Refuses new clients from now on, like ``rrpc.Server.stop_listening``."""
        self._server.stop_listening()

    async def wait(self) -> None:
        """Until the server has been stopped, or drained."""
        await self._ended.wait()

    async def drain(self, grace: float | None = None) -> bool:
        """Refuse new calls, let running ones end and results be fetched; True if all that within ``grace`` seconds.

        The server has stopped then; async handlers that were left over got CancelledError.
        """
        drained = await asyncio.to_thread(self._server.drain, grace)
        await self.stop()
        return drained

    async def stop(self) -> None:
        """Close everything now; async handlers that run get CancelledError. Waits until all have returned."""
        await asyncio.to_thread(self._server.stop)
        if self._server.lane is not None:
            await self._server.lane.close_here()
        self._ended.set()

    def __await__(self) -> Generator[Any, None, Server]:
        return self.start().__await__()

    async def __aenter__(self) -> Server:
        return self if self.started else await self.start()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()


def serve(*services: object, listen: str | Sequence[str] = "rrpc://127.0.0.1:7471", **options: Any) -> Server:
    """Makes a ``Server``, to be started: ``server = await rrpc.aio.serve(...)``, or with ``async with``.

    Args:
        *services: Instances of classes decorated with ``rrpc.service``, at least one.
        listen: An address, or several. Port 0 takes a free one, which ``addresses`` of the server names.
        **options: All others of ``rrpc.Server``.

    Returns:
        The server, which listens and takes calls once it is started. Starting it raises AddressInUse where somebody
        else listens, InvalidArgument where an address has no such form, and Unavailable where the transport can't be
        used.

    Raises:
        TypeError: An argument isn't of the type that it must be, or there is no option of that name.
        ValueError: ``workers``, ``max_concurrency`` or ``max_queue`` is too small, or two services have one name.
        InvalidArgument: Another option can't have that value.
        AnnotationError: A service's annotations can't be served.
    """
    return Server(*services, listen=listen, **options)
