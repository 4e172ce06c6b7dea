"""Clock readings around the calls of a client, from which their phases are made."""

# Clocks are read where the call goes on: in the threads or the loop of its driver, one at a time.

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from rrpc._call.outgoing import STAMPS
from rrpc.errors import RpcError
from rrpc.interceptors.outcomes import count_items
from rrpc.metadata import EMPTY, TRACE
from rrpc.metadata import unpack as unpack_metadata

from .server_part import ServerPart, unpack
from .timeline import chain, join
from .traced_call import CLIENT, Phase, TracedCall, here

_ANSWER_PART = 3 / 4  # of the metadata of a reply


def record(call: Any) -> Recording:
    """Note down what happens to a call of a client (``rrpc._call.outgoing.OutgoingCall``), from now until ``end()``.

    For interceptors too, before they yield the call. A call is noted down once, whoever asks for it.
    """
    request = call.request
    if isinstance(request, _Noted):
        return request.recording
    recording = Recording(call)
    # Takes the request's place, as every driver encodes and decodes by it.
    call.request = _Noted(request, recording)
    # Tells the server that the caller traces, and how many bytes its part of the reply may have.
    call.metadata[TRACE] = str(int(call.channel.metadata_bytes_max * _ANSWER_PART))
    call.traced = True
    return recording


def link(call: Any, calls: list[TracedCall]) -> Generator[Any, Any, Any]:
    """Traces a call and adds it to ``calls``; this is the outermost of the call's links."""
    seen = isinstance(call.request, _Noted)  # by a trace around this one
    recording = record(call)
    calls.append(recording.traced)
    return _through(call) if seen else _around(call, recording)


def _through(call: Any) -> Generator[Any, Any, Any]:
    return (yield call)


def _around(call: Any, recording: Recording) -> Generator[Any, Any, Any]:
    streams = hasattr(call, "map_sent")  # it ends after it was begun
    if streams:
        count_items(call, recording.traced)
        call.on_end(recording.end)
    try:
        result = yield call
    except BaseException as error:
        recording.end(error)
        raise
    if not streams:
        recording.end()
    return result


class Recording:
    """Times recorded for one call while it is under way."""

    def __init__(self, call: Any) -> None:
        self.traced = TracedCall(call.method, here(), monotonic_ns())
        self._call = call
        self._attempts: list[_Attempt] = []
        self._stream: Any = None

    def begin_attempt(self) -> None:
        """Notes when an attempt began."""
        now = monotonic_ns()
        self._end_attempt(now)
        self._attempts.append(_Attempt(now))

    def encoded(self) -> None:
        """Notes when the arguments were encoded."""
        self._attempts[-1].encoded_ns = monotonic_ns()

    def decoded(self) -> None:
        """Notes when the result was decoded."""
        self._attempts[-1].decoded_ns = monotonic_ns()

    def opened(self, core: Any) -> Any:
        """Records that the request of a call with streams was sent; returns the core's stream to use."""
        self._attempts[-1].opened_ns = monotonic_ns()
        self._stream = _CountedCore(core, self.traced)
        return self._stream

    def _end_attempt(self, now: int) -> None:
        """The core's stamps are there once the exchange is over."""
        if self._attempts:
            self._attempts[-1].end_ns = now
            self._attempts[-1].stamps = self._call.stamps()

    def _drop_losers(self) -> None:
        """Removes the hedged attempts that began after the attempt that was answered."""
        begun_ns = self._call.stamps().get(STAMPS[0], 0)
        while len(self._attempts) > 1 and 0 < begun_ns < self._attempts[-1].begin_ns:
            loser = self._attempts.pop()
            self._attempts[-1].decoded_ns = loser.decoded_ns

    def end(self, error: BaseException | None = None) -> TracedCall:
        """The call has ended: its phases are made. Only the first time counts."""
        traced = self.traced
        if not traced.end_ns:
            traced.end_ns = monotonic_ns()
            traced.attempts = len(self._attempts)
            self._drop_losers()
            self._end_attempt(traced.end_ns)
            traced.error = _code_name(error)
            traced.phases = self._phases(self._said(error))
            # A trace may be kept for long, and isn't to keep the core's stream.
            self._stream = None
        return traced

    def _said(self, error: BaseException | None) -> ServerPart | None:
        """Returns the server's part of the trace, from its last reply; None if it sent none."""
        metadata = getattr(error, "metadata", EMPTY) if error is not None else self._call.reply_metadata
        if error is None and self._stream is not None:
            metadata = unpack_metadata(self._stream.metadata())
        said = metadata.get(TRACE)
        return unpack(said) if isinstance(said, bytes) else None

    def _phases(self, said: ServerPart | None) -> list[Phase]:
        traced = self.traced
        phases: list[Phase] = []
        at_ns = traced.begin_ns
        for attempt in self._attempts:
            last = attempt is self._attempts[-1]
            phases += chain(at_ns, CLIENT, [("channel", attempt.begin_ns)])
            phases += attempt.phases(traced, said if last else None)
            at_ns = phases[-1].end_ns if phases else at_ns
        return [*phases, *chain(at_ns, CLIENT, [("channel", traced.end_ns)])]


