"""Async handlers: the calls that a server gives to an event loop, and the tasks that run them there.

No task is made for a call. A runner is a task that handles one call after the other; while its handler waits for
something it is busy with that alone, and others go on. What a handler leaves behind, in the context (contextvars) or
as a cancellation, goes with its runner: that one ends, and the next call gets a new one.
"""

# All of this runs in the thread of the server's loop, but for `running`, which any thread may call. So nothing has a
# lock.

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from contextvars import copy_context
from time import monotonic
from typing import Any

from rrpc import _core
from rrpc._call.context import Context, enter
from rrpc._call.status import conclude
from rrpc._server.dispatch import Dispatch, Handler, check_memory
from rrpc._server.served_stream import ServedStreams
from rrpc._server.worker import CallEnds
from rrpc.errors import Cancelled
from rrpc.observe import ObservedCore

from .async_served_stream import AsyncServedStream
from .fairness import others_turn, turn_end
from .loop_driver import running_driver

# Runners that are kept without a call. Others end.
_IDLE_RUNNERS_MAX = 64


class HandlerTasks:
    """The part of a server that runs in an event loop. ``alone`` means that the server has no workers."""

    def __init__(
        self,
        core: _core.Server | ObservedCore,
        dispatch: Dispatch,
        methods: Sequence[bytes],
        alone: bool,
        max_concurrency: int,
        tracebacks: bool,
    ) -> None:
        self.core = core
        self.dispatch = dispatch
        self.tracebacks = tracebacks
        self.streams = ServedStreams(core, dispatch, tracebacks)
        self._methods = methods
        self._alone = alone
        self._max_concurrency = max_concurrency
        self._loop: asyncio.AbstractEventLoop
        self.pending: _core.LoopCalls | _Requests = _Requests(core)
        """Calls that no runner has yet."""
        self.closing = False
        # Runners that were called and haven't begun: each will take one of the pending calls.
        self._called = 0
        self._opened = False
        self._idle: list[asyncio.Future[None]] = []
        self._runners: set[_Runner] = set()
        # By the call's handle.
        self._waiting: dict[int, _Runner] = {}

    def open(self) -> None:
        """Handles calls in the running loop from now on. Called before the server listens."""
        if self._opened:
            raise RuntimeError("the server has been started already")
        self._opened = True
        driver = running_driver()
        self._loop = driver.loop
        self._context = copy_context()  # that of who opens it is the handlers'
        core = self.core
        core.serve_in_loop(driver, self, self._methods, self._max_concurrency, self._alone)
        if isinstance(core, _core.Server):
            self.pending = _core.LoopCalls(core, self.dispatch.direct(in_loop=True), driver)

    def arrived(self, handle: int | None, _: None) -> None:
        """Takes the news that calls are pending or, given a handle, that nobody waits for the reply to that call."""
        if handle is None:
            self.pending.take()
            self.call_runners(1)
        else:
            runner = self._waiting.get(handle)
            if runner is not None:
                runner.cancel()

    def call_runners(self, most: int) -> None:
        """Starts runners for pending calls; each goes on until none is left or its handler waits."""
        for _ in range(min(most, len(self.pending)) - self._called):
            self._called += 1
            self._call_runner()

    def came(self) -> None:
        """Notes that a runner that was called has begun."""
        self._called -= 1

    def _call_runner(self) -> None:
        while self._idle:
            waker = self._idle.pop()
            if not waker.done():
                waker.set_result(None)
                return
        self._runners.add(runner := _Runner(self))
        runner.task = self._context.run(self._loop.create_task, runner.run())

    async def rest(self) -> bool:
        """A runner waits for calls; False: there are enough who do."""
        if self.closing or len(self._idle) >= _IDLE_RUNNERS_MAX:
            return False
        waker = self._loop.create_future()
        self._idle.append(waker)
        try:
            await waker
        finally:
            # A cancelled waker was never called, and isn't counted.
            if not waker.cancelled():
                self.came()
        return not self.closing

    async def go_round(self) -> float:
        """A runner with more calls to handle lets the loop go round; returns the end of its next turn."""
        self._called += 1  # it will take what comes meanwhile
        try:
            return await others_turn()
        finally:
            self.came()

    def leave(self, runner: _Runner) -> None:
        """The runner ends."""
        self._runners.discard(runner)
        self.call_runners(1)

    def wait(self, handle: int, runner: _Runner) -> None:
        """Notes that a runner's handler waits, and lets others take the pending calls."""
        self._waiting[handle] = runner
        # Asked for only now: a handler that never waits can't be cancelled in its middle.
        self.core.notify_given_up(handle)
        self.call_runners(len(self.pending))

    def end_wait(self, handle: int) -> None:
        """Notes that a handler that waited has ended."""
        del self._waiting[handle]

    def running(self) -> list[str]:
        """The methods whose handlers run at this moment; from any thread."""
        contexts = [runner.context for runner in list(self._runners)]
        names = [context.method for context in contexts if context is not None and not context.ended]
        direct = self.pending.running()
        return names if direct is None else [*names, direct.decode()]

    async def close(self) -> None:
        """Cancel what runs, and wait for it; the caller, if it is a handler here, is left alone."""
        self.closing = True
        while self._idle:
            self._called += 1
            self._call_runner()
        for runner in self._waiting.values():
            if runner.task is not asyncio.current_task():
                runner.cancel()
        own = asyncio.current_task()
        self.streams.close()
        tasks = [r.task for r in self._runners if r.task is not None and r.task is not own]
        if tasks:
            await asyncio.wait(tasks)
        self.pending = _Requests(self.core)  # without the handlers, and whatever these hold


