"""The futures of calls in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._call.chain import Chain
from rrpc.errors import RpcError, goes_elsewhere
from rrpc.metadata import EMPTY, unpack

from .asyncio_driver import AsyncCallbackCall, tell

if TYPE_CHECKING:
    from rrpc import _core
    from rrpc._call.outgoing import Prepared
    from rrpc._channel import Connection

_T = TypeVar("_T")


class Future(asyncio.Future[_T]):
    """A call in flight, of the loop it was started in; await it. Cancelling it cancels the call.

    A failed call raises its ``rrpc.RpcError``.
    """

    _call: Any
    """The core's, or one that goes its course: what is cancelled."""
    _again: Prepared | None = None
    """Makes a call again that turns out never to have reached a handler."""
    _chain: Chain | None = None

    def cancel(self, msg: Any = None) -> bool:
        """Cancels the call. Returns False if it had ended."""
        if not super().cancel(msg):
            return False
        self._again = None
        self._call.cancel()
        return True

    def metadata(self) -> Mapping[str, Any]:
        """Returns the metadata that the server sent with the reply or the error. The call must be done."""
        error = self.exception()
        if error is not None:
            found: Mapping[str, Any] = getattr(error, "metadata", EMPTY)
            return found
        return unpack(self._call.metadata()) if self._chain is None else self._chain.call.reply_metadata

    def _go(self, chain: Chain) -> None:
        self._chain = chain
        self._call = call = AsyncCallbackCall(chain, self.get_loop(), self._ended)
        call.go()

    def _ended(self, value: Any, error: BaseException | None) -> None:
        self._call.call.end()
        tell(self, value, error)


def future_of(chain: Chain, loop: asyncio.AbstractEventLoop) -> Future[Any]:
    """Begins a call that isn't plain and returns its future. ``chain`` is the call's course."""
    future: Future[Any] = Future(loop=loop)
    future._go(chain)
    return future


class RequestFuture(Future[_T]):
    """The future of a call whose request goes straight to the core, which calls ``arrived`` at the call's end.

    ``decode`` takes the reply's payload and buffers.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, prepared: Prepared, decode: Callable[[bytes, Any], _T]
    ) -> None:
        super().__init__(loop=loop)
        self._again = prepared
        self._decode = decode
        self._typed = prepared.request.error

    def send(self, connection: Connection, driver: _core.LoopDriver, *arguments: Any) -> None:
        """Has the core send the request. ``arguments`` are those of its ``start_in_loop``."""
        self._call = connection.core.start_in_loop(driver, self, *arguments)

    def arrived(self, payload: bytes | None, rest: Any) -> None:
        """Takes the reply (``payload`` and its blocks) or, with ``payload`` None, the error."""
        if self.done():
            return
        if payload is None:
            self._failed(rest)
            return
        self._again = None  # which holds the arguments
        try:
            value = self._decode(payload, rest)
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(value)

    def _failed(self, error: RpcError) -> None:
        again, self._again = self._again, None
        if again is None or not goes_elsewhere(error):
            self.set_exception(self._typed(error))
            return
        try:
            Variables().run(self._go, again.course())  # whoever's callback this is in
        except Exception as raised:
            self.set_exception(raised)


class WatchedFuture(RequestFuture[_T]):
    """A future that tells the channel how the call ended, by which the channel picks connections.

    It ends with the handler's call that it is made in.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, prepared: Prepared, decode: Callable[[bytes, Any], _T]
    ) -> None:
        super().__init__(loop, prepared, decode)
        self._channel, self._around = prepared.channel, prepared.around

    def send(self, connection: Connection, driver: _core.LoopDriver, *arguments: Any) -> None:
        """Has the core send the request."""
        self._connection = connection
        super().send(connection, driver, *arguments)
        if self._around is not None:
            self._around.adopt(self._call)

    def arrived(self, payload: bytes | None, rest: Any) -> None:
        """Takes the reply or the error, and tells the channel."""
        if self._around is not None:
            self._around.release(self._call)
        if self.done():
            return
        if payload is None:
            self._channel.failed(self._connection, rest)
        else:
            self._channel.succeeded(self._connection)
        super().arrived(payload, rest)
