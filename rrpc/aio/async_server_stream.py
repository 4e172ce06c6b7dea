"""The server's end of a call with streams, for handlers that are coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._core import Awaited
from rrpc._server.server_stream import ServerEnd

from .stream_waits import changed, delivered

if TYPE_CHECKING:
    from rrpc._server.served_stream import ServedStream

_S = TypeVar("_S")
_T = TypeVar("_T")


class ServerStream(ServerEnd[_S, _T]):
    """The ``rrpc.ServerStream`` for ``async def`` handlers: ``async for``, ``await stream.send(item)``.

    Any task of the server's event loop may send and receive. Other threads may call ``try_send``, too.
    """

    rpc_awaits = True

    def __init__(self, call: ServedStream) -> None:
        super().__init__(call)
        self._items: AsyncIterator[Any] = call.received()

    async def send(self, item: _T) -> None:
        """Sends an item, and waits while the client has no room for it. Raises the call's error."""
        payload, buffers = self._call.encode(item)
        while not self._core.try_send(payload, buffers):
            await changed(self._core, Awaited.ROOM)

    def __aiter__(self) -> AsyncIterator[_S]:
        return self

    async def __anext__(self) -> _S:
        item: _S = await anext(self._items)
        return item

    async def flush(self) -> None:
        """Waits until the client's process has all items sent so far: what they were made of may change then."""
        await delivered(self._core)

    async def wait_closed(self) -> None:
        """Waits until the call has ended, in whatever way."""
        while not self.done():
            await changed(self._core, Awaited.END)
