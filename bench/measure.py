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
    call: Callable[[], object], nbytes: int, seconds: float, cpu: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """GB/s of the median call, and CPU seconds per GB over all of them."""
    time_calls(call, seconds / 5)
    cpu_before = cpu()
    times = time_calls(call, seconds)
    cpu_spent = cpu() - cpu_before
    return {"gbps": nbytes / median(times), "cpu_s_per_gb": cpu_spent / (nbytes * len(times) / 1e9)}
