"""Carries out the steps of calls for blocking clients.

``run`` has the calling thread wait for whatever a course asks for. ``CallbackCall`` is for calls that no thread waits
for, such as futures: they go their course in callbacks. ``run_attempts`` carries out the steps of a call with streams.
"""

# `run` and `run_attempts` hold the calling thread until the end. A `CallbackCall` has no thread of its own: it goes
# on in whichever thread brings an outcome, a thread of rrpc's or one that waits for a call, so nothing here may
# block.

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from functools import partial
from time import sleep
from typing import Any

from rrpc import _core
from rrpc._call.callbacks import CallbackDriver, Slept, Wait, Waited
from rrpc._call.chain import REFUSED, Chain, Steps, drive, follow
from rrpc._call.outgoing import OutgoingCall
from rrpc._call.steps import Exchange, Sleep, Waiting
from rrpc._call.stream_attempts import Another, Attempts, Deliver, Receive, Reply, Send
from rrpc._channel.timers import after, elsewhere
from rrpc._fork import process_lock
from rrpc._options import deadline_after, time_until
from rrpc.errors import Cancelled, RpcError, unsent
from rrpc.metadata import Metadata

# Held for a few assignments only. Callbacks are called after it was released.
lock = process_lock()
"""Guards the ends of calls, of futures too."""
# Seconds that a waiting thread gives the callback, which ends the call on another thread, once the reply is here.
_CALLBACK_SECONDS = 0.001
_making = process_lock()  # guards the making of locks
# Seconds between two looks at an attempt that another thread is making.
_FOLLOW_S = 0.01


def run(chain: Chain) -> Any:
    """Carries a call out, and returns its result."""
    try:
        return carry_out(chain)
    finally:
        chain.call.end()


def carry_out(chain: Chain) -> Any:
    """Carries a course out to its end, which may not be the call's."""
    return drive(chain, partial(_do, chain.call))


def _do(call: OutgoingCall, asked: Any) -> Any:
    if type(asked) is Exchange:
        return _exchange(call, asked)
    if type(asked) is Waiting:
        return _wait(call, asked)
    return _sleep(call, asked.seconds) if type(asked) is Sleep else REFUSED


def _exchange(call: OutgoingCall, exchange: Exchange) -> tuple[bytes, Any, bytes]:
    handle = exchange.start()
    try:
        # An earlier cancel of the call takes effect here at once.
        call.interrupt_with(handle.cancel)
        payload, blocks = handle.result()
    except Exception:
        # An Exception is the outcome of the core's call, which has ended.
        raise
    except BaseException:  # Ctrl-C: the caller goes, so the call does
        handle.cancel()
        raise
    finally:
        call.interrupt_with(None)
    return payload, blocks, handle.metadata()


def _sleep(call: OutgoingCall, seconds: float) -> None:
    seconds, late = call.nap(seconds)
    woken = threading.Event()
    call.interrupt_with(woken.set)
    # `cancel` sets the event too, so check() finds out what ended the sleep.
    woken.wait(seconds)
    call.interrupt_with(None)
    call.check(late)


