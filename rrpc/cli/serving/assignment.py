"""One of several processes behind an address, as it sees itself: what its supervisor told it, and the line back."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from rrpc import Server
from rrpc.cli.common import BadInput
from rrpc.memory import share_memory

from .settings import Settings, guards_of
from .signals import Signals
from .standby import Channel

VARIABLE = "RRPC_SERVE_PROCESS"
_LATE_SECONDS = 10.0


class Assignment:
    """Found in the environment, where the processes that this one starts don't find it again."""

    def __init__(self, text: str) -> None:
        told = json.loads(text)
        self._listen: list[str] = told["listen"]
        self._processes: int = told["processes"]
        self._guards: list[str] = told["guards"]
        sock = socket.socket(fileno=told["fd"])
        sock.set_inheritable(False)
        self._channel = Channel(sock)
        self._ending = False
        self._server: Server | None = None

    @classmethod
    def found(cls) -> Assignment | None:
        """Returns the assignment that a supervisor gave this process, or None."""
        text = os.environ.pop(VARIABLE, "")
        return cls(text) if text else None

    def take(self, options: Settings, signals: Signals, numbers: Callable[[], dict[str, Any]]) -> None:
        """Make the options for all processes those for this one, and do what the supervisor says from now on.

        Raises BadInput where the file has lost what kept callers out when the server started.
        """
        if lost := [guard for guard in self._guards if guard not in guards_of(options)]:
            raise BadInput(
                f"{lost[0].replace('_', '-')} was there when the server started, and the file has it no more: "
                "no process starts without; put it back, or restart the server"
            )
        options.listen = self._listen
        share_memory(self._processes)
        if options.rate_limit is not None:
            options.rate_limit /= self._processes
        if options.rate_burst is not None:
            options.rate_burst = math.ceil(options.rate_burst / self._processes)
        self._obey(signals, numbers, options.drain_delay + options.grace + _LATE_SECONDS)

    def _obey(self, signals: Signals, numbers: Callable[[], dict[str, Any]], patience: float) -> None:
        """Obeys the supervisor, in a thread. A process that lost its supervisor ends within ``patience`` seconds."""

        def listen() -> None:
            while (message := self._channel.receive()) is not None:
                self._on_word(message, signals, numbers)
            if self._ending:
                os._exit(128 + signal.SIGTERM)  # the supervisor was told twice
            signals.tell(signal.SIGTERM)
            time.sleep(patience)
            os._exit(1)

        threading.Thread(target=listen, name="rrpc-supervised", daemon=True).start()

    def _on_word(
        self, message: dict[str, Any], signals: Signals, numbers: Callable[[], dict[str, Any]]
    ) -> None:
        word = message["word"]
        if word == "end":
            self._ending = True
            signals.tell(signal.SIGTERM)
        elif word == "reload":
            signals.tell(signal.SIGHUP)
        elif word == "numbers":
            self.tell(numbers=numbers())
        elif self._server is None:
            return  # the others are about its clients
        elif word == "connections":
            self.tell(connections=self._server.stats()["connections"])
        elif word == "send_away":
            self._server.send_away(message["count"])

    def serve(self, server: Server) -> None:
        """Tells the supervisor that clients can come."""
        self._server = server
        self.tell(services=server.services, addresses=server.addresses)

    def tell(self, **facts: Any) -> None:
        """Sends facts about this process to the supervisor."""
        self._channel.send(**facts)
