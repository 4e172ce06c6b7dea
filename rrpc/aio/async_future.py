"""The future of a call in flight."""

# A future belongs to the thread of its loop, as all of asyncio's do.

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._call.chain import Chain
from rrpc.metadata import EMPTY, unpack

from .asyncio_driver import AsyncCallbackCall, tell

if TYPE_CHECKING:
    from rrpc._call.outgoing import Prepared

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
        # A cancelled call isn't made again, and nothing here keeps its arguments.
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
