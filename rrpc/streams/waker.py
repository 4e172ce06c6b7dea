"""Handlers that wait without a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Waker"]


class Waker:
    """What the generator of a response stream yields to be left alone until somebody calls ``wake``.

    It has no worker meanwhile. A call that ends wakes it too, and closes the generator.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._woken = False
        self._resume: Callable[[], object] | None = None

    def wake(self) -> None:
        """Have the generator go on, from any thread; once it waits, if it doesn't yet."""
        with self._lock:
            resume, self._resume = self._resume, None
            self._woken = resume is None
        if resume is not None:
            resume()

    def wait(self, resume: Callable[[], object]) -> None:
        """For who serves the stream: it waits from now on."""
        with self._lock:
            woken, self._woken = self._woken, False
            if not woken:
                self._resume = resume
        if woken:
            resume()
