"""The memory of the C library's allocator, given back to the system once a server rests.

glibc keeps up to 64 MiB of what handlers have freed, in each of several arenas (mallopt(3), M_TRIM_THRESHOLD).
"""

from __future__ import annotations

import ctypes
import os
from time import monotonic

import rrpc

_M_ARENA_MAX = -8
_REST_MIN_S = 1.0
_libc = ctypes.CDLL(None)


def use_one_arena() -> None:
    """Has all threads allocate from one arena: only of the first can all free memory be given back.

    Call it before there are threads. Does nothing where the environment says how many arenas there are to be.
    """
    chosen = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if not chosen and hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, 1)


class RestingHeap:
    """Gives free memory back after a rest in which no array was moved, if some were before it.

    ``rest`` is in seconds; None: never.
    """

    def __init__(self, rest: float | None) -> None:
        self._rest = None if rest is None or not hasattr(_libc, "malloc_trim") else max(rest, _REST_MIN_S)
        self._due_at = monotonic() + (self._rest or 0.0)
        self._seen = _transfers()
        self._moved = False

    def due_in(self) -> float | None:
        """After how many seconds ``tend`` has something to do; None: never."""
        return None if self._rest is None else max(0.0, self._due_at - monotonic())

    def tend(self) -> None:
        """Gives back what is due. Takes milliseconds where that is much."""
        if self._rest is None or monotonic() < self._due_at:
            return
        self._due_at = monotonic() + self._rest
        before, self._seen = self._seen, _transfers()
        if self._seen != before:
            self._moved = True
        elif self._moved:
            self._moved = False
            _libc.malloc_trim(0)


def _transfers() -> int:
    """Returns the number of arrays that were fetched, placed or exposed to a peer so far."""
    counters = rrpc.stats()
    opened = sum(count for name, count in counters.items() if name.startswith("exposures_by_"))
    return counters["reads"] + counters["writes"] + opened
