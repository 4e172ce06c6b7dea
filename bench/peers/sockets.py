"""Bare blocking sockets: the least that two Python processes can do. No framing, no names, no errors."""

import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.peers.base import Connection, Floats, Mode, Peer, WarmArrays

LENGTH = struct.Struct("<Q")
ECHO_BYTES_MAX = 1 << 16


def receive_exactly(sock: socket.socket, view: memoryview) -> bool:
    """Fill ``view``; False when the other end has closed."""
    done = 0
    while done < len(view):
        got = sock.recv_into(view[done:])
        if got == 0:
            return False
        done += got
    return True


class WarmBuffer:
    """One landing buffer per connection, grown rarely and touched at once."""

    def __init__(self) -> None:
        self._bytes = np.zeros(0, np.uint8)

    def view(self, nbytes: int) -> memoryview:
        if self._bytes.size < nbytes:
            self._bytes = np.ones(nbytes, np.uint8)
        return self._bytes.data[:nbytes]


def serve_echo(sock: socket.socket) -> None:
    while data := sock.recv(ECHO_BYTES_MAX):
        sock.sendall(data)


def serve_send(sock: socket.socket) -> None:
    header, landing = bytearray(LENGTH.size), WarmBuffer()
    while receive_exactly(sock, memoryview(header)):
        (nbytes,) = LENGTH.unpack(header)
        if not receive_exactly(sock, landing.view(nbytes)):
            return
        sock.sendall(header)


def serve_fetch(sock: socket.socket) -> None:
    header, arrays = bytearray(LENGTH.size), WarmArrays()
    while receive_exactly(sock, memoryview(header)):
        (nbytes,) = LENGTH.unpack(header)
        sock.sendall(arrays[nbytes].data.cast("B"))


SERVE: dict[Mode, Callable[[socket.socket], None]] = {
    "echo": serve_echo,
    "send": serve_send,
    "fetch": serve_fetch,
}


class SocketConnection(Connection):
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._landing = WarmBuffer()
        self._header = bytearray(LENGTH.size)

    def echo(self, data: bytes) -> bytes:
        self._sock.sendall(data)
        answer = self._sock.recv(ECHO_BYTES_MAX)
        while len(answer) < len(data):
            answer += self._sock.recv(ECHO_BYTES_MAX)
        return answer

    def pipeline(self, data: bytes, window: int, calls: int) -> None:
        sent = received = 0
        while received < calls * len(data):
            while sent < calls and sent * len(data) - received < window * len(data):
                self._sock.sendall(data)
                sent += 1
            received += len(self._sock.recv(ECHO_BYTES_MAX))

    def send(self, array: Floats) -> int:
        self._sock.sendall(LENGTH.pack(array.nbytes))
        self._sock.sendall(array.data.cast("B"))
        receive_exactly(self._sock, memoryview(self._header))
        return int(LENGTH.unpack(self._header)[0])

    def fetch(self, nbytes: int) -> Floats:
        self._sock.sendall(LENGTH.pack(nbytes))
        view = self._landing.view(nbytes)
        receive_exactly(self._sock, view)
        return np.frombuffer(view, np.float32)

    def close(self) -> None:
        self._sock.close()


class SocketPeer(Peer):
    """A thread per connection."""

    def __init__(self, name: str, unix: bool) -> None:
        super().__init__(name)
        self._unix = unix

    def missing(self) -> str:
        return ""

    def serve(self, mode: Mode, ready: Callable[[str], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            listener = self._listen(Path(folder) / "socket")
            ready(self._address(listener))
            while True:
                sock, _ = listener.accept()
                if not self._unix:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=SERVE[mode], args=(sock,), daemon=True).start()

    def _listen(self, path: Path) -> socket.socket:
        if not self._unix:
            return socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(1024)
        return listener

    def _address(self, listener: socket.socket) -> str:
        name = listener.getsockname()
        return str(name) if self._unix else str(name[1])

    def connect(self, address: str, mode: Mode) -> Connection:
        if self._unix:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(address)
        else:
            sock = socket.create_connection(("127.0.0.1", int(address)))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SocketConnection(sock)
