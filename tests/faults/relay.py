"""A man in the middle over tcp who knows no protocol: passes bytes on, and does one fault where it is told to."""

import contextlib
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass

UP, DOWN = 0, 1  # from the client to the server, and back
_RESET = struct.pack("ii", 1, 0)  # close() sends RST


@dataclass
class Trap:
    """Springs once so many bytes have gone in one direction since it was set."""

    direction: int
    after_bytes: int
    sprung: threading.Event
    go_on: threading.Event


class Relay:
    """Listens for clients, and leads each to the server's port."""

    def __init__(self) -> None:
        self.target = 0
        self._trap: Trap | None = None
        self._silent = threading.Event()
        self._flip: random.Random | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def set_trap(self, direction: int, after_bytes: int) -> Trap:
        """Returns the trap; the bytes that spring it wait until ``go_on`` is set."""
        self._trap = Trap(direction, after_bytes, threading.Event(), threading.Event())
        return self._trap

    def flip_a_bit(self, chance: random.Random) -> None:
        """Damages the next bytes that pass."""
        self._flip = chance

    def silence(self, on: bool) -> None:
        """Nothing passes any more, and connections stay open; once it's over they end."""
        if on:
            self._silent.set()
        elif self._silent.is_set():
            self.cut(reset=True)
            self._silent.clear()

    def cut(self, reset: bool) -> None:
        """Ends all connections, in order or by RST."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    if reset:
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        end.shutdown(socket.SHUT_RD)
                        end.close()
                    else:
                        end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut(reset=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target), 2)
                except OSError:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    client.close()
                    continue
                for end in (client, server):
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pairs.append((client, server))
                for source, sink, direction in ((client, server, UP), (server, client, DOWN)):
                    threading.Thread(target=self._pass, args=(source, sink, direction), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, direction: int) -> None:
        try:
            while data := source.recv(1 << 16):
                self._look(direction, len(data))
                while self._silent.is_set():
                    time.sleep(0.005)
                if direction == UP and (chance := self._flip) is not None:
                    self._flip = None
                    damaged = bytearray(data)
                    damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                    data = bytes(damaged)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one end is gone: the other one hears of it
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    end.shutdown(socket.SHUT_RDWR)

    def _look(self, direction: int, nbytes: int) -> None:
        trap = self._trap
        if trap is None or direction != trap.direction:
            return
        trap.after_bytes -= nbytes
        if trap.after_bytes < 0:
            self._trap = None
            trap.sprung.set()
            trap.go_on.wait(30)
