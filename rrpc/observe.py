"""Calls as a server saw them: what metrics and access logs are made from."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import _core

    _Request = tuple[int, bytes, bytes, "list[_core.Block] | None", int, bytes, int]

__all__ = ["ObservedCore", "Observer", "ServedCall"]


@dataclass(slots=True)
class ServedCall:
    """One call whose handler was asked for, once its reply is on its way."""

    method: str
    """As the caller wrote it, so it may be anything; see ``known``."""
    known: bool
    """Whether there is such a method here."""
    peer: str
    code: int
    """The reply's status code, 0 for a result."""
    fetch_ns: int
    """From the request's arrival until its buffers were here too."""
    queue_ns: int
    """From there until a worker took it. A fetch that is over within one poll, as over shared memory, counts here."""
    handler_ns: int
    """Decoding, the handler, encoding."""
    request_bytes: int
    """In the request's message (or, where that is too long for a slot, in its fetched form)."""
    request_bytes_read: int
    """In buffers fetched from the caller by remote read."""
    reply_bytes: int = 0
    reply_bytes_lifted: int = 0
    """In buffers that the caller fetches, or that are written into its memory."""


Observer = Callable[[ServedCall], None]


class ObservedCore:
    """What a worker needs of the core's server; each call is shown to the observer after its reply.

    It stands in the core's place where there is an observer, so that without one nothing is spent. One for each
    worker: a worker has one call at a time.
    """

    def __init__(self, core: _core.Server, observer: Observer, known: Container[bytes]) -> None:
        self._core = core
        self._observer = observer
        self._known = known
        self._call: ServedCall | None = None
        self._began_ns = 0
        self.stopped, self.out_bytes = core.stopped, core.out_bytes

    def next(self) -> _Request | None:
        request = self._core.next()
        if request is not None:
            self._begin(request)
        return request

    def reply(self, handle: int, payload: bytes, buffers: Any, out_index: int, metadata: bytes) -> None:
        handler_ns = perf_counter_ns() - self._began_ns
        lifted = sum(_nbytes(buffer) for buffer in buffers or ())
        self._core.reply(handle, payload, buffers, out_index, metadata)
        self._end(handler_ns, 0, len(payload), lifted)

    def reply_next(self, handle: int, payload: bytes) -> _Request | None:
        handler_ns = perf_counter_ns() - self._began_ns
        self._core.reply(handle, payload)
        self._end(handler_ns, 0, len(payload), 0)
        return self.next()

    def reply_error(
        self, handle: int, code: int, message: str, details: bytes, metadata: bytes, not_seen: bool
    ) -> None:
        handler_ns = perf_counter_ns() - self._began_ns
        self._core.reply_error(handle, code, message, details, metadata, not_seen)
        self._end(handler_ns, code, 0, 0)

    def _begin(self, request: _Request) -> None:
        handle, name, payload, blocks, *_ = request
        peer, fetch_ns, queue_ns = self._core.call_info(handle) or ("", 0, 0)
        read = sum(block.nbytes for block in blocks) if blocks else 0
        self._call = ServedCall(
            name.decode(errors="replace"),
            name in self._known,
            peer,
            0,
            fetch_ns,
            max(queue_ns, 0),
            0,
            len(payload),
            read,
        )
        self._began_ns = perf_counter_ns()

    def _end(self, handler_ns: int, code: int, reply_bytes: int, lifted_bytes: int) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        call.handler_ns, call.code = handler_ns, code
        call.reply_bytes, call.reply_bytes_lifted = reply_bytes, lifted_bytes
        try:
            self._observer(call)
        except Exception:
            import logging

            logging.getLogger("rrpc.server").exception("the observer raised")


def _nbytes(buffer: Any) -> int:
    nbytes: int | None = getattr(buffer, "nbytes", None)
    return nbytes if nbytes is not None else memoryview(buffer).nbytes
