"""memcpy from touched memory into touched memory, one thread."""

import ctypes

from bench.limits.base import Results
from bench.measure import bandwidth, case_name
from bench.peers.base import touched
from bench.settings import MIB


def measure(seconds: float, sizes: list[float]) -> Results:
    return [{"case": case_name(size), "metrics": one(seconds, int(size * MIB))} for size in sizes]


def one(seconds: float, nbytes: int) -> dict[str, float]:
    source, target = touched(nbytes), touched(nbytes)
    target_at, source_at = target.ctypes.data, source.ctypes.data
    return bandwidth(lambda: ctypes.memmove(target_at, source_at, nbytes), nbytes, seconds)
