"""One of several processes behind an address, as its supervisor sees it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from .assignment import VARIABLE


class Process:
    """A process from start to end. ``channel`` carries its messages; ``exit_fd`` is readable once it has ended."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        listen: Sequence[str],
        processes: int,
        guards: Sequence[str],
    ) -> None:
        self.number = number
        self.started = time.monotonic()
        self.addresses: list[str] = []
        """Where it takes clients; none before it is ready and once it drains."""
        self.services = ""
        self.error = ""
        self.was_ready = False
        self.connections: int | None = None
        """The number of its clients, as it answered last."""
        self.closed = False
        self._numbers: dict[str, Any] = {}
        self._told_numbers = threading.Event()
        self._rest = b""
        self.channel, theirs = socket.socketpair()
        with theirs:
            told = {"listen": list(listen), "processes": processes, "guards": list(guards)}
            told["fd"] = theirs.fileno()
            self._popen = subprocess.Popen(
                command,
                env={**os.environ, VARIABLE: json.dumps(told)},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C is for the supervisor, which tells the others
            )
        self.exit_fd = os.pidfd_open(self.pid)

    @property
    def pid(self) -> int:
        """Returns the process's id."""
        return self._popen.pid

    def hear(self) -> bool:
        """Takes in what it says; False once it says no more."""
        while True:
            try:
                data = self.channel.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                self._learn(json.loads(line))

    def _learn(self, told: dict[str, Any]) -> None:
        self.error = told.get("error", self.error)
        self.services = told.get("services", self.services)
        self.addresses = told.get("addresses", self.addresses)
        self.was_ready = self.was_ready or bool(self.addresses)
        self.connections = told.get("connections", self.connections)
        if "numbers" in told:
            self._numbers = told["numbers"]
            self._told_numbers.set()

    def tell(self, word: str, **facts: int) -> None:
        """Sends it a word and facts."""
        with contextlib.suppress(OSError):  # that it has ended is noticed by exit_fd
            self.channel.sendall(json.dumps({"word": word, **facts}).encode() + b"\n")

    def ask_for_numbers(self) -> None:
        """Asks it for its statistics, which ``numbers`` returns."""
        self._told_numbers.clear()
        self.tell("numbers")

    def numbers(self, until: float) -> dict[str, Any]:
        """Returns the process's answer to ``ask_for_numbers``, or its last answer if none comes in time.

        Waits until ``until``, by ``time.monotonic``. Call it on another thread than ``hear``.
        """
        self._told_numbers.wait(max(0.0, until - time.monotonic()))
        return self._numbers

    def kill(self) -> None:
        """Ends it at once."""
        self._popen.kill()

    def close(self) -> str:
        """Releases an ended process. Returns how it ended, "" for exit code 0."""
        self.hear()
        self.closed = True
        self.channel.close()
        os.close(self.exit_fd)
        code = self._popen.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}" if code else ""
