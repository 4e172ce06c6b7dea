"""A server that answers whoever connects with bytes of the test's choice."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def wake_and_close(*sockets: socket.socket) -> None:
    """A thread that waits for one of them would wait on for ever, and keep it open, were it only closed."""
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


class _Impostor:
    """Accepts connections and answers each with the same bytes; `then` follows the first call."""

    def __init__(self, listener: socket.socket, answer: bytes, then: bytes, close: bool) -> None:
        self.listener, self.answer, self.then, self.closing = listener, answer, then, close
        self.held: list[socket.socket] = []
        listener.listen()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        while self.thread.is_alive():
            wake_and_close(self.listener, *self.held)  # it may just have accepted another
            self.thread.join(0.01)

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.held.append(connection)
            with contextlib.suppress(OSError):
                self.talk(connection)

    def talk(self, connection: socket.socket) -> None:
        connection.sendall(self.answer)
        if self.then:
            while (said := connection.recv(65536)) and b"Lab.add" not in said:
                pass
            connection.sendall(self.then)
        if self.closing:
            connection.recv(1000)
            connection.close()


@pytest.fixture
def impostor(short_tmp: Path) -> Iterator[Callable[..., str]]:
    """``impostor(answer)`` is the address of a server that says ``answer``, or what that makes of the address."""
    impostors: list[_Impostor] = []

    def make(
        answer: bytes | Callable[[str], bytes], scheme: str = "tcp", then: bytes = b"", close: bool = False
    ) -> str:
        listener = socket.socket(socket.AF_UNIX if scheme == "shm" else socket.AF_INET)
        target = f"{short_tmp}/x{len(impostors)}.sock"
        listener.bind(target if scheme == "shm" else ("127.0.0.1", 0))
        address = (
            f"shm://{target}" if scheme == "shm" else f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        )
        said = answer if isinstance(answer, bytes) else answer(address)
        impostors.append(_Impostor(listener, said, then, close))
        return address

    yield make
    for each in impostors:
        each.end()
