"""Calls as a server saw them: what metrics and access logs are made from."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from rrpc._call.peer_names import peer_name

if TYPE_CHECKING:
    from rrpc import _core


__all__ = ["Observation", "ObservedCore", "Observer", "ServedCall"]


@dataclass(slots=True)
class ServedCall:
    """One call whose handler was asked for, once its reply is on its way."""

    method: str
    """As the caller wrote it, so it may be anything; see ``known``."""
    known: bool
    """Whether there is such a method here."""
    peer: str
    code: int
    """How the call ended; 0: with a result. The same as at the caller, but an error that the handler raised stays here
    where the caller had given the call up."""
    fetch_ns: int
    """From the request's arrival until its buffers were here too."""
    queue_ns: int
    """From there until a worker took it."""
    handler_ns: int
    """Decoding, the handler, encoding."""
    request_bytes: int
    """In the request's message (or, where that is too long for a slot, in its fetched form)."""
    request_bytes_read: int
    """In buffers fetched from the caller by remote read."""
    reply_bytes: int = 0
    reply_bytes_lifted: int = 0
    """In buffers that the caller fetches, or that are written into its memory."""
    items_received: int = 0
    """Of a call with streams. Their bytes are counted with those of request and reply, and ``handler_ns`` is all of
    its time from when a worker first took it."""
    items_sent: int = 0


Observer = Callable[[ServedCall], None]


class Observation:
    """One call, from when a worker took it to its reply."""

    __slots__ = ("_began_ns", "_call", "_observer")

    def __init__(self, core: _core.Server, observer: Observer, known: bool, request: _core.Request) -> None:
        peer, fetch_ns, queue_ns = core.call_info(request.handle) or ("", 0, 0)
        read = _read(request.buffers)
        self._observer = observer
        self._call = ServedCall(
            request.method.decode(errors="replace"),
            known,
            peer_name(peer),
            0,
            fetch_ns,
            max(queue_ns, 0),
            0,
            len(request.payload),
            read,
        )
        self._began_ns = perf_counter_ns()

    def stop(self) -> None:
        """The handler is done: what follows is no time of its."""
        self._call.handler_ns = perf_counter_ns() - self._began_ns

    def sent(self, payload: bytes, buffers: Any) -> None:
        """An item, or the reply."""
        self._call.reply_bytes += len(payload)
        self._call.reply_bytes_lifted += sum(map(_nbytes, buffers or ()))

    def counts_sent(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        """``encode`` of a stream's items, counting them."""

        def counting(*arguments: Any) -> Any:
            encoded = encode(*arguments)
            self.sent(*encoded)
            self._call.items_sent += 1
            return encoded

        return counting

    def counts_received(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        """``decode`` of a stream's items, counting them."""

        def counting(payload: bytes, blocks: Any, *arguments: Any) -> Any:
            self._call.request_bytes += len(payload)
            self._call.request_bytes_read += _read(blocks)
            self._call.items_received += 1
            return decode(payload, blocks, *arguments)

        return counting

    def end(self, code: int, instead: tuple[int, str] | None) -> None:
        """Shows the call to the observer; ``instead`` is the error sent in place of the answer with ``code``."""
        self._call.code = code if instead is None else instead[0]
        try:
            self._observer(self._call)
        except Exception:
            import logging

            logging.getLogger("rrpc.server").exception("the observer raised")


class ObservedCore:
    """Wraps the core's server for a worker and shows each call to the observer after its reply.

    It replaces the core only if there is an observer, so that nothing is spent without one. Each worker has
    its own, because a worker handles one call at a time. Calls with streams have observations of their own.
    """

    def __init__(self, core: _core.Server, observer: Observer, known: Container[bytes]) -> None:
        self._core = core
        self._observer = observer
        self._known = known
        self._call: Observation | None = None
        self.stopped, self.out_bytes = core.stopped, core.out_bytes
        # What the context of a handler asks.
        self.call_info, self.stamps = core.call_info, core.stamps
        self.is_cancelled, self.on_cancel, self.peer = core.is_cancelled, core.on_cancel, core.peer
        self.stream = core.stream

    def next(self, timeout: float | None = None, builtin: bool = False) -> _core.Request | None:
        """Returns the core's next request, and begins to observe it."""
        request = self._core.next(timeout, builtin)
        if request is not None and not request.kind:
            self.begin(request)
        return request

    def begin(self, request: _core.Request) -> None:
        """Starts observing ``request``. A worker calls this if it doesn't take its requests from ``next``."""
        self._call = Observation(self._core, self._observer, request.method in self._known, request)

    def reply(
        self, handle: int, payload: bytes, buffers: Any, out_index: int, metadata: bytes
    ) -> tuple[int, str] | None:
        """Replies as the core's ``reply`` does, and tells the observer."""
        call = self._stopped()
        instead = self._core.reply(handle, payload, buffers, out_index, metadata)
        if instead is None:
            call.sent(payload, buffers)
        call.end(0, instead)
        return instead

    def reply_next(self, handle: int, payload: bytes, builtin: bool) -> _core.Request | None:
        """Replies, then returns the next request."""
        self.reply(handle, payload, None, -1, b"")
        return self.next(None, builtin)

    def reply_error(
        self, handle: int, code: int, message: str, details: bytes, metadata: bytes, not_seen: bool
    ) -> tuple[int, str] | None:
        """Replies as the core's ``reply_error`` does, and tells the observer."""
        call = self._stopped()
        instead = self._core.reply_error(handle, code, message, details, metadata, not_seen)
        call.end(code, instead)
        return instead

    def _stopped(self) -> Observation:
        assert self._call is not None
        self._call.stop()
        return self._call


def _read(blocks: list[_core.Block] | None) -> int:
    return sum(block.nbytes for block in blocks) if blocks else 0


def _nbytes(buffer: Any) -> int:
    nbytes: int | None = getattr(buffer, "nbytes", None)
    return nbytes if nbytes is not None else memoryview(buffer).nbytes
