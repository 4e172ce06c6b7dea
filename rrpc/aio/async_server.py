"""The asyncio server: async handlers run in the loop that starts it, synchronous ones in worker threads."""

# The methods run in the loop. What blocks in the core (listening, draining, stopping) runs in threads of its
# executor.

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

from rrpc._server.server import BaseServer


class Server(BaseServer):
    """Serves instances of service classes, whose methods may be ``async def`` or synchronous, side by side.

    Arguments as of ``rrpc.Server``. Async handlers run in the event loop in which the server is started, up to
    ``max_concurrency`` at a time (1024 where nothing is said); synchronous ones in ``workers`` threads. Once nobody
    waits for its reply any more, an async handler gets ``asyncio.CancelledError``.
    As an async context manager it starts, and stops at the end.
    """

    def __init__(self, *services: object, listen: str | Sequence[str] = (), **options: Any) -> None:
        super().__init__(*services, listen=listen, **options)
        self._ended = asyncio.Event()

    async def start(self) -> Server:
        """Listen, and take calls from now on, those of async methods in this loop. ``await server`` does the same."""
        # Not left to `_start`, which runs in another thread and would open a loop of its own.
        if self.async_handlers is not None:
            self.async_handlers.open_here()
        await asyncio.to_thread(self._start)
        return self

    async def listen(self, address: str) -> str:
        """Listen on one more address; gives the one really bound; else InvalidArgument, AddressInUse, Unavailable."""
        return await asyncio.to_thread(self._listen_on, address)

    async def wait(self) -> None:
        """Waits until the server has been stopped or drained."""
        await self._ended.wait()

    async def drain(self, grace: float | None = None) -> bool:
        """Refuse new calls, let running ones end and results be fetched; True if all that within ``grace`` seconds.

        The server has stopped then; async handlers that were left over got CancelledError.
        """
        drained = await asyncio.to_thread(self._drain, grace)
        await self.stop()
        return drained

    async def stop(self) -> None:
        """Close everything now; async handlers that run get CancelledError. Waits until all have returned."""
        await asyncio.to_thread(self._stop, None)
        if self.async_handlers is not None:
            await self.async_handlers.close_here()
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
