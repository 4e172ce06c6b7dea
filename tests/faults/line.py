"""JSON objects over a Unix socket, one a line: how a lane tells its processes what to do, and hears what came of it."""

import json
import socket
from typing import Any


class Line:
    """One end of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""

    def send(self, **said: Any) -> None:
        """OSError where the other process is gone."""
        self._socket.sendall(json.dumps(said).encode() + b"\n")

    def receive(self, timeout: float | None) -> dict[str, Any]:
        """TimeoutError if nothing comes, EOFError if the other process is gone."""
        self._socket.settimeout(timeout)
        while b"\n" not in self._received:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def receive_or_none(self) -> dict[str, Any] | None:
        """Waits for ever; None once the other process is gone."""
        try:
            return self.receive(None)
        except (EOFError, ConnectionError):
            return None

    def close(self) -> None:
        self._socket.close()
