"""pyzmq over ipc, DEALER to ROUTER: a msgpack header a call, and arrays as frames of their own, uncopied."""

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.peers.base import Connection, Floats, Mode, Peer, WarmArrays
from bench.peers.optional import load, missing_packages


class ZmqConnection(Connection):
    def __init__(self, address: str) -> None:
        zmq, msgpack = load("zmq"), load("msgpack")
        self._context = zmq.Context.instance()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        self._pack: Any = msgpack.packb
        self._unpack: Any = msgpack.unpackb

    def echo(self, data: bytes) -> bytes:
        self._socket.send(self._pack((1, "echo", data)))
        _, answer = self._unpack(self._socket.recv())
        return bytes(answer)

    def pipeline(self, data: bytes, window: int, calls: int) -> None:
        in_flight = 0
        for number in range(calls):
            if in_flight == window:
                self._unpack(self._socket.recv())
                in_flight -= 1
            self._socket.send(self._pack((number, "echo", data)))
            in_flight += 1
        for _ in range(in_flight):
            self._unpack(self._socket.recv())

    def send(self, array: Floats) -> int:
        header = self._pack((1, "send", array.dtype.str, array.shape))
        self._socket.send_multipart([header, array], copy=False)
        return int(self._unpack(self._socket.recv())[1])

    def fetch(self, nbytes: int) -> Floats:
        self._socket.send(self._pack((1, "fetch", nbytes)))
        header, body = self._socket.recv_multipart(copy=False)
        _, dtype, shape = self._unpack(header.buffer)
        array: Floats = np.frombuffer(body.buffer, dtype).reshape(shape)
        return array

    def close(self) -> None:
        self._socket.close()


class ZmqPeer(Peer):
    def missing(self) -> str:
        return missing_packages("zmq", "msgpack")

    def serve(self, mode: Mode, ready: Callable[[str], None]) -> None:
        zmq = load("zmq")
        context = zmq.Context.instance()
        context.set(zmq.MAX_SOCKETS, 4096)
        with tempfile.TemporaryDirectory() as folder:
            router = context.socket(zmq.ROUTER)
            router.bind(f"ipc://{folder}/socket")
            ready(f"ipc://{folder}/socket")
            {"echo": serve_echo, "send": serve_send, "fetch": serve_fetch}[mode](router)

    def connect(self, address: str, mode: Mode) -> Connection:
        zmq = load("zmq")
        zmq.Context.instance().set(zmq.MAX_SOCKETS, 4096)
        return ZmqConnection(address)


def serve_echo(router: Any) -> None:
    pack, unpack = load("msgpack").packb, load("msgpack").unpackb
    while True:
        sender, request = router.recv_multipart()
        number, _, data = unpack(request)
        router.send_multipart([sender, pack((number, data))])


def serve_send(router: Any) -> None:
    pack, unpack = load("msgpack").packb, load("msgpack").unpackb
    while True:
        sender, header, body = router.recv_multipart(copy=False)
        number, _, dtype, shape = unpack(header.buffer)
        array = np.frombuffer(body.buffer, dtype).reshape(shape)
        router.send_multipart([sender.bytes, pack((number, array.nbytes))])


def serve_fetch(router: Any) -> None:
    pack, unpack, arrays = load("msgpack").packb, load("msgpack").unpackb, WarmArrays()
    while True:
        sender, request = router.recv_multipart()
        number, _, nbytes = unpack(request)
        array = arrays[nbytes]
        router.send_multipart([sender, pack((number, array.dtype.str, array.shape)), array], copy=False)
