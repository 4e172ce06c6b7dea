"""Calls with streams, as the workers of a blocking server run them.

A handler that generates its items runs until its client has no room for the next one. Then the stream is parked, and
the worker takes other calls; whichever worker is free goes on with the stream once there is room. A handler that
iterates over its client's items can't be suspended in the middle of its ``for``: it keeps its thread, but after a
millisecond without an item it lends its place to other calls, which run in a spare thread (``Workers.lend``).
"""

# One worker at a time runs a call, though not always the same one. Handlers that have the stream as an object may end
# it from any thread, and so may the client's end.

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from rrpc._call.context import Context, enter
from rrpc._call.received_items import received
from rrpc._call.status import conclude, status_of
from rrpc._interface import RECEIVES
from rrpc.errors import Cancelled, Internal, RpcError, StatusCode
from rrpc.observe import ObservedCore

from .server_stream import ServerStream
from .waker import Waker

if TYPE_CHECKING:
    from rrpc import _core
    from rrpc.codec import CompiledPlan

    from .dispatch import Dispatch, Handler

PARKED = 8
"""The kind of what comes out of the core's ``next``: a parked stream can go on."""

# Seconds for which a worker sends the items of one stream before it looks at other calls.
_SLICE_S = 0.005
_LEND_AFTER_S = 0.001


