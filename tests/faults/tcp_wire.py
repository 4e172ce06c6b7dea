"""A man in the middle over tcp: passes frames on between a client and a server, through a gate."""

import contextlib
import socket
import struct
import threading

from impostor import wake_and_close
from raw_peer import FRAME, PUSH, READ_REQUEST, READ_RESPONSE, SEND, WRITE_ACK

from .gate import CLIENT, SERVER, Gate, message_name

_FRAMES = {READ_REQUEST: "READ", READ_RESPONSE: "READ_DATA", PUSH: "PUSH"}
_RESET = struct.pack("ii", 1, 0)  # close() sends RST


class _Pair:
    """A client's connection and the one to the server that it is led to.

    Only the threads that use them close them: a closed descriptor's number may be the next connection's.
    """

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._ends = (client, server)
        self._lock = threading.Lock()
        self._users = 2
        self._reset = False

    def cut(self, reset: bool) -> None:
        with self._lock:
            if self._users == 0:
                return
            self._reset = reset
            for end in self._ends:
                with contextlib.suppress(OSError):
                    if reset:
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    end.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)

    def end_of(self, sink: socket.socket) -> None:
        """The other end has ended in order."""
        with self._lock, contextlib.suppress(OSError):
            if not self._reset:
                sink.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        """One of both threads is done."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for end in self._ends:
                    end.close()


class TcpWire:
    """Listens for clients, and leads each to the server at ``target``."""

    def __init__(self, gate: Gate, folder: str) -> None:
        self._gate = gate
        self.target = ""
        self._pairs: list[_Pair] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, reset: bool = False) -> None:
        """End all connections, as a router does that forgets them (``reset``), or in order."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.cut(reset)

    def close(self) -> None:
        self.cut()
        wake_and_close(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, port = self.target.split("://")[1].rsplit(":", 1)
            try:
                server = socket.create_connection((host, int(port)), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(client, server)
            self._pairs.append(pair)
            for source, sink, sender in ((client, server, CLIENT), (server, client, SERVER)):
                threading.Thread(target=self._pump, args=(pair, source, sink, sender), daemon=True).start()

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket, sender: str) -> None:
        """Passes frames on until the source ends, and then its end."""
        try:
            while header := _exactly(source, FRAME.size):
                _, kind, _, _, _, length, _ = FRAME.unpack(header)
                payload = b"" if kind in (READ_REQUEST, WRITE_ACK) else _exactly(source, length)
                if kind == SEND:
                    payload = self._gate.passes(sender, message_name(payload), payload)
                    data = header + payload
                else:
                    data = self._gate.passes(sender, _FRAMES.get(kind, ""), header + payload)
                sink.sendall(data)
            pair.end_of(sink)
        except OSError:
            pair.cut(reset=False)
        finally:
            pair.leave()


def _exactly(source: socket.socket, count: int) -> bytes:
    """So many bytes; b"" at the end of the stream."""
    parts, left = [], count
    while left:
        part = source.recv(min(left, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
