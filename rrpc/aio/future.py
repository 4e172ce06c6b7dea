"""The future of a call in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

from rrpc.errors import RpcError, goes_elsewhere
from rrpc.interceptors import Chain
from rrpc.metadata import EMPTY, unpack

from .driving import run

__all__ = ["Future"]

_T = TypeVar("_T")


class Future(asyncio.Future[_T]):
    """A call in flight, of the loop it was started in; await it. Cancelling it cancels the call.

    A failed call raises its :class:`rrpc.RpcError`.
    """

    # Set by who starts the call.
    call: Any
    """The core's, or a task: what is cancelled."""
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
        """For a call that isn't plain; it is begun."""
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
        """What the server sent with the reply or the error, once the call is done."""
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
        self.call = task = self.get_loop().create_task(run(chain))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if self.done():
            return
        if task.cancelled():
            super().cancel()
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())
