"""Carries out the steps of calls in asyncio, in callbacks of the loop and without a task.

``AsyncCallbackCall`` carries out the course of any call, ``carry_out`` one that is awaited. ``run_attempts`` carries
out the steps of a call with streams.
"""

# All of this runs in the thread of the call's loop, but for `soon` and `come_back`, by which other threads reach it.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from rrpc._call.callbacks import CallbackDriver, Slept, Wait, Waited
from rrpc._call.chain import Chain, Steps, follow_async
from rrpc._call.outgoing import OutgoingCall
from rrpc._call.steps import Exchange, Sleep, Waiting
from rrpc._call.stream_attempts import Another, Deliver, Receive, Reply, Send
from rrpc._core import Awaited
from rrpc.errors import RpcError

from .loop_driver import running_driver
from .stream_waits import changed, delivered

Tell = Callable[[Any, "BaseException | None"], object]


class AsyncCallbackCall(CallbackDriver):
    """Carries out one call, in the context (contextvars) of its creator, and calls ``tell(value, error)`` at its end.

    Only a coroutine that an interceptor awaits takes a task, and no longer than it lasts.
    """

    def __init__(self, chain: Chain, loop: asyncio.AbstractEventLoop, tell: Tell) -> None:
        super().__init__(chain)
        self.loop = loop
        self.context = copy_context()
        self._tell: Tell | None = tell

    def cancel(self) -> None:
        """Gives up the present wait. The course goes on with CancelledError."""
        if self._wait is not None:
            wait, self._wait = self._wait, None
            if wait.give_up():
                self.soon(self.go_on, None, asyncio.CancelledError())
        elif self._tell is not None:
            self.soon(self.cancel)  # a link that runs cancels its own call

    def go(self, value: Any = None, error: BaseException | None = None, asked: Any = None) -> None:
        """Does what ``go_on`` does, in the call's context."""
        self.context.run(self.go_on, value, error, asked)

    def later(self, seconds: float, do: Callable[[], object]) -> asyncio.TimerHandle:
        """Has ``do()`` called in the call's context, after so many seconds."""
        return self.loop.call_later(seconds, do, context=self.context)

    def soon(self, do: Callable[..., object], *arguments: Any) -> None:
        """Has it called in one of the loop's next rounds, in the call's context. Any thread may call this."""
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self.loop.call_soon_threadsafe(do, *arguments, context=self.context)

    come_back = soon

    def end(self, value: Any, error: BaseException | None) -> None:
        """Tells the outcome."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(value, error)
        # asyncio lets these two end the loop, whichever callback raises them.
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error


class _Exchanging(Wait):
    __slots__ = ()

    def begin(self, driver: AsyncCallbackCall, asked: Exchange) -> None:
        loop_driver = running_driver()
        start = asked.connection.core.start_in_loop
        handle = self._begun = asked.handle = start(loop_driver, self, *asked.arguments)
        loop_driver.poll_soon()
        driver.call.interrupt_with(handle.cancel)

    def arrived(self, payload: bytes | None, rest: Any) -> None:
        """Takes the reply (``payload`` and its blocks) or, with ``payload`` None, the error."""
        driver = self.take()
        if driver is None:
            return
        if payload is None:
            driver.go(None, rest)
        else:
            driver.go((payload, rest, self._begun.metadata()))

    def give_up(self) -> bool:
        if self._begun is not None:
            self._begun.cancel()
        return super().give_up()


class _Awaited(Wait):
    """Waits for an awaitable that an interceptor yielded. A coroutine runs in a task of its own."""

    __slots__ = ("_late",)

    def begin(self, driver: AsyncCallbackCall, asked: Any) -> None:
        self._late = False
        future = self._begun = asyncio.ensure_future(asked, loop=driver.loop)
        left = driver.call.time_left()
        self._timer = None if left is None else driver.later(left, self._cut_short)
        driver.call.interrupt_with(lambda: driver.soon(future.cancel))
        future.add_done_callback(self._over, context=driver.context)

    def _cut_short(self) -> None:
        self._late = True
        self._begun.cancel()

    def _over(self, future: asyncio.Future[Any]) -> None:
        driver = self.take()
        if driver is None:
            return
        if future.cancelled():
            driver.go_on(None, self._why(driver.call))
        else:
            error = future.exception()
            driver.go_on(None if error is not None else future.result(), error)

    def _why(self, call: OutgoingCall) -> BaseException:
        try:
            call.check(self._late)
        except RpcError as error:
            return error
        return asyncio.CancelledError()

    def give_up(self) -> bool:
        # It may take its time to end, or take no notice, as where a task awaits it.
        return (self._begun is None or not self._begun.cancel()) and super().give_up()


AsyncCallbackCall.waits = {Exchange: _Exchanging, Waiting: Waited, Sleep: Slept}
AsyncCallbackCall.other_waits = _Awaited


def tell(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Ends a future with the outcome of a course, unless it has ended."""
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        # Past the cancel() of a subclass, which would cancel the call.
        asyncio.Future.cancel(future)
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class _Carried(asyncio.Future[Any]):
    """Holds the outcome of a course. Cancelling it gives up what the course waits for, as it is with tasks."""

    def __init__(self, chain: Chain, asked: Any) -> None:
        super().__init__()
        self._call = AsyncCallbackCall(chain, self.get_loop(), partial(tell, self))
        self._call.go(asked=asked)

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        self._call.cancel()
        return True


