"""A supervisor's combined view of its processes: their metrics, readiness and addresses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .observing import Shown
from .process import Process
from .settings import Settings
from .statistics import added, counters

_NUMBERS_SECONDS = 2.0
_NONE = {"methods": {}, "server": {}, "core": {}, "pinned": 0}


class Overview(Shown):
    """Numbers are asked for when they are read, and added up."""

    def __init__(self, options: Settings, processes: Callable[[], list[Process]]) -> None:
        self._processes = processes
        self._now = "starting"
        self._lock = threading.Lock()
        self._last: dict[int, dict[str, Any]] = {}  # by process
        self._gone: dict[str, Any] = {}  # what those counted that have ended: a sum of counters mustn't fall
        super().__init__(options)

    def ready(self, addresses: Sequence[str]) -> None:
        """Shows that all processes take calls, and writes the ready file."""
        self._now = "ready"
        self._show_ready(addresses)

    def draining(self) -> None:
        """Shows from now on that the processes drain, and removes the ready file."""
        self._now = "draining"
        self._hide_ready()

    def _state(self) -> str:
        if self._now == "ready" and not any(process.addresses for process in self._processes()):
            return "none of the processes is ready"
        return self._now

    def numbers(self) -> dict[str, Any]:
        """Returns the sum of the processes' numbers; asks them for it."""
        processes = self._processes()
        until = time.monotonic() + _NUMBERS_SECONDS
        for process in processes:
            process.ask_for_numbers()
        now = {process.pid: process.numbers(until) for process in processes}
        with self._lock:
            for pid in self._last.keys() - now.keys():
                self._gone = added([self._gone, counters(self._last.pop(pid))])
            self._last |= now
            return added([_NONE, self._gone, *now.values()])
