"""The futures that calls give, and calls that go their course in callbacks."""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from . import _core
from .calls import Exchange, OutgoingCall, Waiting
from .channel.timers import Timer, after, elsewhere, start
from .errors import Cancelled, RpcError, goes_elsewhere, unsent
from .interceptors import Chain, Sleep
from .loops import refuse_blocking
from .metadata import EMPTY, Metadata, unpack

__all__ = ["Driven", "Future", "only"]

_T = TypeVar("_T")
_lock = threading.RLock()  # a finalizer that ends a call may run wherever it is held
_CALLBACK_SECONDS = 0.001


class Future(concurrent.futures.Future[_T]):
    """A call in flight: a ``concurrent.futures.Future``, for what takes those, too.

    Waiting drives the connection. A failed call raises its ``RpcError``, a cancelled one
    ``Cancelled``; TimeoutError (not an RpcError) means that it isn't done yet.
    """

    def __init__(
        self,
        call: _core.Call | Driven,
        decode: Callable[..., _T],
        out: Any = None,
        again: Callable[[], Chain] | None = None,
        typed: Callable[[RpcError], RpcError] | None = None,
    ) -> None:
        # Not the base's __init__: what it makes is made here when it is asked for.
        self._call = call
        self._decode: Callable[..., _T] | None = decode
        self._out = out
        self._typed = typed
        self._again = again  # for a call that turns out never to have reached a handler
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] | None = None

    def result(self, timeout: float | None = None) -> _T:
        """The call's result, waiting for it at most ``timeout`` seconds."""
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
        """Whether the call has ended, in whatever way."""
        return self._decode is None or (self._call.done() and not self._goes_on())

    def running(self) -> bool:
        """Whether the call has not ended."""
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
        """Whether the call ended by ``cancel``."""
        return self._call.cancelled()

    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        """Have ``fn(self)`` called once the call has ended: at once if it has, else on a thread of rrpc's own or in one
        that waits for a call. It must not wait for anything.

        Never amid ``cancel``, or where a call is begun or answered: ``fn`` may take a lock that is held there.
        """
        with _lock:
            first = self._callbacks is None
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(fn)
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
        end = None if timeout is None else monotonic() + timeout
        while True:
            call = self._call  # in this order: what moves on decodes in its own way before it is the call
            if (decode := self._decode) is None:
                return
            try:
                reply = call.result(timeout if timeout is None else max(0.0, timeout))
                self._end(decode(*reply, self._out), None)
            except RpcError as error:
                if not self._moves_on(call, error, Driven.go):
                    self._end(None, error if self._typed is None else self._typed(error))
                elif end is not None:
                    timeout = end - monotonic()

    def _end(self, value: Any, error: BaseException | None) -> None:
        with _lock:
            if self._decode is not None:  # else another thread was first: all get the same value
                self._value: _T = value
                self._error = error
                self._decode = self._out = self._again = None

    def _goes_on(self) -> bool:
        """Whether the call, which is done, is to be made again because no handler has seen it, or has been."""
        with _lock:
            call, again = self._call, self._again
        if again is None:
            return not call.done()
        try:
            call.result(0.0)
        except RpcError as error:
            return self._moves_on(call, error, lambda driven: elsewhere(driven.go))
        return False

    def _moves_on(self, call: Any, error: RpcError, go: Callable[[Driven], object]) -> bool:
        """Make the call again over another connection, if it may be."""
        if not goes_elsewhere(error):
            return False
        again = self._again
        # Whoever waits for it: it is the call that was begun where nothing surrounded it.
        driven = None if again is None else Driven(contextvars.Context().run(again))
        with _lock:
            if self._call is not call:
                return True
            if driven is None or self._again is None:
                return False
            self._again = None
            self._decode = only
            self._call = driven
            watched = self._callbacks is not None
        if watched:
            driven.on_done(self._ended)
        go(driven)
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
        with _lock:
            callbacks, self._callbacks = self._callbacks or [], []
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


def _anew() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_anew)


def only(value: Any, out: Any) -> Any:
    """Returns the result of a call driven by a chain unchanged, without decoding it."""
    return value


def _tell_waiters(future: Future[Any]) -> None:
    with future._condition:
        future._show_end()
        for waiter in future._waiters:
            waiter.add_cancelled(future) if future.cancelled() else waiter.add_result(future)
        future._condition.notify_all()


