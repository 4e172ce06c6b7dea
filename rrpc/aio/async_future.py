"""The future of a call in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._call.chain import Chain
from rrpc.errors import RpcError, goes_elsewhere
from rrpc.metadata import EMPTY, unpack

from .asyncio_driver import Driven, tell

if TYPE_CHECKING:
    from rrpc._call.context import Around, Context
    from rrpc._call.outgoing import Prepared
    from rrpc._channel import Channel, Connection

_T = TypeVar("_T")


class Future(asyncio.Future[_T]):
    """A call in flight, of the loop it was started in; await it. Cancelling it cancels the call.

    A failed call raises its ``rrpc.RpcError``.
    """

    # Set by who starts the call.
    call: Any
    """The core's, or one that goes its course: what is cancelled."""
    decode: Callable[[bytes, Any], _T]
    """Takes the reply's payload and buffers."""
    typed: Callable[[RpcError], RpcError] | None = None
    """Makes of an error what the interface declares."""
    again: Prepared | None = None
    """Makes a call again that turns out never to have reached a handler."""
    _chain: Chain | None = None

    @classmethod
    def of_chain(cls, chain: Chain, loop: asyncio.AbstractEventLoop) -> Future[Any]:
        """Begins a call that isn't plain and returns its future. ``chain`` is the call's course."""
        future: Future[Any] = cls(loop=loop)
        future._go(chain)
        return future

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the call; False if it had ended."""
        if not super().cancel(msg):
            return False
        self.again = None
        self.call.cancel()
        return True

    def metadata(self) -> Mapping[str, Any]:
        """Returns the metadata that the server sent with the reply or the error. The call must be done."""
        error = self.exception()
        if error is not None:
            found: Mapping[str, Any] = getattr(error, "metadata", EMPTY)
            return found
        return unpack(self.call.metadata()) if self._chain is None else self._chain.call.reply_metadata

    def arrived(self, payload: bytes | None, rest: Any) -> None:
        """The call has ended with a reply, ``rest`` its buffers; or with the error ``rest``."""
        if self.done():
            return
        if payload is None:
            self._failed(rest)
            return
        self.again = None  # which holds the arguments
        try:
            value = self.decode(payload, rest)
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(value)

    def _failed(self, error: RpcError) -> None:
        again, self.again = self.again, None
        if again is None or not goes_elsewhere(error):
            self.set_exception(error if self.typed is None else self.typed(error))
            return
        try:
            Variables().run(self._go, again.course())  # whoever's callback this is in
        except Exception as raised:
            self.set_exception(raised)

    def _go(self, chain: Chain) -> None:
        self._chain = chain
        self.call = driven = Driven(chain, self.get_loop(), self._ended)
        driven.go()

    def _ended(self, value: Any, error: BaseException | None) -> None:
        self.call.call.end()
        tell(self, value, error)


class Watched(Future[_T]):
    """A future whose channel is told of its end, by which the channel picks connections.

    It ends with the handler's call that it is made in.
    """

    def __init__(
        self,
        channel: Channel,
        connection: Connection,
        around: Context | Around | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(loop=loop)
        self.connection = connection
        self._channel = channel
        self._around = around

    def begun(self) -> None:
        """It is under way."""
        if self._around is not None:
            self._around.adopt(self.call)

    def arrived(self, payload: bytes | None, rest: Any) -> None:
        """Takes the reply (``payload`` and its blocks) or, with ``payload`` None, the error; tells the channel."""
        if self._around is not None:
            self._around.release(self.call)
        if self.done():
            return
        if payload is None:
            self._channel.failed(self.connection, rest)
        else:
            self._channel.succeeded(self.connection)
        super().arrived(payload, rest)