def _wait(call: OutgoingCall, asked: Waiting) -> Any:
    future = asked.future
    call.interrupt_with(future.cancel)
    try:
        if asked.drive is not None:
            # Polls the connection in this thread for a while, which saves waking another one for the reply.
            asked.drive(call.time_left())
        return future.result(call.time_left())
    except (concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
        if not future.cancel():
            return future.result()  # it has just ended; or raised DeadlineExceeded, which is a TimeoutError
        raise asked.late() from None
    except BaseException:  # Ctrl-C: the caller goes, so what it waits for does
        future.cancel()
        raise
    finally:
        call.interrupt_with(None)


class CallbackCall(CallbackDriver):
    """Carries out a call in callbacks, on the threads on which they come. It is used like a ``_core.Call``.

    ``go_on`` begins it. No thread waits for it, unless somebody waits for its result.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain)
        self._ended = threading.Event()
        self._callbacks: list[Callable[[], object]] = []
        self._value: Any = None
        self._error: BaseException | None = None
        self.handle: _core.Call | None = None
        """The core's, of the exchange that it waits for."""

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self.call.channel.check_process()
        deadline = deadline_after(timeout)
        while not self._ended.is_set():
            left = time_until(deadline)
            # Read once: the thread that brings the outcome sets it to None.
            handle = self.handle
            if handle is None or left == 0.0:
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
        """Ends the call for those who wait. The chain comes to its own end when its links have been told."""
        if self._ended.is_set() or not self.call.channel.of_this_process:
            return False
        self.call.cancel()
        error = Cancelled("the call was cancelled by its caller")
        callbacks = self._settle(None, error if self.call.attempt else unsent(error))
        if callbacks:
            elsewhere(partial(_call_all, callbacks))
        return callbacks is not None or self.cancelled()

    def cancelled(self) -> bool:
        return isinstance(self._error, Cancelled) and self.call.cancelled

    def metadata(self) -> Metadata:
        return self.call.reply_metadata

    def on_done(self, callback: Callable[[], object]) -> None:
        with lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        # Called without the lock, as users' code may take any lock of its own.
        callback()

    def later(self, seconds: float, do: Callable[[], object]) -> Any:
        return after(seconds, do)

    def soon(self, do: Callable[..., object], *arguments: Any) -> None:
        elsewhere(partial(do, *arguments))

    def come_back(self, do: Callable[..., object], *arguments: Any) -> None:
        do(*arguments)

    def end(self, value: Any, error: BaseException | None) -> None:
        self.call.end()
        _call_all(self._settle(value, error) or [])

    def _settle(self, value: Any, error: BaseException | None) -> list[Callable[[], object]] | None:
        """Ends the call. Returns the callbacks to be called; None if it had ended."""
        with lock:
            if self._ended.is_set():
                return None
            self._value, self._error = value, error
            callbacks, self._callbacks = self._callbacks, []
            self._ended.set()
        return callbacks


class _Exchanging(Wait):
    __slots__ = ()

    def begin(self, driver: CallbackCall, asked: Exchange) -> None:
        # Set before on_done(), whose callback resets it.
        handle = self._begun = driver.handle = asked.start()
        driver.call.interrupt_with(handle.cancel)
        handle.on_done(self._over)

    def _over(self) -> None:
        driver, handle = self.take(), self._begun
        if driver is None:
            return  # it was given up
        driver.handle = None
        # The call has ended, so a timeout of 0 never expires. Any error goes to the course: nobody else would end it.
        try:
            reply = (*handle.result(0.0), handle.metadata())
        except BaseException as error:
            driver.go_on(None, error)
            del self, driver  # which the error's traceback would hold
        else:
            driver.go_on(reply)

    def give_up(self) -> bool:
        given_up = super().give_up()
        if self._begun is not None:
            self._begun.cancel()
        return given_up


CallbackCall.waits = {Exchange: _Exchanging, Waiting: Waited, Sleep: Slept}


def _call_all(callbacks: list[Callable[[], object]]) -> None:
    for callback in callbacks:
        callback()


def run_attempts(steps: Steps) -> Any:
    """Carries out steps of a stream's attempts, and returns their result."""
    return follow(steps, _do_attempts)


def _do_attempts(asked: Any) -> Any:
    return _ATTEMPTS[type(asked)](asked)


def _another(asked: Another) -> None:
    attempts = asked.attempts
    with _making:
        if attempts.making is None:
            attempts.making = threading.RLock()
    with attempts.making:
        # Any thread that meets the failed attempt may come here: the first one makes the next attempt, and the others
        # wait.
        if asked.core is not attempts.core:
            return  # another thread has made it
        if attempts.under_way:
            raise asked.error  # in a callback, which runs while this thread makes it
        follow(attempts.another(asked), carry_out)


_ATTEMPTS: dict[type, Callable[[Any], Any]] = {
    Another: _another,
    Send: lambda asked: asked.core.send(*asked.argument),
    Receive: lambda asked: asked.core.receive(asked.argument, None),
    Reply: lambda asked: asked.core.result(),
    Deliver: lambda asked: asked.core.wait_delivered(time_until(asked.argument)),
}


def has_ended(attempts: Attempts) -> bool:
    """Returns whether the call has ended. Makes another attempt where one is due."""
    core = attempts.core
    ended = attempts.ended()
    if ended is not None:
        return ended
    try:
        _another(Another(attempts, core, RpcError()))
    except RpcError:
        return True
    return False


def tell_end(attempts: Attempts, callback: Callable[[], object]) -> None:
    """Calls ``callback()`` once the last attempt has ended."""
    attempts.core.on_end(partial(_tell_end, attempts, callback))


def _tell_end(attempts: Attempts, callback: Callable[[], object]) -> None:
    if not attempts.goes_on():
        callback()
        return
    # Another attempt is made by whoever waits for the call. Nobody may: this thread mustn't.
    thread = threading.Thread(target=_tell_later, args=(attempts, callback), name="rrpc-attempt", daemon=True)
    thread.start()


def _tell_later(attempts: Attempts, callback: Callable[[], object]) -> None:
    while attempts.under_way:
        sleep(_FOLLOW_S)
    if has_ended(attempts):
        callback()
    else:
        tell_end(attempts, callback)