class Driven:
    """A call that goes its course in callbacks, on whatever thread they come; used as a ``_core.Call`` is.

    Begun by ``go``. No thread waits for it, unless somebody waits for its result.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._call: OutgoingCall = chain.call
        self._ended = threading.Event()
        self._callbacks: list[Callable[[], object]] = []
        self._value: Any = None
        self._error: BaseException | None = None
        self._handle: _core.Call | None = None

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self._call.channel.check_process()
        end = None if timeout is None else monotonic() + timeout
        while not self._ended.is_set():
            left = None if end is None else end - monotonic()
            handle = self._handle
            if handle is None or (left is not None and left <= 0):
                return self._ended.wait(left)
            # Polls the connection, whose reply thus needs no other thread to come here.
            if handle.wait(left):
                self._ended.wait(_CALLBACK_SECONDS)
        return True

    def result(self, timeout: float | None = None) -> tuple[Any]:
        if not self._ended.is_set() and not self.wait(timeout):
            raise TimeoutError("the call is not done yet")
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self
        return (self._value,)

    def cancel(self) -> bool:
        """It has ended for whoever waits; the chain comes to its own end when its links have been told."""
        if self._ended.is_set() or not self._call.channel.of_this_process:
            return False
        self._call.cancel()
        error = Cancelled("the call was cancelled by its caller")
        callbacks = self._settle(None, error if self._call.attempt else unsent(error))
        if callbacks:
            elsewhere(functools.partial(_call_all, callbacks))
        return callbacks is not None or self.cancelled()

    def cancelled(self) -> bool:
        return isinstance(self._error, Cancelled) and self._call.cancelled

    def metadata(self) -> Metadata:
        return self._call.reply_metadata

    def on_done(self, callback: Callable[[], object]) -> None:
        with _lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def go(self, value: Any = None, error: BaseException | None = None) -> None:
        """Go on with what came of the last step, until there is something to wait for."""
        chain, refused = self._chain, None
        while True:
            try:
                asked = chain.step(value, error) if refused is None else chain.refuse(refused)
            except BaseException as raised:
                self._end(None, raised)
                del (
                    self,
                    error,
                )  # the traceback would hold the call, which holds the error, until a collection
                return
            if chain.done:
                self._end(asked, None)
                return
            value = error = refused = None
            try:
                if self._begin(asked):
                    return
                refused = asked
            except BaseException as raised:
                self._abandon()
                error = raised

    def _begin(self, asked: Any) -> bool:
        """Whether it can be done here: it comes back then."""
        if type(asked) is Exchange:
            handle = self._handle = asked.start()
            self._call.interrupt_with(handle.cancel)
            handle.on_done(lambda: self._exchanged(handle))
        elif type(asked) is Waiting:
            self._wait_for(asked)
        elif type(asked) is Sleep:
            seconds, late = self._call.nap(asked.seconds)
            timer = Timer(functools.partial(self._slept, late))
            # Before it can fire, and the next step says what interrupts that.
            self._call.interrupt_with(functools.partial(elsewhere, timer.fire))
            start(seconds, timer)
        else:
            return False
        return True

    def _abandon(self) -> None:
        """Cancels the exchange that ``_begin`` started, for example if Ctrl-C came right after the start."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()

    def _exchanged(self, handle: _core.Call) -> None:
        if self._handle is not handle:
            return  # it was abandoned
        self._call.interrupt_with(None)
        self._handle = None
        try:
            reply = (*handle.result(0.0), handle.metadata())
        except RpcError as error:
            self.go(None, error)
            del self
        else:
            self.go(reply)

    def _slept(self, late: bool) -> None:
        self._call.interrupt_with(None)
        try:
            self._call.check(late)
        except RpcError as error:
            self.go(None, error)
            del self
        else:
            self.go()

    def _wait_for(self, asked: Waiting) -> None:
        future: concurrent.futures.Future[Any] = asked.future
        late = asked.late  # not `asked`, whose future keeps `ended`, and that the call's result
        left = self._call.time_left()
        timer = None if left is None else after(left, future.cancel)

        def ended(future: concurrent.futures.Future[Any]) -> None:
            self._call.interrupt_with(None)
            if timer is not None:
                timer.cancel()
            error = late() if future.cancelled() else future.exception()
            self.go(None if error is not None else future.result(), error)

        self._call.interrupt_with(functools.partial(elsewhere, future.cancel))
        future.add_done_callback(ended)

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._call.end()
        _call_all(self._settle(value, error) or [])

    def _settle(self, value: Any, error: BaseException | None) -> list[Callable[[], object]] | None:
        """Gives who is to be told; None: it had ended."""
        with _lock:
            if self._ended.is_set():
                return None
            self._value, self._error = value, error
            callbacks, self._callbacks = self._callbacks, []
            self._ended.set()
        return callbacks


def _call_all(callbacks: list[Callable[[], object]]) -> None:
    for callback in callbacks:
        callback()
