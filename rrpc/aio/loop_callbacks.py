"""Calls that aren't plain, in asyncio: they go their course in callbacks of the loop, without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from rrpc._call.chain import Chain, Sleep
from rrpc._call.outgoing import Exchange, OutgoingCall, Waiting
from rrpc.errors import RpcError

from .loop_driver import running_driver

__all__ = ["Driven"]

Tell = Callable[[Any, "BaseException | None"], object]


class Driven:
    """One call, in the context (contextvars) of who began it by ``go``; its end is told to ``tell(value, error)``.

    Only what an interceptor awaits takes a task, and no longer than that lasts.
    """

    def __init__(self, chain: Chain, loop: asyncio.AbstractEventLoop, tell: Tell) -> None:
        self.call: OutgoingCall = chain.call
        self.loop = loop
        self._chain = chain
        self._tell: Tell | None = tell
        self._context = copy_context()
        self._wait: _Wait | None = None

    def cancel(self) -> None:
        """Nobody waits for it: what it waits for is given up, and its course goes on with CancelledError."""
        if self._wait is not None:
            wait, self._wait = self._wait, None
            if wait.give_up():
                self.soon(self._go, None, asyncio.CancelledError())
        elif self._tell is not None:
            self.soon(self.cancel)  # a link that runs cancels its own call

    def go(self, value: Any = None, error: BaseException | None = None) -> None:
        """Go on with what came of the last step, until there is something to wait for."""
        self._context.run(self._go, value, error)

    def soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        """In one of the next rounds of the loop, in the call's context; from any thread."""
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self.loop.call_soon_threadsafe(callback, *arguments, context=self._context)

    def _go(self, value: Any, error: BaseException | None) -> None:
        chain = self._chain
        self._wait = None
        try:
            while True:
                asked = chain.step(value, error)
                if chain.done:
                    break
                value = error = None
                try:
                    self._wait = _WAITS.get(type(asked), _Awaited)(self, asked)
                    return
                except BaseException as raised:
                    error = raised
        except BaseException as raised:
            self._end(None, raised)
        else:
            self._end(asked, None)
        finally:
            error = None  # whose traceback holds this frame

    def _end(self, value: Any, error: BaseException | None) -> None:
        self.call.end()
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(value, error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error


class _Wait:
    """Something that the course has asked for, under way: it goes on with what comes of it, unless it was given up."""

    __slots__ = ("_driven",)

    def __init__(self, driven: Driven) -> None:
        self._driven: Driven | None = driven

    def give_up(self) -> bool:
        """Gives up the wait and ignores its outcome. Returns False if the call still waits for it."""
        self._ended()
        return True

    def _ended(self) -> Driven | None:
        """Ends the wait. Returns the ``Driven`` that continues the call, the first time; then None."""
        driven, self._driven = self._driven, None
        if driven is not None:
            driven.call.interrupt_with(None)
        return driven


class _Exchanging(_Wait):
    __slots__ = ("_handle",)

    def __init__(self, driven: Driven, exchange: Exchange) -> None:
        super().__init__(driven)
        queue = running_driver()
        start = exchange.connection.core.start_in_loop
        handle = self._handle = exchange.handle = start(queue.queue, self, *exchange.arguments)
        queue.poll_soon()
        driven.call.interrupt_with(handle.cancel)

    def arrived(self, payload: bytes | None, rest: Any) -> None:
        driven = self._ended()
        if driven is None:
            return
        if payload is None:
            driven.go(None, rest)
        else:
            driven.go((payload, rest, self._handle.metadata()))

    def give_up(self) -> bool:
        self._handle.cancel()
        return super().give_up()


class _Waited(_Wait):
    """A wait for a connection, or for several attempts."""

    __slots__ = ("_timer", "_waiting")

    def __init__(self, driven: Driven, waiting: Waiting) -> None:
        super().__init__(driven)
        self._waiting = waiting
        left = driven.call.time_left()
        self._timer = None if left is None else driven.loop.call_later(left, waiting.future.cancel)
        driven.call.interrupt_with(waiting.future.cancel)
        waiting.future.add_done_callback(lambda _: driven.soon(self._over))

    def _over(self) -> None:
        driven, waiting = self._ended(), self._waiting
        if driven is None:
            return
        error = waiting.late() if waiting.future.cancelled() else waiting.future.exception()
        driven._go(None if error is not None else waiting.future.result(), error)

    def give_up(self) -> bool:
        super().give_up()
        self._waiting.future.cancel()
        return True

    def _ended(self) -> Driven | None:
        if self._timer is not None:
            self._timer.cancel()
        return super()._ended()


class _Slept(_Wait):
    __slots__ = ("_late", "_timer")

    def __init__(self, driven: Driven, sleep: Sleep) -> None:
        super().__init__(driven)
        seconds, self._late = driven.call.nap(sleep.seconds)
        self._timer = driven.loop.call_later(seconds, self._over, context=driven._context)
        driven.call.interrupt_with(lambda: driven.soon(self._over))

    def _over(self) -> None:
        driven = self._ended()
        if driven is None:
            return
        try:
            driven.call.check(self._late)
        except RpcError as error:
            driven._go(None, error)
        else:
            driven._go(None, None)

    def _ended(self) -> Driven | None:
        self._timer.cancel()
        return super()._ended()


class _Awaited(_Wait):
    """A wait for an awaitable that an interceptor yielded. A coroutine runs in a task of its own."""

    __slots__ = ("_future", "_late", "_timer")

    def __init__(self, driven: Driven, awaitable: Any) -> None:
        super().__init__(driven)
        future = self._future = asyncio.ensure_future(awaitable, loop=driven.loop)
        left = driven.call.time_left()
        self._late = False
        self._timer = None if left is None else driven.loop.call_later(left, self._cut_short)
        driven.call.interrupt_with(lambda: driven.soon(future.cancel))
        future.add_done_callback(self._over, context=driven._context)

    def _cut_short(self) -> None:
        self._late = True
        self._future.cancel()

    def _over(self, future: asyncio.Future[Any]) -> None:
        driven = self._ended()
        if driven is None:
            return
        if future.cancelled():
            driven._go(None, self._why(driven.call))
        else:
            error = future.exception()
            driven._go(None if error is not None else future.result(), error)

    def _why(self, call: OutgoingCall) -> BaseException:
        try:
            call.check(self._late)
        except RpcError as error:
            return error
        return asyncio.CancelledError()

    def _ended(self) -> Driven | None:
        if self._timer is not None:
            self._timer.cancel()
        return super()._ended()

    def give_up(self) -> bool:
        # It may take its time to end, or take no notice, as where a task awaits it.
        return not self._future.cancel() and super().give_up()


_WAITS: dict[type, Callable[[Driven, Any], _Wait]] = {
    Exchange: _Exchanging,
    Waiting: _Waited,
    Sleep: _Slept,
}
