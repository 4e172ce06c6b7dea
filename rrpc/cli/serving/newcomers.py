"""Processes that were started again have no clients: they get the next ones, and some of those that the others have."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .process import Process

_ASK_SECONDS = 0.25
_PATIENCE_SECONDS = 60.0  # an idle client connects again only when it has a call to make


class Newcomers:
    """The processes that have less than their share of the clients, each for a minute at most."""

    def __init__(self) -> None:
        self._until: dict[Process, float] = {}
        self._ask_at = 0.0
        self._uneven = False  # since the last newcomer nobody has sent clients away

    def add(self, process: Process, processes: Sequence[Process]) -> None:
        """Has every process count its clients, for ``spread``."""
        now = time.monotonic()
        self._until[process] = now + _PATIENCE_SECONDS
        self._ask_at = now
        self._uneven = True
        for one in processes:
            one.connections = None  # a count from before means nothing

    def discard(self, process: Process) -> None:
        """Forgets a process that has ended."""
        self._until.pop(process, None)

    def first(self, processes: Sequence[Process]) -> list[Process]:
        """Returns where clients are to be sent: to the newcomers, or to every process that takes clients."""
        taking = [one for one in processes if one.addresses]
        counts = _clients_of(taking)
        for process in list(self._until):
            if process not in taking or (counts and counts[process] >= _share(counts)):
                del self._until[process]
        return [one for one in taking if one in self._until] or taking

    def spread(self, processes: Sequence[Process]) -> None:
        """Has those with the most clients send away as many as the newcomers lack: once, when all have counted theirs.

        Call this after clients are sent to ``first``.
        """
        counts = _clients_of([one for one in processes if one.addresses])
        if not self._uneven or not counts:
            return
        self._uneven = False
        lacking = sum(_share(counts) - counts[process] for process in self._until)
        left = dict(counts)
        for _ in range(lacking):
            left[max(left, key=left.__getitem__)] -= 1
        for process, count in counts.items():
            if count > left[process]:
                process.tell("send_away", count=count - left[process])

    def due(self) -> float | None:
        """Returns when ``tend`` has something to do, by time.monotonic()."""
        return self._ask_at if self._until else None

    def tend(self, now: float, processes: Sequence[Process]) -> bool:
        """Asks for the numbers of clients when it is time; returns whether a newcomer has waited long enough."""
        if not self._until or now < self._ask_at:
            return False
        self._ask_at = now + _ASK_SECONDS
        late = [process for process, until in self._until.items() if until <= now]
        for process in late:
            del self._until[process]
        for one in processes:
            one.tell("connections")
        return bool(late)


def _clients_of(taking: Sequence[Process]) -> dict[Process, int]:
    """Returns how many clients each process has; nothing while one of them hasn't answered."""
    counts = {one: one.connections for one in taking if one.connections is not None}
    return counts if len(counts) == len(taking) else {}


def _share(counts: dict[Process, int]) -> int:
    return sum(counts.values()) // len(counts)