def carry_out(chain: Chain, asked: Any = None) -> Awaitable[Any]:
    """Carries a course out to its end, which may not be the call's.

    ``asked`` is what the first step gave, if it has been taken.
    """
    return _Carried(chain, asked)


def run_attempts(steps: Steps) -> Awaitable[Any]:
    """Carries out steps of a stream's attempts; await it for their result."""
    return follow_async(steps, _do_attempts)


def _do_attempts(asked: Any) -> Awaitable[Any]:
    return _ATTEMPTS[type(asked)](asked)


async def _another(asked: Another) -> None:
    if asked.attempts.core is asked.core:
        # Others may wait for the same attempt, which goes on where one of them is cancelled.
        await asyncio.shield(make_another(asked))


def make_another(asked: Another) -> asyncio.Task[None]:
    """Returns the task that makes another attempt; begins it if nobody has. Raises the call's error."""
    attempts = asked.attempts
    if attempts.making is None:
        steps = attempts.another(asked)
        chain = next(steps)
        attempts.making = asyncio.ensure_future(_make(asked, steps, chain))
        attempts.making.add_done_callback(look_at)
    made: asyncio.Task[None] = attempts.making
    return made


async def _make(asked: Another, steps: Steps, chain: Chain) -> None:
    try:
        await carry_out(chain)
    except BaseException as error:
        steps.throw(error)
    finally:
        steps.close()
        asked.attempts.making = None


def look_at(task: asyncio.Task[Any]) -> None:
    """Takes the exception of a task that nobody may be waiting for any more."""
    if not task.cancelled():
        task.exception()


async def _send(asked: Send) -> None:
    # News may come without room, as where another task took it: so this tries again each time.
    while not asked.core.try_send(*asked.argument):
        await changed(asked.core, Awaited.ROOM)


async def _receive(asked: Receive) -> list[Any]:
    while (batch := asked.core.try_receive(asked.argument)) is None:
        await changed(asked.core, Awaited.ITEMS)
    return batch


async def _reply(asked: Reply) -> Any:
    while not asked.core.done():
        await changed(asked.core, Awaited.END)
    return asked.core.result()


async def _deliver(asked: Deliver) -> None:
    await delivered(asked.core)


_ATTEMPTS: dict[type, Callable[[Any], Awaitable[Any]]] = {
    Another: _another,
    Send: _send,
    Receive: _receive,
    Reply: _reply,
    Deliver: _deliver,
}
