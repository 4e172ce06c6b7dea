"""Prometheus's exposition of the numbers; prometheus_client is imported here and nowhere else."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import rrpc

from .statistics import BUCKETS_NS, GAUGES

# Of rrpc.stats(), with its help.
CORE_METRICS: dict[str, str] = {
    "messages_sent": "SEND messages sent",
    "messages_received": "messages received",
    "bytes_inline_sent": "bytes sent inside messages",
    "bytes_inline_received": "bytes received inside messages",
    "credit_waits": "requests and replies that had to wait for the peer's credits",
    "landing_waits": "calls and items that had to wait for landing memory",
    "reply_waits": "calls that had to wait until their client took earlier replies",
    "reads": "remote reads finished",
    "bytes_read": "bytes fetched from peers by remote read",
    "bytes_read_by_rails": "of those, by the rails of connections",
    "writes": "remote writes finished",
    "bytes_written": "bytes placed into peers' memory by remote write",
    "stagings": "buffers copied into pool memory because the peer could not reach them",
    "bytes_staged": "bytes so copied",
    "copies": "copies of bulk data that rrpc made",
    "bytes_copied": "bytes so copied, in the core and in Python",
    "packs": "arrays packed before sending because they weren't contiguous",
    "bytes_packed": "bytes so packed",
    "unpacks": "large bytes, bytearrays and array.arrays copied out of landing memory, and arrays that JAX copied",
    "bytes_unpacked": "bytes so copied",
    "device_copies": "tensors copied from a device to the host",
    "bytes_from_devices": "bytes so copied",
    "registrations_made": "memory regions registered",
    "registrations_reused": "registrations found in the cache",
    "exposures_live": "ranges of memory open to peers",
    "bytes_exposed": "bytes open to peers",
    "lent_bytes": "bytes lent to peers, which may read them in place",
    "ranges_kept": "ranges that a peer kept beyond the call they were lent for",
    "lendings_over_limit": "ranges copied because lent_bytes_max had no room",
    "ranges_borrowed": "ranges of peers' memory read in place",
    "bytes_borrowed": "their bytes",
    "exposures_by_window": "ranges opened by binding a memory window",
    "exposures_by_registration": "ranges opened by a registration of their own",
    "exposures_by_check": "ranges opened where software checks each access",
    "exposures_invalidated": "ranges of clients that the reply to them has closed",
    "arrays_changed": "arrays changed while a peer could read them; counted where arrays are checked",
    "shared_receive_low": "times when few shared receives were left",
    "pool_bytes_committed": "registered pool memory held from the system",
    "pool_bytes_used": "of that, in use",
    "pool_limit_bytes": "most pool memory",
    "exposed_limit_bytes": "most bytes open to peers",
    "queued_limit_bytes": "most bytes of messages that wait",
    "lent_limit_bytes": "most bytes lent to peers",
    "leases_expired": "results taken back because the reader was too slow",
    "calls_started": "calls that this process made itself",
    "calls_ended": "of those, ended in any way",
    "calls_served": "calls answered, refused ones included",
    "calls_refused": "of those, refused by a limit or while shutting down",
    "calls_over_rate": "of those, refused by the rate limit",
    "calls_denied": "of those, refused because their caller may not make them",
    "connections_open": "connections, those that handlers made included",
}
_SERVER_METRICS = {
    "connections": "clients connected",
    "calls_running": "calls taken and not answered yet, those that wait for a worker included",
    "calls_waiting": "of those, calls that wait for a worker",
}
_TIMES = {
    "total": ("rrpc_call_seconds", "from a request's arrival to its reply"),
    "queue": ("rrpc_call_queue_seconds", "how long a call whose arguments were here waited for a worker"),
    "handler": ("rrpc_call_handler_seconds", "decoding, handler and encoding"),
}
_LIMITS = [*(f"{bucket / 1e9:g}" for bucket in BUCKETS_NS), "+Inf"]


class MetricsPage(Collector):
    """Made anew from a snapshot at each scrape."""

    def __init__(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._snapshot = snapshot
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the form that the scraper likes best."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def describe(self) -> list[Metric]:
        """Returns nothing: the metrics are known once they are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics as they are now."""
        numbers = self._snapshot()
        yield InfoMetricFamily(
            "rrpc_build",
            "what serves here",
            {"version": rrpc.__version__, "python": platform.python_version()},
        )
        yield from _calls(numbers["methods"])
        for name, number in numbers["server"].items():
            yield GaugeMetricFamily(f"rrpc_server_{name}", _SERVER_METRICS.get(name, name), number)
        for name, number in numbers["core"].items():
            yield _core(name, number)
        yield GaugeMetricFamily(
            "rrpc_pinned_bytes", "memory that the kernel may not move or swap", numbers["pinned"]
        )


def _core(name: str, number: int) -> Metric:
    family = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
    return family(f"rrpc_{name}", CORE_METRICS.get(name, name), number)


def _calls(methods: dict[str, Any]) -> Iterator[Metric]:
    calls = CounterMetricFamily("rrpc_calls", "calls answered by workers", labels=["method"])
    errors = CounterMetricFamily(
        "rrpc_call_errors", "of those, answered with an error", labels=["method", "code"]
    )
    moved = CounterMetricFamily(
        "rrpc_call_bytes",
        "payloads and buffers of calls: in messages (inline), fetched by remote read (read), "
        "left to be fetched by the caller or written to it (lifted)",
        labels=["method", "direction", "way"],
    )
    items = CounterMetricFamily(
        "rrpc_call_items", "items of calls with streams", labels=["method", "direction"]
    )
    for method, numbers in methods.items():
        calls.add_metric([method], sum(numbers["codes"].values()))
        for code, count in numbers["codes"].items():
            if code != "OK":
                errors.add_metric([method, code], count)
        for kind, count in numbers["bytes"].items():
            moved.add_metric([method, *kind.split("_")], count)
        for direction, count in numbers["items"].items():
            if count:
                items.add_metric([method, direction], count)
    yield from (calls, errors, moved, items)
    for key, (name, text) in _TIMES.items():
        family = HistogramMetricFamily(name, text, labels=["method"])
        for method, numbers in methods.items():
            times = numbers["times"][key]
            buckets = list(zip(_LIMITS, accumulate(times["counts"]), strict=True))
            family.add_metric([method], buckets, times["sum_ns"] / 1e9)
        yield family
