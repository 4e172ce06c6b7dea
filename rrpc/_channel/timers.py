"""Things to be done later: one thread for the process, while there are any."""

# Any thread sets and cancels timers. Their functions run in the one thread `rrpc-timers`, one after the other; the
# condition's lock guards the heap.

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections.abc import Callable
from time import monotonic

# Seconds without a timer after which the thread ends.
_LINGER_SECONDS = 1.0


class Timer:
    """An action to be run at a point in time."""

    __slots__ = ("_to_do",)

    def __init__(self, do: Callable[[], object]) -> None:
        self._to_do = [do]  # who pops it does it, or has cancelled it

    @property
    def done(self) -> bool:
        """Whether it has fired, or never will."""
        return not self._to_do

    def cancel(self) -> None:
        """Nothing is to be done any more; nothing if it has been."""
        self._to_do.clear()

    def fire(self) -> None:
        """Do it now, unless it was done or cancelled."""
        try:
            do = self._to_do.pop()
        except IndexError:
            return
        try:
            do()
        except Exception:
            import logging

            logging.getLogger("rrpc").exception("a timer's function raised")


class _Timers:
    def __init__(self) -> None:
        self._changed = threading.Condition()  # whose lock a finalizer may take again that sets a timer
        self._heap: list[tuple[float, int, Timer]] = []
        # Decides between entries of one time, as timers can't be compared.
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self.ending = False

    def add(self, seconds: float, timer: Timer) -> None:
        with self._changed:
            heapq.heappush(self._heap, (monotonic() + seconds, next(self._order), timer))
            if self._thread is not None or self.ending:
                self._changed.notify()
                return
            thread = self._thread = threading.Thread(target=self._run, name="rrpc-timers", daemon=True)
            try:
                thread.start()
            except BaseException:
                self._thread = None
                timer.cancel()
                raise

    def end(self) -> None:
        with self._changed:
            self.ending = True
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                timer = self._next()
                if timer is None:
                    self._thread = None
                    return
            timer.fire()
            del timer  # it may hold connections

    def _next(self) -> Timer | None:
        """Waits for the next one; None if there is none for a while."""
        while not self.ending:
            wait = self._heap[0][0] - monotonic() if self._heap else _LINGER_SECONDS
            if self._heap and wait <= 0:
                return heapq.heappop(self._heap)[2]
            # Nothing was added for a while: cancelled timers go, and what they hold.
            if not self._changed.wait(min(wait, _LINGER_SECONDS)):
                rest: list[tuple[float, int, Timer]] = []
                self._heap, heap = rest, self._heap
                for entry in heap:
                    if not entry[2].done:  # others were cancelled
                        heapq.heappush(self._heap, entry)
                if not self._heap:
                    return None
        return None


_timers = _Timers()


# The child has no such thread, and the lock may have been held when it was forked.
def _anew() -> None:
    global _timers
    _timers = _Timers()


def after(seconds: float, do: Callable[[], object]) -> Timer:
    """Calls ``do()`` in so many seconds, on a thread that it mustn't block."""
    timer = Timer(do)
    start(seconds, timer)
    return timer


def start(seconds: float, timer: Timer) -> None:
    """Starts the timer, which fires in so many seconds."""
    _timers.add(seconds, timer)


def elsewhere(do: Callable[[], object]) -> None:
    """Calls ``do()`` now in another thread, since this one may hold a lock that it takes."""
    timer = Timer(do)
    try:
        start(0.0, timer)
    except RuntimeError:  # no thread can be had for it
        do()
    else:
        # At the interpreter's end the thread fires no more timers.
        if _timers.ending:
            timer.fire()


os.register_at_fork(after_in_child=_anew)
# Before the interpreter's end, which a thread in the core must not meet.
threading._register_atexit(lambda: _timers.end())  # type: ignore[attr-defined]
