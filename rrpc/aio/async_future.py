"""The future of a call in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._call.chain import Chain
from rrpc._call.context import enter
from rrpc.errors import RpcError, goes_elsewhere
from rrpc.metadata import EMPTY, unpack

from .loop_callbacks import Driven

if TYPE_CHECKING:
    from rrpc._call.context import Around, Context
    from rrpc._channel import Channel, Connection

__all__ = ["Future", "Watched"]

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
    again: tuple[Any, ...] | None = None
    """For a call that turns out never to have reached a handler: what makes it again, its arguments, its end by the
    clock, and what else that takes."""
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
        make, arguments, end, *rest = again
        try:
            self._go(make(arguments, None if end is None else end - monotonic(), *rest))
        except Exception as raised:
            self.set_exception(raised)

    def _go(self, chain: Chain) -> None:
        self._chain = chain
        self.call = driven = Driven(chain, self.get_loop(), self._ended)
        driven.go()

    def _ended(self, value: Any, error: BaseException | None) -> None:
        if self.done():
            return
        if isinstance(error, asyncio.CancelledError):
            super().cancel()
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(value)


class Watched(Future[_T]):
    """A future whose channel is told of its end, by which the channel picks connections.

    It ends with the handler's call that it is made in, whose deadline is its own too.
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

    def timeout_of(self, timeout: float | None) -> float | None:
        """Returns ``timeout``, limited by the time that the handler's call has left."""
        return timeout if self._around is None else self._around.timeout_of(timeout)

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

    def _failed(self, error: RpcError) -> None:
        variables = Variables()  # in which a call that is made again inherits what this one did
        variables.run(enter, self._around)
        variables.run(super()._failed, error)