@dataclass
class _Attempt:
    """One exchange of request and reply."""

    begin_ns: int
    encoded_ns: int = 0
    end_ns: int = 0
    opened_ns: int = 0
    decoded_ns: int = 0
    stamps: Mapping[str, int] = field(default_factory=dict)
    """Of the core, where it was begun."""

    def phases(self, traced: TracedCall, said: ServerPart | None) -> list[Phase]:
        if self.opened_ns:
            sent_ns = self.opened_ns if said is None else self._sent_ns(traced, said)
            opened = chain(self.begin_ns, CLIENT, [("encode", sent_ns)])
            return opened + join(traced, said, sent_ns, self.end_ns, ("stream", CLIENT))
        at = [self.stamps.get(name, 0) for name in STAMPS]
        begun_ns, exposed_ns, sent_ns, replied_ns, ended_ns, taken_ns = at
        # The core has no readings of an attempt that it didn't begin.
        if not begun_ns:
            encoded_ns = self.encoded_ns or self.end_ns
            return chain(self.begin_ns, CLIENT, [("encode", encoded_ns), ("away", self.end_ns)])
        phases = chain(self.begin_ns, CLIENT, [("encode", begun_ns), ("registration", exposed_ns)])
        phases += chain(max(begun_ns, exposed_ns), CLIENT, [("credit wait", sent_ns or ended_ns)])
        if sent_ns:
            phases += join(traced, said, sent_ns, replied_ns or ended_ns)
        ends = [("remote read", ended_ns), ("GIL wait", taken_ns), ("decode", self.decoded_ns)]
        return phases + chain(replied_ns or ended_ns, CLIENT, ends)

    def _sent_ns(self, traced: TracedCall, said: ServerPart) -> int:
        """Estimates when a call with streams was sent: the server may begin before this thread goes on."""
        served_until_ns = said.phases[-1].end_ns if said.phases else said.begin_ns
        if said.place.host == traced.client.host and self.begin_ns <= served_until_ns <= self.end_ns:
            # A server that had to wait for a core as it looked for messages may have read its clock too early.
            readings = (said.begin_ns, *(phase.end_ns for phase in said.phases))
            return min(self.opened_ns, *(reading for reading in readings if reading >= self.begin_ns))
        served_ns = served_until_ns - said.begin_ns
        return max(self.begin_ns, min(self.opened_ns, self.end_ns - served_ns))  # by another clock


class _Noted:
    """A request whose way into bytes and back is noted down."""

    __slots__ = ("_request", "recording")

    def __init__(self, request: Any, recording: Recording) -> None:
        self._request = request
        self.recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def encode(self, connection: Any) -> tuple[bytes, bytes, Any]:
        self.recording.begin_attempt()
        encoded: tuple[bytes, bytes, Any] = self._request.encode(connection)
        self.recording.encoded()
        return encoded

    def decode(self, payload: bytes, blocks: list[Any] | None, message: Any) -> Any:
        result = self._request.decode(payload, blocks, message)
        self.recording.decoded()
        return result

    def open(self, connection: Any, *arguments: Any) -> Any:
        """Starts an attempt at a call with streams; returns the core's stream to use."""
        self.recording.begin_attempt()
        return self.recording.opened(self._request.open(connection, *arguments))


class _CountedCore:
    """A core's stream that counts how often there was no room for an item."""

    def __init__(self, core: Any, traced: TracedCall) -> None:
        self._core = core
        self._traced = traced
        self._waits = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def send(self, payload: bytes, buffers: Any = None, timeout: float | None = None) -> None:
        if not self.try_send(payload, buffers):
            self._core.send(payload, buffers, timeout)
            self._waits = False

    def try_send(self, payload: bytes, buffers: Any = None) -> bool:
        sent: bool = self._core.try_send(payload, buffers)
        self._traced.window_waits += not sent and not self._waits
        self._waits = not sent
        return sent


def _code_name(error: BaseException | None) -> str:
    if error is None:
        return ""
    return error.code.name if isinstance(error, RpcError) else type(error).__name__
