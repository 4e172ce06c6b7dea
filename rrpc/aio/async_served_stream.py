"""Calls with streams whose handlers are coroutines or async generators."""

# A runner's task, in the server's loop, runs the call from its beginning to its end. It is never parked.

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable
from typing import Any

from rrpc._call.context import enter
from rrpc._core import Awaited
from rrpc._interface import RECEIVES
from rrpc._server.served_stream import ServedStream
from rrpc.errors import Cancelled

from .async_server_stream import ServerStream
from .fairness import send_in_turns
from .stream_waits import changed, received


class AsyncServedStream(ServedStream):
    """One call, in a task that waits where a worker would park it."""

    async def serve(self) -> None:
        """Runs the call to its end."""
        enter(self.context)
        result: Any = None
        try:
            handler = self._find_handler()
            result = self.begin() if handler.around is None else handler.around(self)
            if inspect.isawaitable(result):
                result = await result
            self.arguments()  # also where something has answered in the handler's place
            if self.by_hand:
                self.leave()
            elif self._kind & RECEIVES:
                items = result if isinstance(result, AsyncIterable) else self._iterator(result)
                await send_in_turns(items, self._send)
                self._reply(b"\xc0", None)
            else:
                self._reply(*handler.encode(result))
        except BaseException as error:
            await self._close_async(result)
            if not isinstance(error, asyncio.CancelledError):
                self.handler_failed(error)
                return
            self.handler_failed(Cancelled(f"{self.context.method}(): the handler was cancelled"))
            raise

    async def _send(self, item: Any) -> None:
        payload, buffers = self._encode(item)
        if self._stream.try_send(payload, buffers):
            return
        self._note_wait()
        while not self._stream.try_send(payload, buffers):
            await changed(self._stream, Awaited.ROOM)

    async def _close_async(self, items: Any) -> None:
        close = getattr(items, "aclose", None) or getattr(items, "close", None)
        try:
            waits = None if close is None else close()
            if inspect.isawaitable(waits):
                await waits
        except BaseException:
            self._log_close()

    def received(self) -> Any:
        """Returns the items that the client sends, as an async iterator."""
        return received(self._stream, self._decode)

    def _server_stream(self) -> Any:
        return ServerStream(self)