class _Runner(CallEnds):
    """A task that handles calls."""

    __slots__ = ("_spoilt", "_tasks", "context", "task")

    def __init__(self, tasks: HandlerTasks) -> None:
        super().__init__(tasks.core, tasks.dispatch, tasks.tracebacks)
        self._tasks = tasks
        self._spoilt = False
        self.context: Context | None = None
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """The handler, which waits, gets a CancelledError."""
        self._spoilt = True
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Handles calls until a handler has left something behind, or the server closes."""
        tasks, pending = self._tasks, self._tasks.pending
        tasks.came()
        self.task = asyncio.current_task()  # an eager task runs before its maker has it
        # Whoever opened the server may have been a handler, in whose context this is.
        enter(None)
        clean = copy_context()
        end = turn_end()
        try:
            while not self._spoilt:
                call = pending.next(self, self.task, clean)
                if call is None:
                    if not await tasks.rest():
                        return
                    end = turn_end()
                    continue
                if call is False:
                    return
                if call is not True:
                    waits = self._go_on(*call) if type(call) is tuple else self._begin(call)
                    call = None
                    if waits is not None:
                        await waits
                        waits = None
                        end = turn_end()
                    if not _core.is_clean(self.task, clean):
                        return
                    if len(pending) == 0 or monotonic() < end:
                        continue
                end = await tasks.go_round()
        finally:
            tasks.leave(self)

    def _begin(self, request: _core.Request) -> Coroutine[Any, Any, None] | None:
        """Handle the call; where its handler waits, the rest of that is to be awaited."""
        if request.kind:
            return self._serve(AsyncServedStream(self._tasks.streams, request), request.handle)
        core, handle, name = self._core, request.handle, request.method
        if isinstance(core, ObservedCore):
            core.begin(request)
        self.context = context = Context(core, handle, name, request.ns_left, request.metadata)
        context.task = self.task
        enter(context)
        try:
            handler = self._dispatch.handlers[name]
            if request.traced:
                handler = self._dispatch.traced(handler, context, core.stamps(handle))
            arguments, out, sizes = handler.decode(request.payload, request.buffers)
            if out is not None:
                check_memory(core, handle, out)
            coroutine = handler.function(*arguments)
            try:
                # The first step runs here, in the runner's task, so a handler that doesn't wait costs nothing more.
                waits_for = coroutine.send(None)
            except StopIteration as stop:
                self._reply(handle, handler, context, stop.value, out, sizes)
                return None
        except BaseException as error:
            self._fail(handle, context, error)
            return None
        return self._finish(handle, handler, context, _rest(coroutine, waits_for), out, sizes)

    def _go_on(
        self,
        handle: int,
        name: bytes,
        context: Context,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
        arguments: list[Any],
    ) -> Coroutine[Any, Any, None]:
        """Returns the rest of a call that ``LoopCalls`` has begun, whose handler waits; it is to be awaited."""
        self.context = context
        handler = self._dispatch.handlers[name]
        sizes = handler.plan.sizes_of(arguments) if arguments else None
        return self._finish(handle, handler, context, _rest(coroutine, waits_for), None, sizes)

    async def _serve(self, stream: AsyncServedStream, handle: int) -> None:
        """A call with streams."""
        self.context = stream.context
        stream.context.task = self.task
        self._tasks.wait(handle, self)
        try:
            await stream.serve()
        except asyncio.CancelledError:
            # The handler may have been cancelled in any place, so the task takes no other call.
            self._spoilt = True
        finally:
            self._tasks.end_wait(handle)

    async def _finish(
        self, handle: int, handler: Handler, context: Context, rest: Any, out: Any, sizes: Any
    ) -> None:
        self._tasks.wait(handle, self)
        try:
            result = await rest
            self._reply(handle, handler, context, result, out, sizes)
        except BaseException as error:
            self._spoilt = self._spoilt or isinstance(error, asyncio.CancelledError)
            self._fail(handle, context, error)
        finally:
            self._tasks.end_wait(handle)

    def _reply(
        self, handle: int, handler: Handler, context: Context, result: Any, out: Any, sizes: Any
    ) -> None:
        payload, buffers = handler.encode(result, out, sizes)
        instead = self._core.reply(handle, payload, buffers or None, buffers.out_index, context.sent)
        conclude(context, None, instead)

    def _fail(self, handle: int, context: Context, error: BaseException, own_frames: int = 1) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = Cancelled(f"{context.method}(): the handler was cancelled")
        super()._fail(handle, context, error, own_frames)


class _Requests:
    """Takes the place of ``LoopCalls`` where an observer sees each call: Python handles all of them."""

    def __init__(self, core: _core.Server | ObservedCore) -> None:
        self._core = core
        self._pending: deque[_core.Request] = deque()

    def take(self) -> None:
        self._pending.extend(self._core.next_in_loop())

    def __len__(self) -> int:
        return len(self._pending)

    def next(self, runner: _Runner, task: Any, clean: Any) -> _core.Request | None:
        return self._pending.popleft() if self._pending else None

    def running(self) -> bytes | None:
        return None


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Runs the rest of a started coroutine and returns its result. ``waits_for`` is what it yielded first."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: PERF203  (a name that stays would be a cycle with this frame)
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(sent)
    except StopIteration as stop:
        return stop.value
