"""The driver of calls that no thread waits for: they go their course in callbacks."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from rrpc import _core
from rrpc._call.chain import Chain, Sleep
from rrpc._call.outgoing import Exchange, OutgoingCall, Waiting
from rrpc._channel.timers import Timer, after, elsewhere, start
from rrpc.errors import Cancelled, RpcError, unsent
from rrpc.metadata import Metadata

__all__ = ["Driven", "lock"]

lock = threading.RLock()  # a finalizer that ends a call may run wherever it is held
"""Guards the ends of calls, of futures too. A fork's child has another one: take it from this module each time."""
_CALLBACK_SECONDS = 0.001


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
        with lock:
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
        with lock:
            if self._ended.is_set():
                return None
            self._value, self._error = value, error
            callbacks, self._callbacks = self._callbacks, []
            self._ended.set()
        return callbacks


def _call_all(callbacks: list[Callable[[], object]]) -> None:
    for callback in callbacks:
        callback()


def _anew() -> None:
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_anew)
