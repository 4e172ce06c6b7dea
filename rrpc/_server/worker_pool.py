"""The threads of a blocking server.

They are its workers, spare ones in the place of those whose handlers wait, and one for the built-in services.
"""

# `lend` runs in the thread of the handler that waits, `_run` and `_may_end` in the pool's own threads, all else in
# any. The lock guards the dict and the counts.

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Protocol

# Seconds without a call after which a spare thread may end.
_SPARE_IDLE_S = 2.0


class _Runs(Protocol):
    def run(self, idle_s: float | None, may_end: Callable[[], bool]) -> None: ...
    def running(self) -> str | None: ...


class Workers:
    """The ``count`` threads that run handlers, and spare ones.

    There is one more for each handler that waits for its client's items, and one for the built-in services. The core
    lets no more than ``count`` handlers run at a time (``max_concurrency``), whatever the number of threads.
    """

    def __init__(self, core: Any, count: int, builtin: bool, cpus: Sequence[int] = ()) -> None:
        """``cpus``: the processors that workers run on; none: those that the process may use."""
        self._core = core
        self._builtin = builtin
        self._make: Callable[[bool], _Runs] | None = None  # once started: it may keep the server
        self.count = count
        self._cpus = cpus
        self._lock = threading.Lock()
        self._threads: dict[threading.Thread, _Runs] = {}
        self._waiting = 0  # threads whose handler waits
        self._made = 0
        self.started = False

    def start(self, make: Callable[[bool], _Runs]) -> None:
        """Start the workers, each of which runs what ``make(whether for the built-in services)`` returns."""
        self.started = True
        self._make = make
        if self._builtin:
            self._start("rrpc-builtin", None, builtin=True)
        for index in range(self.count):
            self._start(f"rrpc-worker-{index}", None)

    def _start(self, name: str, idle_s: float | None, builtin: bool = False) -> None:
        assert self._make is not None
        worker = self._make(builtin)
        # No daemon: the interpreter's end stops the servers and then waits for handlers.
        thread = threading.Thread(target=self._run, args=(worker, idle_s), name=name)
        # Before it runs, since a spare thread takes itself out again.
        with self._lock:
            self._threads[thread] = worker
        try:
            thread.start()
        except BaseException:
            with self._lock:
                del self._threads[thread]
            raise

    def _start_spare(self, name: str) -> None:
        try:
            self._start(name, _SPARE_IDLE_S)
        except RuntimeError:  # the system has no more threads: one worker less while this one waits
            logging.getLogger("rrpc.server").warning(
                "no thread can be started in the place of a handler that waits for its client", exc_info=True
            )

    def _run(self, worker: _Runs, idle_s: float | None) -> None:
        if self._cpus:
            with suppress(OSError):  # the process may run elsewhere by now
                os.sched_setaffinity(0, self._cpus)
        worker.run(idle_s, self._may_end)
        if idle_s is not None:  # a worker stays in the list, for those who wait for its end
            with self._lock:
                self._threads.pop(threading.current_thread(), None)

    def _may_end(self) -> bool:
        """Returns whether a spare thread that has nothing to do isn't needed; it ends then."""
        # One step under the lock: of two idle threads, each might otherwise count on the other to stay.
        with self._lock:
            surplus = self._idle_or_running() > self.count
            if surplus:
                del self._threads[threading.current_thread()]
        return surplus

    def _idle_or_running(self) -> int:
        return len(self._threads) - self._waiting - self._builtin

    @contextmanager
    def lend(self, handle: int) -> Iterator[None]:
        """Lend the place of a handler that waits, in its thread: other calls run in a spare thread meanwhile."""
        with self._lock:
            self._waiting += 1
            short = self._idle_or_running() < self.count
            self._made += short
            name = f"rrpc-spare-{self._made}"
        try:
            if short and not self._core.stopped():
                self._start_spare(name)
            self._core.lend(handle)
            yield
        finally:
            self._core.take_up(handle)  # until then it takes no other calls: others count on the spare one
            with self._lock:
                self._waiting -= 1

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every thread has ended; False if they haven't within ``timeout`` seconds."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                # A handler that stops its own server can't wait for itself.
                others = [t for t in self._threads if t is not threading.current_thread() and t.is_alive()]
            if not others:
                return True
            others[0].join(None if end is None else max(0.0, end - monotonic()))
            if others[0].is_alive():
                return False

    def running(self) -> list[str]:
        """The methods whose handlers are under way."""
        with self._lock:
            workers = list(self._threads.values())
        return [name for worker in workers if (name := worker.running()) is not None]
