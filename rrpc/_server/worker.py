"""A worker of the blocking server: takes requests from the core, runs handlers, replies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rrpc import _core
from rrpc._call.context import Context, enter
from rrpc._call.status import conclude, status_of

from .dispatch import Dispatch, check_memory
from .served_stream import ServedStream, ServedStreams

if TYPE_CHECKING:
    from rrpc.observe import ObservedCore

_SHORT_BYTES = 1024
"""Of results that can always be sent."""


class CallEnds:
    """Ends calls for what runs handlers, a worker or a task of an event loop."""

    __slots__ = ("_core", "_dispatch", "_tracebacks")

    def __init__(self, core: Any, dispatch: Dispatch, tracebacks: bool) -> None:
        self._core = core
        self._dispatch = dispatch
        self._tracebacks = tracebacks

    # Called by ``DirectCalls`` and ``LoopCalls``, for the calls that they carry out.

    def _answer(self, handle: int, name: bytes, context: Context, result: Any, arguments: list[Any]) -> None:
        """Answers with a result that Python is to encode, or to tell of; ``arguments`` if its dimensions have names."""
        try:
            handler = self._dispatch.handlers[name]
            sizes = handler.plan.sizes_of(arguments) if arguments else None
            payload, buffers = handler.encode(result, None, sizes)
            instead = self._core.reply(handle, payload, buffers or None, buffers.out_index, context.sent)
        except BaseException as error:
            self._fail(handle, context, error)
        else:
            conclude(context, None, instead)

    def _failed(self, handle: int, name: bytes, error: BaseException, context: Context) -> None:
        """Answers with what the handler raised; its traceback begins with the handler."""
        self._fail(handle, context, error, own_frames=0)

    def _not_sent(self, context: Context, code: int, message: str) -> None:
        """Tells of an error that the core sent in place of a result."""
        conclude(context, None, (code, message))

    def _fail(self, handle: int, context: Context, error: BaseException, own_frames: int = 1) -> None:
        shown = context.method
        # The lookup of the method failed. A KeyError out of a handler comes with a method that is there.
        if isinstance(error, KeyError) and shown.encode() not in self._dispatch.handlers:
            error = self._dispatch.unimplemented(shown)  # it may have streams
            context.not_executed = True
        status = status_of(shown, error, self._tracebacks, own_frames)
        instead = self._core.reply_error(handle, *status, context.sent, context.not_executed)
        conclude(context, error, instead)


class Worker(CallEnds):
    """Runs in a thread of its own; one call at a time."""

    def __init__(
        self,
        core: _core.Server | ObservedCore,
        dispatch: Dispatch,
        tracebacks: bool,
        streams: ServedStreams,
        builtin: bool = False,
    ) -> None:
        """``builtin``: its calls are those of the built-in services, and only those."""
        super().__init__(core, dispatch, tracebacks)
        self._streams = streams
        self._builtin = builtin
        self._context: Context | None = None
        self._direct: _core.DirectCalls | None = None

    def running(self) -> str | None:
        """The method whose handler runs at this moment."""
        name = None if self._direct is None else self._direct.running()
        if name is not None:
            return name.decode()
        context = self._context
        return None if context is None or context.ended else context.method

    def run(self, idle_s: float | None = None, may_end: Callable[[], bool] = bool) -> None:
        """Take calls until the server has ended, or nothing has come for ``idle_s`` seconds and the worker may end.

        A worker that waits must hold no request's memory: the pool needs that back.
        """
        core, handlers, builtin = self._core, self._dispatch.handlers, self._builtin
        take, reply_next = self._taking()
        request = take(idle_s, builtin)
        while request is not None or not core.stopped():
            if request is None:
                if idle_s is not None and may_end():
                    return
                request = take(idle_s, builtin)
                continue
            if request.kind:
                stream, request = self._streams.of(request), None
                if stream is not None:
                    self._run_stream(stream)
                del stream
                request = take(idle_s, builtin)
                continue
            handle, name, traced = request.handle, request.method, request.traced
            payload, blocks = request.payload, request.buffers
            self._context = context = Context(core, handle, name, request.ns_left, request.metadata)
            request = arguments = result = None
            enter(context)
            try:
                handler = handlers[name]
                if traced:
                    handler = self._dispatch.traced(handler, context, core.stamps(handle))
                arguments, out, sizes = handler.decode(payload, blocks)
                if out is not None:
                    check_memory(core, handle, out)
                result = handler.function(*arguments)
                payload, buffers = handler.encode(result, out, sizes)
                # Nothing is to be told of a short result without metadata once it is sent, so a worker replies and
                # takes its next call in one crossing into the core. A spare thread waits for a limited time only.
                long = bool(buffers or context.sent or context.on_end) or len(payload) > _SHORT_BYTES
                short = idle_s is None and not long
                if not short:
                    instead = core.reply(handle, payload, buffers or None, buffers.out_index, context.sent)
            except BaseException as error:  # SystemExit too: a worker outlives its handlers
                blocks = arguments = result = buffers = None
                self._fail(handle, context, error)
            else:
                blocks = arguments = result = None
                if short:
                    context.ended = True
                    request = reply_next(handle, payload, builtin)
                    continue
                buffers = None
                conclude(context, None, instead)
            request = take(idle_s, builtin)
        self._direct = None  # it holds the handlers, and with them whatever these hold
        # Each worker does this; the first one ends the streams.
        self._streams.close()

    def _taking(self) -> tuple[Callable[..., _core.Request | None], Callable[..., _core.Request | None]]:
        """Returns the function that takes the next call, and the one that replies first; they run direct calls."""
        core = self._core
        if not isinstance(core, _core.Server):
            return core.next, core.reply_next
        direct = self._direct = _core.DirectCalls(core, self._dispatch.direct())
        return partial(direct.next, self), partial(direct.reply_next, self)

    def _run_stream(self, stream: ServedStream) -> None:
        self._context = stream.context
        stream.run()
        self._context = None  # a parked one runs nowhere
