"""Waits for conditions, and knows how late this machine is."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def eventually(predicate: Callable[[], Any], timeout: float = 30.0) -> Any:
    """Waits until the predicate gives something true, and gives that; fails after the timeout."""
    end = time.monotonic() + timeout
    while not (value := predicate()):
        assert time.monotonic() < end, f"not within {timeout} s (last: {value!r})"
        time.sleep(0.01)
    return value


def freeze(pid: int) -> None:
    """Stops a process, and waits until all of its threads have stopped; to be resumed with SIGCONT."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(_state(task) in "TZX" for task in Path(f"/proc/{pid}/task").iterdir()))


def _state(task: Path) -> str:
    try:
        return task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"  # it has just ended


class Lateness:
    """Measures, in a ``with`` statement, how much later than asked for a thread wakes up."""

    def __enter__(self) -> "Lateness":
        self._over = threading.Event()
        self._latest = 0.0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            start = time.monotonic()
            self._over.wait(0.01)
            self._latest = max(self._latest, time.monotonic() - start - 0.01)

    @property
    def slack(self) -> float:
        """100 ms, and four times the latest wake-up."""
        return 0.1 + 4 * self._latest
