"""A supervisor's combined view of its processes: their metrics, readiness and addresses."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .observing import open_monitor, write_whole
from .process import Process
from .settings import Settings
from .statistics import added, counters

_NUMBERS_SECONDS = 2.0
_NONE = {"methods": {}, "server": {}, "core": {}, "pinned": 0}


class Overview:
    """Numbers are asked for when they are read, and added up."""

    def __init__(self, options: Settings, processes: Callable[[], list[Process]]) -> None:
        self._processes = processes
        self._state = "starting"
        self._lock = threading.Lock()
        self._last: dict[int, dict[str, Any]] = {}  # by process
        self._gone: dict[str, Any] = {}  # what those counted that have ended: a sum of counters mustn't fall
        self._ready_file: str | None = options.ready_file
        self._monitor = (
            open_monitor(options.metrics, self._numbers, self._readiness) if options.metrics else None
        )

    @property
    def url(self) -> str:
        """The URL of the HTTP port; "" if there is none."""
        return self._monitor.url if self._monitor is not None else ""

    def ready(self, addresses: Sequence[str]) -> None:
        """Shows that all processes take calls, and writes the ready file."""
        self._state = "ready"
        if self._ready_file is not None:
            write_whole(self._ready_file, "".join(f"{address}\n" for address in addresses))

    def draining(self) -> None:
        """Shows from now on that the processes drain, and removes the ready file."""
        self._state = "draining"
        if self._ready_file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._ready_file)

    def _readiness(self) -> str:
        if self._state == "ready" and not any(process.addresses for process in self._processes()):
            return "none of the processes is ready"
        return self._state

    def _numbers(self) -> dict[str, Any]:
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
