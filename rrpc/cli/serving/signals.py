"""Signals that ask a server to end or to reload."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """SIGTERM and SIGINT ask for the end, and the second of them ends the process at once; SIGHUP asks for a reload."""

    def __init__(self) -> None:
        self._ending = False
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Written by the interpreter's own handler, on whatever thread: it wakes wait() in any case.
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in _ENDING:
            signal.signal(number, self._on_end)

    def take_reloads(self) -> None:
        """Takes SIGHUP from now on, which ends the process otherwise."""
        signal.signal(signal.SIGHUP, lambda number, frame: None)

    def wait(self, timeout: float | None = None) -> str:
        """Returns "end", "reload", or "" after the timeout."""
        ready, _, _ = select.select([self._read_fd], [], [], timeout)
        told = os.read(self._read_fd, 4096) if ready else b""
        if any(number in told for number in _ENDING):
            return "end"
        return "reload" if signal.SIGHUP in told else ""

    def tell(self, number: int) -> None:
        """Makes ``wait`` return as if the signal had come. May be called from any thread.

        It doesn't count as the first signal: the next SIGTERM or SIGINT doesn't end the process at once.
        """
        os.write(self._write_fd, bytes([number]))

    def wake(self) -> None:
        """Makes ``wait`` return "" before its timeout. May be called from any thread."""
        os.write(self._write_fd, b"\0")

    def fileno(self) -> int:
        """Readable when ``wait`` has something."""
        return self._read_fd

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        if self._ending:
            os._exit(128 + number)
        self._ending = True
