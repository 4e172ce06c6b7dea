"""A server that answers whoever connects with bytes of the test's choice."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class _Impostor:
    """Accepts connections and answers each with the same bytes; `then` follows the first call."""

    def __init__(self, listener: socket.socket, answer: bytes, then: bytes, close: bool) -> None:
        self.listener, self.answer, self.then, self.closing = listener, answer, then, close
        self.held: list[socket.socket] = []
        listener.listen()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.sendall(self.answer)
            self.held.append(connection)
            if self.then:
                while b"Lab.add" not in connection.recv(65536):
                    pass
                connection.sendall(self.then)
            if self.closing:
                connection.recv(1000)
                connection.close()


@pytest.fixture
def impostor(short_tmp: Path) -> Iterator[Callable[..., str]]:
    """``impostor(answer)`` is the address of a server that says ``answer``, or what that makes of the address."""
    listeners: list[socket.socket] = []

    def make(
        answer: bytes | Callable[[str], bytes], scheme: str = "tcp", then: bytes = b"", close: bool = False
    ) -> str:
        listener = socket.socket(socket.AF_UNIX if scheme == "shm" else socket.AF_INET)
        target = f"{short_tmp}/x{len(listeners)}.sock"
        listener.bind(target if scheme == "shm" else ("127.0.0.1", 0))
        listeners.append(listener)
        address = (
            f"shm://{target}" if scheme == "shm" else f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        )
        _Impostor(listener, answer if isinstance(answer, bytes) else answer(address), then, close)
        return address

    yield make
    for listener in listeners:
        listener.close()
