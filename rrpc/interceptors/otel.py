"""Spans of OpenTelemetry for calls, on either side; for the extra ``rrpc-rdma[otel]``.

Names and attributes are those of the semantic conventions for RPC, as of their release candidate, with ``rpc.system``
and ``rpc.service`` of the older ones for what still looks for them. The context travels in the metadata, by the
propagator that is set (W3C's ``traceparent``, ``tracestate`` and ``baggage`` where none was chosen).
"""

# A span begins where its call does. It may end on any thread, wherever `on_end` is told.

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from rrpc._call.chain import Steps
from rrpc._call.peer_names import peer_name
from rrpc.errors import StatusCode

from .base import ClientInterceptor, Interceptor, ServerInterceptor
from .outcomes import ended_call, short_message, until_end, within

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, SpanKind, Status
    from opentelemetry.trace import StatusCode as SpanStatus
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "rrpc.interceptors.otel needs opentelemetry-api: pip install 'rrpc-rdma[otel]'", name=missing.name
    ) from missing

# What is the server's own fault; the rest is the caller's, whose span is an error then.
_SERVER_ERRORS = frozenset(
    (
        StatusCode.UNKNOWN,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.UNIMPLEMENTED,
        StatusCode.INTERNAL,
        StatusCode.UNAVAILABLE,
        StatusCode.DATA_LOSS,
    )
)


class _Metadata:
    """Reads what the propagator asks for."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        return [value for value in carrier.get_all(key.lower()) if isinstance(value, str)] or None

    def keys(self, carrier: Any) -> list[str]:
        return list(carrier)


class _Spans(Interceptor):
    kind: SpanKind

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        exempt: Iterable[str] = ("rrpc.Health",),
    ) -> None:
        if isinstance(exempt, str):
            raise TypeError(f"exempt is a list of names, not the str {exempt!r}")
        self._tracer = trace.get_tracer("rrpc", tracer_provider=tracer_provider)
        self._inject = (propagate if propagator is None else propagator).inject
        self._extract = (propagate if propagator is None else propagator).extract
        self._exempt = frozenset(exempt)

    def _begin(self, call: Any, parent: contexts.Context | None, begin_ns: int | None = None) -> Span:
        service, _, method = call.method.rpartition(".")
        name = f"{service}/{method}"
        attributes = {
            "rpc.system.name": "rrpc",
            "rpc.method": name,
            "rpc.system": "rrpc",
            "rpc.service": service,
        }
        return self._tracer.start_span(name, parent, self.kind, attributes, start_time=begin_ns)

    def _end(self, call: Any, span: Span, error: BaseException | None) -> None:
        if span.is_recording():
            if self.kind is SpanKind.CLIENT:
                _add_events(span, _moments(call.stamps()))
            ended = ended_call(call, error)
            attributes = {"rpc.response.status_code": ended.status, **_address(self.side, ended.peer)}
            if error is not None:
                attributes["error.type"] = ended.status
                if self.kind is SpanKind.CLIENT or ended.code in _SERVER_ERRORS:
                    span.set_status(Status(SpanStatus.ERROR, short_message(error)))
            span.set_attributes(attributes)
        span.end()


def _moments(stamps: dict[str, int]) -> dict[str, int]:
    """Converts monotonic stamps to ``time.time_ns()`` values; leaves out stamps that aren't set."""
    # Taken anew each time, as the wall clock may have been set.
    offset = time.time_ns() - time.monotonic_ns()
    return {name: stamp + offset for name, stamp in stamps.items() if stamp}


def _add_events(span: Span, moments: dict[str, int]) -> None:
    for name, moment in moments.items():
        span.add_event(name, timestamp=moment)


class ClientSpans(_Spans, ClientInterceptor):
    """A span of kind CLIENT for each call, whose context goes to the server in the call's metadata.

    Outside of a retry it spans all attempts, inside of it there is one for each. ``exempt`` are services and methods
    without spans. Providers and propagator are OpenTelemetry's global ones, unless given.
    """

    kind = SpanKind.CLIENT

    def unary(self, call: Any) -> Steps:
        """Records a span around a call, with streams or without."""
        if within(call.method, self._exempt):
            return super().unary(call)
        span = self._begin(call, None)
        self._inject(call.metadata, trace.set_span_in_context(span))
        call.traced = call.traced or span.is_recording()
        return until_end(call, self._end, span)

    stream = unary


class ServerSpans(_Spans, ServerInterceptor):
    """A span of kind SERVER for each call that is handled, in the trace that the caller's metadata names.

    It is the current one in the handler, so that spans and calls made there are its children. ``exempt`` are services
    and methods without spans. Providers and propagator are OpenTelemetry's global ones, unless given.
    """

    kind = SpanKind.SERVER

    def _received(self, call: Any) -> contexts.Context:
        """Begins a span at the request's arrival and returns its context; it ends with the call."""
        parent = self._extract(call.metadata, getter=_METADATA)
        moments = _moments(call.stamps())
        span = self._begin(call, parent, moments.pop("request received", None))
        _add_events(span, moments)
        call.on_end(partial(self._end, call, span))
        return trace.set_span_in_context(span, parent)

    def unary(self, call: Any) -> Steps:
        """Records a span around a call without streams."""
        if within(call.method, self._exempt):
            return (yield call)
        before = contexts.attach(self._received(call))
        try:
            return (yield call)
        finally:
            contexts.detach(before)

    def stream(self, call: Any) -> Steps:
        """Records a span around a call with streams."""
        if not within(call.method, self._exempt):
            # Not detached here: a handler that yields goes on in this context. It is the call's own.
            contexts.attach(self._received(call))
        return (yield call)


_METADATA = _Metadata()
_PROCESS = re.compile(r"(peer )?pid [0-9]+ uid [0-9]+")
# What may follow are an address's options, and the adapter's name: "10.9.0.1:4711 on rxe0".
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^]]*\]|[^:/,\[\]]+):(?P<port>[0-9]+)(\?.*| on .*)?")


def _address(side: str, peer: str) -> dict[str, str | int]:
    """Attributes that name the peer: host and port, or the path of a Unix socket.

    A client that calls over shared memory has neither: ``rrpc.peer`` says which process it is.
    """
    end = "server" if side == "client" else "client"
    place = peer.partition("://")[2] or peer
    if _PROCESS.match(place):
        return {"rrpc.peer": peer_name(place)}
    found = _HOST_AND_PORT.fullmatch(place)
    if found is None:
        return {f"{end}.address": place} if place else {}
    return {f"{end}.address": found["host"].strip("[]"), f"{end}.port": int(found["port"])}
