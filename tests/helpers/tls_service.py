"""The service of the tests of TLS, and a proxy that sees and changes what passes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import rrpc

Change = Callable[[bytes, bool, int], bytes]
"""What passes, whether it comes from the client, and how many bytes went that way before; what goes on instead."""


@rrpc.service
class Vault:
    @rrpc.method
    def add(self, a: int, b: int) -> int:
        return a + b

    @rrpc.method
    def text(self, text: str) -> str:
        return text[::-1]

    @rrpc.method
    def double(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values * 2

    @rrpc.method
    def count(self, until: int) -> Iterator[int]:
        yield from range(until)


class Proxy:
    """Passes bytes between clients and one server, in clear sight of the test."""

    def __init__(self, port: int, change: Change | None = None) -> None:
        self._target = port
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen = bytearray()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                self._start(self._pass, client, server, True)
                self._start(self._pass, server, client, False)

    def _pass(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self.seen += data
                if self._change is not None:
                    data, passed = self._change(data, from_client, passed), passed + len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
