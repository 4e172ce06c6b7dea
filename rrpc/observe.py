"""The one record of a call that has ended, from which access logs, metrics, call logs and spans are made.

A server's calls are recorded here, around the core's answer; ``rrpc.interceptors.outcomes`` fills in the records of
interceptors, which are at either side.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from rrpc._call.peer import Peer, peer_of
from rrpc.codec import Lent
from rrpc.errors import StatusCode

if TYPE_CHECKING:
    from rrpc import _core


__all__ = ["EndedCall", "Observation", "ObservedCore", "Observer", "ServedCall", "status_name"]

_NAMES: dict[int, str] = {code.value: code.name for code in StatusCode}


def status_name(code: int) -> str:
    """Returns the name of a status code, or the number of one that nobody knows."""
    return _NAMES.get(code) or str(code)


@dataclass(slots=True)
class EndedCall:
    """One call that has ended. What isn't known where the record is made keeps its default."""

    method: str
    """Name as the caller wrote it, so it may be anything; see ``known``."""
    known: bool = True
    """Whether there is such a method here."""
    peer: str = ""
    """The other end. At a server it is an ``rrpc.Peer``, which also says who that is."""
    code: int = 0
    """How the call ended; 0: with a result. The same as at the caller, but an error that the handler raised stays here
    where the caller had given the call up."""
    fetch_ns: int = 0
    """Time from the request's arrival until its buffers were here too."""
    queue_ns: int = 0
    """Time from then until a worker took the call."""
    handler_ns: int = 0
    """Decoding, the handler, encoding."""
    request_bytes: int = 0
    """Bytes in the request's message (or, where that is too long for a slot, in its fetched form)."""
    request_bytes_read: int = 0
    """Bytes in buffers fetched from the caller by remote read."""
    reply_bytes: int = 0
    reply_bytes_lifted: int = 0
    """Bytes in buffers that the caller fetches, or that are written into its memory."""
    items_received: int = 0
    """Of a call with streams. Their bytes are counted with those of request and reply, and ``handler_ns`` is all of
    its time from when a worker first took it."""
    items_sent: int = 0
    total_ns: int = 0
    """``fetch_ns``, ``queue_ns`` and ``handler_ns`` together."""

    @property
    def identity(self) -> str:
        """The proved identity of the caller, such as ``process:alice``; "" if there is none, and at a client."""
        return self.peer.identity if isinstance(self.peer, Peer) else ""

    @property
    def status(self) -> str:
        """The name of its status code: ``OK``, ``NOT_FOUND``."""
        return status_name(self.code)


class ServedCall(EndedCall):
    """One call whose handler was asked for, once its reply is on its way."""

    __slots__ = ()


Observer = Callable[[ServedCall], None]


