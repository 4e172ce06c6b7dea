"""Handlers that wait without a worker."""

# A worker waits; any thread may wake.

from __future__ import annotations

import threading
from collections.abc import Callable


class Waker:
    """Suspends the generator of a response stream that yields it, until ``wake`` is called.

    A suspended generator occupies no worker. The end of the call also wakes the generator, and closes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._woken = False
        self._resume: Callable[[], object] | None = None

    def wake(self) -> None:
        """Resumes the generator, from any thread: now if it waits, otherwise as soon as it does."""
        with self._lock:
            resume, self._resume = self._resume, None
            # Remembers a wake that comes before the wait.
            self._woken = resume is None
        # Without the lock: the handler may go on in another worker, and wait again, before resume() returns.
        if resume is not None:
            resume()

    def wait(self, resume: Callable[[], object]) -> None:
        """Starts the wait: ``resume()`` is called at the next ``wake``, or now if one came already."""
        with self._lock:
            woken, self._woken = self._woken, False
            if not woken:
                self._resume = resume
        if woken:
            resume()
