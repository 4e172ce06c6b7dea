"""Timing loops: a warm-up, then as many calls as fit the budget."""

import time
from collections.abc import Callable
from statistics import median

CALLS_MIN = 3
CALLS_MAX = 200_000


def case_name(size_mib: float) -> str:
    return f"{size_mib:g} MiB"


def percentile(values: list[int], part: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * part))])


def time_calls(call: Callable[[], object], seconds: float) -> list[int]:
    """Nanoseconds of each call, at least CALLS_MIN of them."""
    times: list[int] = []
    clock = time.perf_counter_ns
    end = clock() + int(seconds * 1e9)
    before = clock()
    while (before < end or len(times) < CALLS_MIN) and len(times) < CALLS_MAX:
        call()
        after = clock()
        times.append(after - before)
        before = after
    return times


def latency(call: Callable[[], object], seconds: float) -> dict[str, float]:
    time_calls(call, seconds / 5)
    times = time_calls(call, seconds)
    return {"p50_us": percentile(times, 0.5) / 1e3, "p99_us": percentile(times, 0.99) / 1e3}


def bandwidth(
    call: Callable[[], object],
    nbytes: int,
    seconds: float,
    cpu: Callable[[], float] = time.process_time,
    owner_cpu: Callable[[], float] | None = None,
) -> dict[str, float]:
    """GB/s of the median call, and CPU seconds per GB over all of them.

    ``owner_cpu``, if given, is that of the process whose array is fetched: then also its share of a core meanwhile.
    """
    time_calls(call, seconds / 5)
    before = cpu(), owner_cpu() if owner_cpu else 0.0
    times = time_calls(call, seconds)
    spent = cpu() - before[0]
    metrics = {"gbps": nbytes / median(times), "cpu_s_per_gb": spent / (nbytes * len(times) / 1e9)}
    if owner_cpu:
        metrics["owner_cpu_percent"] = (owner_cpu() - before[1]) / (sum(times) / 1e9) * 100
    return metrics