class Observation:
    """One call, from when a worker took it to its reply."""

    __slots__ = ("_began_ns", "call")

    def __init__(
        self, request: _core.Request, known: Container[bytes], info: tuple[str, int, int, Any] | None
    ) -> None:
        """``known``: the methods that there are. ``info``: what the core says of the call."""
        name, blocks = request.method, request.buffers
        peer, fetch_ns, queue_ns, identity = info or ("", 0, 0, None)
        self.call = ServedCall(
            name.decode(errors="replace"),
            name in known,
            peer_of(peer, identity),
            0,
            fetch_ns,
            queue_ns if queue_ns > 0 else 0,
            0,
            len(request.payload),
            _read(blocks) if blocks else 0,
        )
        self._began_ns = perf_counter_ns()

    def stop(self) -> None:
        """The handler is done: what follows is no time of its."""
        call = self.call
        call.handler_ns = handler_ns = perf_counter_ns() - self._began_ns
        call.total_ns = call.fetch_ns + call.queue_ns + handler_ns

    def sent(self, payload: bytes, buffers: Any) -> None:
        """An item, or the reply."""
        self.call.reply_bytes += len(payload)
        if buffers:
            self.call.reply_bytes_lifted += sum(map(_nbytes, buffers))

    def counts_sent(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        """``encode`` of a stream's items, counting them."""

        def counting(*arguments: Any) -> Any:
            encoded = encode(*arguments)
            self.sent(*encoded)
            self.call.items_sent += 1
            return encoded

        return counting

    def counts_received(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        """``decode`` of a stream's items, counting them."""

        def counting(payload: bytes, blocks: Any, *arguments: Any) -> Any:
            self.call.request_bytes += len(payload)
            self.call.request_bytes_read += _read(blocks)
            self.call.items_received += 1
            return decode(payload, blocks, *arguments)

        return counting


class ObservedCore:
    """Stands in for the core's server where there is an observer, and shows that each call after its reply.

    Whoever takes calls for a server has the same one: workers, streams and the event loop.
    """

    def __init__(
        self, core: _core.Server, observer: Observer, unary: Container[bytes], with_streams: Container[bytes]
    ) -> None:
        """``unary`` and ``with_streams``: the methods that there are, by their names on the wire."""
        self._core = core
        self._observer = observer
        self._unary, self._with_streams = unary, with_streams
        self._calls: dict[int, Observation] = {}
        """Calls under way, by handle. The core gives no handle twice."""
        # The rest is the core's own; a __getattr__ would slow every attribute down.
        self.stopped, self.out_bytes, self.stream = core.stopped, core.out_bytes, core.stream
        self.call_info, self.stamps, self.peer = core.call_info, core.stamps, core.peer
        self.why_denied = core.why_denied
        self.is_cancelled, self.is_late, self.on_cancel = core.is_cancelled, core.is_late, core.on_cancel
        self.set_aside, self.bring_back = core.set_aside, core.bring_back
        self.serve_in_loop, self.next_in_loop = core.serve_in_loop, core.next_in_loop
        self.notify_given_up = core.notify_given_up

    def next(self, timeout: float | None = None, builtin: bool = False) -> _core.Request | None:
        """Returns the core's next request, and begins to observe it unless it has streams."""
        request = self._core.next(timeout, builtin)
        if request is not None and not request.kind:
            self.begin(request)
        return request

    def begin(self, request: _core.Request) -> Observation:
        """Starts observing a request that has streams or doesn't come out of ``next``."""
        handle = request.handle
        known = self._with_streams if request.kind else self._unary
        seen = self._calls[handle] = Observation(request, known, self._core.call_info(handle))
        return seen

    def reply(
        self, handle: int, payload: bytes, buffers: Any, out_index: int, metadata: bytes
    ) -> tuple[int, str] | None:
        """Replies as the core's ``reply`` does, and tells the observer."""
        call = self._calls[handle]
        call.stop()
        instead = self._core.reply(handle, payload, buffers, out_index, metadata)
        if instead is None:
            call.sent(payload, buffers)
        self.end(handle, 0, instead)
        return instead

    def reply_next(self, handle: int, payload: bytes, builtin: bool) -> _core.Request | None:
        """Replies, then returns the next request."""
        self.reply(handle, payload, None, -1, b"")
        return self.next(None, builtin)

    def reply_error(
        self, handle: int, code: int, message: str, details: bytes, metadata: bytes, not_executed: bool
    ) -> tuple[int, str] | None:
        """Replies as the core's ``reply_error`` does, and tells the observer."""
        self._calls[handle].stop()
        instead = self._core.reply_error(handle, code, message, details, metadata, not_executed)
        self.end(handle, code, instead)
        return instead

    def end(self, handle: int, code: int, instead: tuple[int, str] | None = None) -> None:
        """Shows a call to the observer; ``instead`` is the error sent in place of the answer with ``code``."""
        call = self._calls.pop(handle).call
        call.code = code if instead is None else instead[0]
        try:
            self._observer(call)
        except Exception:
            import logging

            logging.getLogger("rrpc.server").exception("the observer raised")


def _read(blocks: list[_core.Block] | None) -> int:
    return sum(block.nbytes for block in blocks) if blocks else 0


def _nbytes(buffer: Any) -> int:
    buffer = buffer.buffer if isinstance(buffer, Lent) else buffer
    nbytes: int | None = getattr(buffer, "nbytes", None)
    return nbytes if nbytes is not None else memoryview(buffer).nbytes
