"""The futures that calls give, and calls that go their course in callbacks."""

# Any thread may use a future. Its fields change while `blocking_driver.lock` is held, one lock for all futures.

from __future__ import annotations

import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rrpc import _core
from rrpc._call.chain import Chain
from rrpc._channel.timers import elsewhere
from rrpc._options import deadline_after, time_until
from rrpc.errors import RpcError, goes_elsewhere
from rrpc.metadata import EMPTY, MetadataLike, unpack

from .blocking_driver import CallbackCall, lock
from .blocking_guard import refuse_blocking

_T = TypeVar("_T")


# Fields that a future of the core's lacks until Python asks for one of them.
_OWN = frozenset({"_call", "_decode", "_typed", "_again", "_error", "_value", "_callbacks"})


class Future(_core.DirectFuture, concurrent.futures.Future[_T]):
    """A call in flight: a ``concurrent.futures.Future``, for what takes those, too.

    Waiting drives the connection. A failed call raises its ``RpcError``, a cancelled one
    ``Cancelled``; TimeoutError (not an RpcError) means that it isn't done yet.
    """

    def __init__(
        self,
        call: _core.Call | CallbackCall,
        decode: Callable[..., _T],
        again: Callable[[], Chain] | None = None,
        typed: Callable[[RpcError], RpcError] | None = None,
    ) -> None:
        # Not the base's __init__: what it makes is made here when it is asked for.
        self._call = call
        self._decode: Callable[..., _T] | None = decode
        self._typed = typed
        self._again = again  # for a call that turns out never to have reached a handler
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] | None = None

    if TYPE_CHECKING:

        def result(self, timeout: float | None = None) -> _T:
            """Returns the call's result, waiting for it at most ``timeout`` seconds."""

    def __getattr__(self, name: str) -> Any:
        """Takes over a future that the core has made, where more is asked for than its result."""
        if name in _OWN:
            with lock:  # which nothing here waits for, nor runs what users have made
                if "_callbacks" not in self.__dict__ and (given := self._give()) is not None:
                    self._take_over(*given)
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _take_over(
        self,
        call: _core.Call,
        stub: Any,
        arguments: tuple[Any, ...],
        left: float | None,
        metadata: MetadataLike | None,
        ended: bool,
        value: _T,
    ) -> None:
        own = self.__dict__
        own.update(_call=call, _typed=stub._typed, _error=None, _callbacks=None)
        if ended:
            own.update(_value=value, _decode=None, _again=None)
        else:
            again = stub.within(arguments, left, metadata).course
            own.update(_decode=stub.decoder(arguments), _again=again)

    def _wait_result(self, timeout: float | None = None) -> _T:
        if self._decode is not None:
            self._refuse_in_coroutine(timeout)
            self._wait(timeout)
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the traceback would hold the future, and that its connection, until a collection
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Returns the exception that ``result`` would raise, or None."""
        if self._decode is not None:
            self._refuse_in_coroutine(timeout)
            self._wait(timeout)
        return self._error

    def metadata(self, timeout: float | None = None) -> Mapping[str, Any]:
        """Returns the metadata of the reply or the error; waits for it at most ``timeout`` seconds."""
        error = self.exception(timeout)
        if error is not None:
            found: Mapping[str, Any] = getattr(error, "metadata", EMPTY)
            return found
        packed = self._call.metadata()
        return unpack(packed) if isinstance(packed, bytes) else packed

    def done(self) -> bool:
        """Returns whether the call has ended, in whatever way."""
        return self._decode is None or (self._call.done() and not self._goes_on())

    def running(self) -> bool:
        """Returns whether the call has not ended."""
        return not self.done()

    def cancel(self) -> bool:
        """Cancel the call; False if it had ended."""
        for _ in range(2):  # it may move on meanwhile, once
            if self.done():
                return False
            if self._call.cancel():
                return True
        return False

    def cancelled(self) -> bool:
        """Returns whether the call ended by ``cancel``."""
        return self._call.cancelled()

    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        """Has ``fn(self)`` called once the call has ended: at once if it has.

        Else it is called on a thread of rrpc's own or in one that waits for a call, and must not wait for anything.
        It is never called amid ``cancel``, or where a call is begun or answered: ``fn`` may take a lock that is held
        there.
        """
        with lock:
            first = self._callbacks is None
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(fn)
        # Only the first callback subscribes to the call, which takes them all at its end.
        if first:
            self._call.on_done(self._ended)
        elif self.done():
            self._run_callbacks()

    def __await__(self) -> NoReturn:
        raise TypeError(
            "this future is a blocking client's: await one of rrpc.aio's clients, or asyncio.wrap_future(...) of it"
        )

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "finished" if self.done() else "running"
        return f"<rrpc.Future at {id(self):#x}, {state}>"

    def _refuse_in_coroutine(self, timeout: float | None) -> None:
        if timeout != 0 and not self._call.done():
            refuse_blocking("a future's result()", "asyncio.wrap_future(...) of it", 2)

    def _wait(self, timeout: float | None) -> None:
        deadline = deadline_after(timeout)
        while True:
            call = self._call  # in this order: what moves on decodes in its own way before it is the call
            if (decode := self._decode) is None:
                return
            try:
                reply = call.result(time_until(deadline))
                self._end(decode(*reply), None)
            except RpcError as error:
                if not self._moves_on(call, error, CallbackCall.go_on):
                    self._end(None, error if self._typed is None else self._typed(error))

    def _end(self, value: Any, error: BaseException | None) -> None:
        with lock:
            if self._decode is not None:  # else another thread was first: all get the same value
                self._value: _T = value
                self._error = error
                self._decode = self._again = None

    def _goes_on(self) -> bool:
        """Returns whether the call, which is done, is to be made again because no handler has seen it, or has been."""
        with lock:
            call, again = self._call, self._again
        if again is None:
            return not call.done()
        try:
            call.result(0.0)
        except RpcError as error:
            return self._moves_on(call, error, lambda other: elsewhere(other.go_on))
        return False

    def _moves_on(self, call: Any, error: RpcError, go: Callable[[CallbackCall], object]) -> bool:
        """Make the call again over another connection, if it may be."""
        if not goes_elsewhere(error):
            return False
        again = self._again
        other = None if again is None else CallbackCall(again())
        with lock:
            if self._call is not call:
                return True
            if other is None or self._again is None:
                return False
            self._again = None
            # `_decode` comes first: readers without the lock take the call and then its decoder.
            self._decode = only
            self._call = other
            watched = self._callbacks is not None
        if watched:
            other.on_done(self._ended)
        go(other)
        return True

    if not TYPE_CHECKING:  # where they are attributes, as the base has them
        # What concurrent.futures.wait() and as_completed() look at, with the condition held: the state mustn't change
        # meanwhile, so from their first look on it is the one that was last shown.

        @property
        def _condition(self):
            found = self.__dict__.get("_condition_")
            if found is None:
                self.__dict__.setdefault("_waiters_", [])
                mine = threading.Condition()
                found = self.__dict__.setdefault("_condition_", mine)
                if found is mine:
                    self.add_done_callback(_tell_waiters)
            return found

        @property
        def _state(self):
            return (
                self.__dict__.get("_shown_", "RUNNING")
                if "_condition_" in self.__dict__
                else self._end_state()
            )

        @property
        def _waiters(self):
            return self.__dict__.setdefault("_waiters_", [])

        def _end_state(self):
            if not self.done():
                return "RUNNING"
            return "CANCELLED_AND_NOTIFIED" if self.cancelled() else "FINISHED"

    def _show_end(self) -> None:
        self.__dict__["_shown_"] = "CANCELLED_AND_NOTIFIED" if self.cancelled() else "FINISHED"

    def _ended(self) -> None:
        # On whatever thread: where that is in a handler, what is called here is no call of that handler's.
        contextvars.Context().run(self._go_on_or_tell)

    def _go_on_or_tell(self) -> None:
        if not self._goes_on():
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        with lock:
            callbacks, self._callbacks = self._callbacks or [], []
        # Shared by both loops, so that each callback runs once.
        left = iter(callbacks)
        try:
            for callback in left:
                self._run(callback)
        finally:  # Ctrl-C may have come in one
            for callback in left:
                self._run(callback)

    def _run(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:
            import logging

            logging.getLogger("rrpc.client").exception("a done callback raised")


_core.set_future_class(Future)


def only(value: Any) -> Any:
    """Returns the result of a call that went its course, which has decoded it."""
    return value


def _tell_waiters(future: Future[Any]) -> None:
    with future._condition:
        future._show_end()
        for waiter in future._waiters:
            waiter.add_cancelled(future) if future.cancelled() else waiter.add_result(future)
        future._condition.notify_all()