class ServedStreams:
    """Streams that are under way in one server."""

    def __init__(
        self,
        core: _core.Server | ObservedCore,
        dispatch: Dispatch,
        tracebacks: bool,
        lend: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.core: Any = core
        self.lend = lend
        self.dispatch = dispatch
        self.tracebacks = tracebacks
        # By the core's handle. Workers add and take streams by single operations of a dict, which need no lock.
        self.parked: dict[int, ServedStream] = {}
        self.detached: set[ServedStream] = set()
        """Calls that go on without a handler."""

    def of(self, request: _core.Request) -> ServedStream | None:
        """The one that a request of the core's is about; None: another worker has closed it."""
        handle, kind = request.handle, request.kind
        return self.parked.pop(handle, None) if kind & PARKED else ServedStream(self, request)

    def close(self) -> None:
        """The server has ended, and its calls with it: the handlers of parked streams end too."""
        with suppress(KeyError):  # that of an empty dict
            while True:
                self.parked.popitem()[1].close()
        for stream in list(self.detached):
            stream.fail(Cancelled("the server was stopped"))


class ServedStream:
    """One call, which a worker has, or none while it is parked.

    What stands around the call (``Handler.around``) may set ``map_sent`` and ``map_received`` before it asks for the
    arguments or begins it.
    """

    def __init__(self, served: ServedStreams, request: _core.Request) -> None:
        self._handle, self._name = request.handle, request.method
        self._traced, self._kind = request.traced, request.kind
        self._request: tuple[bytes, Any] | None = request.payload, request.buffers  # until it is decoded
        self._handler: Handler
        self._served = served
        self._core = served.core
        self._stream = self._core.stream(self._handle)
        self._items: Iterator[Any] | None = None
        self._arguments: Sequence[Any] = ()
        self._encode: Callable[..., tuple[bytes, Any]] = _none  # an item that the handler gives
        self._decode: Callable[..., Any] = _none  # an item that the client sent: its payload and its blocks
        # Do the same in the core, where nothing else sees the items.
        self._encode_plan: CompiledPlan | None = None
        self._decode_plan: CompiledPlan | None = None
        self.map_sent: Callable[[Any], Any] | None = None
        """Makes the item that is sent in place of the handler's."""
        self.map_received: Callable[[Any], Any] | None = None
        """Makes the item that the handler gets in place of the client's."""
        self._waiting: tuple[bytes, Any] | None = None  # an item that there was no room for
        self._put_off = False  # whether the worker is to go on with other calls first
        self._waker: Waker | None = None  # that is to bring the handler back
        self._sleeping: Waker | None = None
        self._seen = self._core.begin(request) if isinstance(self._core, ObservedCore) else None
        self._unanswered = [True]  # whoever pops it ends the call
        self.by_hand = False
        """Whether the handler has the stream as an object."""
        self.detached = False
        """Whether the call goes on when the handler has returned."""
        self._variables = contextvars.copy_context()  # the handler's own, on whichever worker
        self.context = Context(self._core, self._handle, self._name, request.ns_left, request.metadata)
        self._trace: Any = None

    def run(self) -> None:
        """Runs the call until it ends or is parked; another worker may have it when this returns."""
        if not self._variables.run(self._begin if self._items is None else self._send_items):
            return
        # Comes before park() and wait(): another worker may have the stream before they return, so nothing below uses
        # what that worker changes.
        self._served.parked[self._handle] = self
        waker, self._waker = self._waker, None
        if waker is None:
            self._stream.park()
        else:
            # Comes before the wait, as a wake that came already brings the call back at once.
            self._core.set_aside(self._handle)
            waker.wait(partial(self._core.bring_back, self._handle))

    def close(self) -> None:
        """Ends the handler, whose call has ended."""
        self._variables.run(self._close)
        if self._seen is not None:
            self._seen.stop()
            # The core ended the call together with the server, so only the observer has to be told.
            self._core.end(self._handle, StatusCode.CANCELLED)
        self._variables.run(self._conclude, Cancelled("the server was stopped"))

    def _begin(self) -> bool:
        enter(self.context)
        try:
            handler = self._find_handler()
            result = self.begin() if handler.around is None else handler.around(self)
            self.arguments()  # also where something has answered in the handler's place
            if self.by_hand:
                self.leave()
            elif self._kind & RECEIVES:
                self._items = self._iterator(result)
            else:
                self._reply(*handler.encode(result))
        except BaseException as error:
            self.handler_failed(error)
            return False
        return self._items is not None and self._send_items()

    def _find_handler(self) -> Handler:
        if self._traced:
            self._trace = self._served.dispatch.trace(self.context, self._core.stamps(self._handle))
        # What stream_of() raises reaches no handler, and the client learns that.
        self.context.not_executed = True
        self._handler = self._served.dispatch.stream_of(self._name, self._kind)
        self.context.not_executed = False
        return self._handler

    def arguments(self) -> Sequence[Any]:
        """Returns the arguments that aren't streams, decoded at first use; none once the call has begun."""
        if self._request is not None:
            self._arguments, _, sizes = self._handler.decode(*self._request)
            self._request = None
            self._translate_items(sizes)
        return self._arguments

    def _translate_items(self, sizes: Any) -> None:
        plan, seen = self._handler.plan, self._seen
        if plan.received is not None:
            encode = plan.received.encode if sizes is None else partial(plan.received.encode, sizes=sizes)
            encode = encode if seen is None else seen.counts_sent(encode)
            map_sent = self.map_sent
            self._encode = encode if map_sent is None else lambda item: encode(map_sent(item))
            self._encode_plan = plan.received.codec if seen is None and map_sent is None else None
        if plan.sent is not None:
            decode = plan.sent.decode if seen is None else seen.counts_received(plan.sent.decode)
            map_received = self.map_received
            self._decode = decode if map_received is None else lambda *item: map_received(decode(*item))
            self._decode_plan = plan.sent.codec if seen is None and map_received is None else None

    def begin(self) -> Any:
        """Call the handler, whose alone the arguments are from now on."""
        arguments, function = self.arguments(), self._handler.function
        self._arguments = ()
        if self._handler.method.stream_parameter is not None:
            self.by_hand = True
            return function(*arguments, stream=self._server_stream())
        if self._handler.plan.sent is None:
            return function(*arguments)
        return function(*arguments, self.received())

    def received(self) -> Any:
        """Returns an iterator of the client's items."""
        stream, plan = self._stream, self._decode_plan
        values = None if plan is None else partial(self._receive, partial(stream.receive_values, plan))
        return received(partial(self._receive, stream.receive), self._decode, receive_values=values)

    def _server_stream(self) -> Any:
        return ServerStream(self)

    def _receive(self, receive: Callable[..., Any], count: int, timeout: None) -> Any:
        """Receives up to ``count`` items by a function of the core's; lends the handler's place while none comes."""
        # A call without its handler has no worker's place to lend.
        if self.detached:
            return receive(count, timeout)
        with suppress(TimeoutError):
            return receive(count, _LEND_AFTER_S)
        if self._stream.done():  # says why
            return receive(count, timeout)
        with self._served.lend(self._handle):
            return receive(count, timeout)

    @property
    def core_stream(self) -> _core.Stream:
        """The core's stream of this call."""
        stream: _core.Stream = self._stream
        return stream

    def encode(self, item: Any) -> tuple[bytes, Any]:
        """Returns the payload and the buffers of an item that the server sends."""
        return self._encode(item)

    def answered(self) -> bool:
        """Returns whether the server has ended the call."""
        return not self._unanswered

    def finish(self) -> bool:
        """Ends the call after the items sent; returns False if the server has ended it."""
        # 0xc0 is None in msgpack: the result of a call whose server sends items.
        return self._answer_once(partial(self._reply, b"\xc0", None))

    def fail(self, error: BaseException) -> bool:
        """Ends the call with an error; returns False if the server has ended it."""
        return self._answer_once(partial(self._fail, error))

    def handler_failed(self, error: BaseException) -> None:
        """Ends the call for what its handler raised."""
        if not self.by_hand:
            self._fail(error)
        elif not self.fail(error) and not isinstance(error, RpcError):
            self._log_late()

    def _answer_once(self, answer: Callable[[], object]) -> bool:
        try:
            self._unanswered.pop()
        except IndexError:
            return False
        self._variables.copy().run(answer)  # the handler may be in the original
        self._served.detached.discard(self)
        return True

    def detach(self) -> None:
        """Lets the call go on without its handler."""
        if self.detached or not self._unanswered:
            return
        self.detached = True
        self._served.detached.add(self)
        self._stream.on_end(self._client_ended)

    def leave(self) -> None:
        """Ends the call, whose handler has returned, unless it was detached."""
        if not self.detached:
            self.finish()
            return
        with suppress(RpcError):  # it was answered meanwhile
            self._core.set_aside(self._handle)

    def _client_ended(self) -> None:
        self.fail(Cancelled("the client ended the call"))  # the core knows whether its deadline has passed

    def _iterator(self, result: Any) -> Iterator[Any]:
        if isinstance(result, Iterable):
            return iter(result)
        shown = type(result).__name__
        raise Internal(f"{self.context.method}(): the handler gave {shown}, and no items: let it yield them")

    def _send_items(self) -> bool:
        """True: it is to be parked."""
        try:
            send, encode = self._stream.try_send, self._encode
            if self._waiting is not None:
                if not send(*self._waiting):
                    return True
                self._waiting = None
            end = monotonic() + _SLICE_S
            items, plan = self._items, self._encode_plan
            assert items is not None
            for item in items if plan is None else self._left_over(items, plan, end):
                if type(item) is Waker:
                    return self._sleep(item)
                sent = encode(item)
                del item
                if not send(*sent):
                    self._waiting = sent
                    self._note_wait()
                    return True
                if monotonic() > end:  # others want the worker too
                    return True
            if self._put_off:
                self._put_off = False
                return True
            self._reply(b"\xc0", None)
        except BaseException as error:
            self._fail(error)
        return False

    def _left_over(self, items: Iterator[Any], plan: CompiledPlan, end: float) -> Iterator[Any]:
        """Sends items by the plan and yields those that it leaves to Python, to the last one or until ``_put_off``."""
        while True:
            left = self._stream.send_each(items, plan, max(0.0, end - monotonic()))
            if left is None:
                return
            if len(left) == 1:
                held, left = [*left], None  # so that nothing here keeps the item
                yield held.pop()
                continue
            self._put_off = True
            if left:
                self._waiting = left
                self._note_wait()
            return

    def _sleep(self, waker: Waker) -> bool:
        if self.context.cancelled:
            raise Cancelled("nobody waits for the items any more")
        if self._sleeping is not waker:
            self._sleeping = waker
            # Once for each waker, since a callback can't be taken back.
            self.context.add_cancel_callback(waker.wake)
        self._waker = waker
        return True

    def _reply(self, payload: bytes, buffers: Any) -> None:
        self._answer_trace()
        instead = self._core.reply(self._handle, payload, buffers or None, -1, self.context.sent)
        self._conclude(None, instead)

    def _fail(self, error: BaseException) -> None:
        """Fails the call with an error that the handler raised, or that ended the call meanwhile."""
        self._close()
        self._answer_trace()
        status = status_of(self.context.method, error, self._served.tracebacks)
        instead = self._core.reply_error(self._handle, *status, self.context.sent, self.context.not_executed)
        self._conclude(error, instead)

    def _note_wait(self) -> None:
        """Counts a wait for room, for the trace."""
        if self._trace is not None:
            self._trace.window_waits += 1

    def _answer_trace(self) -> None:
        if self._trace is not None:
            self._trace.ends("handler")
            self._trace.answer()

    def _conclude(self, error: BaseException | None, instead: tuple[int, str] | None = None) -> None:
        conclude(self.context, error, instead)
        self._request, self._arguments = None, ()  # who keeps the call doesn't keep their memory

    def _close(self) -> None:
        self._waiting = None
        close = getattr(self._items, "close", None)
        if close is None:
            return
        try:
            close()
        except BaseException:
            self._log_close()

    def _log_late(self) -> None:
        import logging

        logging.getLogger("rrpc.server").exception(
            "%s() raised after its call had ended", self.context.method
        )

    def _log_close(self) -> None:
        import logging

        logging.getLogger("rrpc.server").exception("%s() raised while it was closed", self.context.method)


def _none(*arguments: Any) -> Any:
    raise AssertionError("the call has no items that way")
