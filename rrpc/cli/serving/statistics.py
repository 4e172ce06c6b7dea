"""Numbers about the calls of a process, as built-in types that can be added to those of another process."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import rrpc
from rrpc.observe import ServedCall, status_name

BUCKETS_NS = tuple(
    int(digit * 10**power) for power in range(4, 10) for digit in (1, 2.5, 5)
)  # 10 µs up to 5 s
GAUGES = {
    "exposures_live",
    "bytes_exposed",
    "lent_bytes",
    "pool_bytes_committed",
    "pool_bytes_used",
    "pool_limit_bytes",
    "exposed_limit_bytes",
    "queued_limit_bytes",
    "lent_limit_bytes",
    "connections_open",
}
"""Of rrpc.stats(), those that go up and down; all others count."""
UNKNOWN_METHOD = "unknown"
"""Stands for every method that there isn't: strangers can't make labels."""
_Snapshot = dict[str, Any]


class _Times:
    """A histogram."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_NS) + 1)
        self.sum_ns = 0

    def add(self, nanoseconds: int) -> None:
        self.counts[bisect_left(BUCKETS_NS, nanoseconds)] += 1
        self.sum_ns += nanoseconds

    def snapshot(self) -> _Snapshot:
        return {"counts": list(self.counts), "sum_ns": self.sum_ns}


class _Method:
    def __init__(self) -> None:
        self.codes: defaultdict[int, int] = defaultdict(int)
        self.bytes = {"request_inline": 0, "request_read": 0, "reply_inline": 0, "reply_lifted": 0}
        self.items = {"received": 0, "sent": 0}
        self.total, self.queue, self.handler = _Times(), _Times(), _Times()

    def add(self, call: ServedCall) -> None:
        self.codes[call.code] += 1
        moved = self.bytes
        moved["request_inline"] += call.request_bytes
        moved["request_read"] += call.request_bytes_read
        moved["reply_inline"] += call.reply_bytes
        moved["reply_lifted"] += call.reply_bytes_lifted
        if call.items_received or call.items_sent:
            self.items["received"] += call.items_received
            self.items["sent"] += call.items_sent
        self.total.add(call.total_ns)
        self.queue.add(call.queue_ns)
        self.handler.add(call.handler_ns)

    def snapshot(self) -> _Snapshot:
        times = {name: getattr(self, name).snapshot() for name in ("total", "queue", "handler")}
        codes = {status_name(code): count for code, count in self.codes.items()}
        return {"codes": codes, "bytes": dict(self.bytes), "items": dict(self.items), "times": times}


class CallStatistics:
    """An observer that counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._methods: dict[str, _Method] = {}

    def __call__(self, call: ServedCall) -> None:
        """Counts a call."""
        name = call.method if call.known else UNKNOWN_METHOD
        with self._lock:
            method = self._methods.get(name)
            if method is None:
                method = self._methods[name] = _Method()
            method.add(call)

    def snapshot(self) -> _Snapshot:
        """Returns the numbers of each method."""
        with self._lock:
            return {name: method.snapshot() for name, method in self._methods.items()}


def snapshot(calls: CallStatistics, server: rrpc.Server | None) -> _Snapshot:
    """All that this process knows, fit for JSON."""
    return {
        "methods": calls.snapshot(),
        "server": server.stats() if server is not None else {},
        "core": rrpc.stats(),
        "pinned": _pinned(),
    }


def _pinned() -> int:
    """Bytes of this process that the kernel may not move or swap: what adapters have registered."""
    try:
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        return sum(int(fields[name].split()[0]) for name in ("VmLck", "VmPin")) * 1024
    except (OSError, KeyError, ValueError):
        return 0


def added(snapshots: Iterable[_Snapshot]) -> _Snapshot:
    """The sum, number by number."""
    total: _Snapshot = {}
    for one in snapshots:
        total = _sum(total, one) if total else one
    return total


def _sum(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {
            key: _sum(a[key], b[key]) if key in a and key in b else a.get(key, b.get(key)) for key in a | b
        }
    if isinstance(a, list):
        return [_sum(x, y) for x, y in zip(a, b, strict=True)]
    return a + b


def counters(one: _Snapshot) -> _Snapshot:
    """Returns the counters of a snapshot, without gauges: they stay true after the process has ended."""
    core = {name: number for name, number in one.get("core", {}).items() if name not in GAUGES}
    return {"methods": one.get("methods", {}), "core": core}
