"""grpcio, over a Unix socket, or TCP with TLS: generic handlers that pass bytes, so no protobuf in the way."""

import asyncio
import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bench.peers.base import AsyncConnection, Connection, Floats, Mode, Peer, WarmArrays
from bench.peers.certificates import AUTHORITY, certificate, key
from bench.peers.optional import load, missing_packages

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


class GrpcConnection(Connection):
    def __init__(self, address: str, tls: bool) -> None:
        grpc = load("grpc")
        if tls:
            files = [path.read_bytes() for path in (AUTHORITY, key("client"), certificate("client"))]
            self._channel = grpc.secure_channel(
                address, grpc.ssl_channel_credentials(*files), options=OPTIONS
            )
        else:
            self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._echo = self._channel.unary_unary("/bench/echo")
        self._send = self._channel.unary_unary("/bench/send")
        self._fetch = self._channel.unary_unary("/bench/fetch")
        self._repeat = self._channel.unary_stream("/bench/repeat")
        self._take = self._channel.stream_unary("/bench/take")
        self._fetch_each = self._channel.unary_stream("/bench/fetch_each")

    def echo(self, data: bytes) -> bytes:
        answer: bytes = self._echo(data)
        return answer

    def pipeline(self, data: bytes, window: int, calls: int) -> None:
        in_flight: deque[Any] = deque()
        for _ in range(calls):
            if len(in_flight) == window:
                in_flight.popleft().result()
            in_flight.append(self._echo.future(data))
        for future in in_flight:
            future.result()

    def send(self, array: Floats) -> int:
        return int(self._send(array.tobytes()))

    def fetch(self, nbytes: int) -> Floats:
        return np.frombuffer(self._fetch(b"%d" % nbytes), np.float32)

    def receive(self, data: bytes, count: int) -> int:
        return sum(1 for _ in self._repeat(b"%d " % count + data))

    def stream(self, data: bytes, count: int) -> int:
        return int(self._take(itertools.repeat(data, count)))

    def fetch_each(self, nbytes: int, count: int) -> int:
        items = self._fetch_each(b"%d %d" % (nbytes, count))
        return sum(np.frombuffer(item, np.float32).nbytes for item in items)

    def close(self) -> None:
        self._channel.close()


class GrpcAsyncConnection(AsyncConnection):
    """By grpc.aio."""

    def __init__(self, address: str) -> None:
        self._channel = load("grpc").aio.insecure_channel(address, options=OPTIONS)
        self._echo = self._channel.unary_unary("/bench/echo")
        self._send = self._channel.unary_unary("/bench/send")

    async def ready(self) -> None:
        await self._channel.channel_ready()

    async def echo(self, data: bytes) -> bytes:
        answer: bytes = await self._echo(data)
        return answer

    async def send(self, array: Floats) -> int:
        return int(await self._send(array.tobytes()))

    async def close(self) -> None:
        await self._channel.close()


class GrpcPeer(Peer):
    def __init__(self, name: str, tls: bool = False) -> None:
        super().__init__(name)
        self._tls = tls
        self.asyncio = self.streams = self.many_connections = not tls

    def missing(self) -> str:
        return missing_packages("grpc")

    def serve(self, mode: Mode, ready: Callable[[str], None]) -> None:
        asyncio.run(serve_async(ready)) if mode == "aio" else serve_in_threads(ready, self._tls)

    def connect(self, address: str, mode: Mode) -> Connection:
        connection = GrpcConnection(address, self._tls)
        load("grpc").channel_ready_future(connection._channel).result(30)
        return connection

    async def connect_async(self, address: str) -> AsyncConnection:
        connection = GrpcAsyncConnection(address)
        await connection.ready()
        return connection


def size_of(request: bytes) -> bytes:
    """Returns the answer to a call with an array, which is read as one."""
    return b"%d" % np.frombuffer(request, np.float32).nbytes


def serve_in_threads(ready: Callable[[str], None], tls: bool) -> None:
    grpc, arrays = load("grpc"), WarmArrays()
    calls: dict[str, Callable[[bytes, Any], bytes]] = {
        "echo": lambda request, context: request,
        "send": lambda request, context: size_of(request),
        "fetch": lambda request, context: arrays[int(request)].tobytes(),
    }
    handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
    handlers |= stream_handlers(grpc, arrays)
    with tempfile.TemporaryDirectory() as folder:
        server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
        address = f"unix:{folder}/socket"
        if tls:
            pair = (key("server").read_bytes(), certificate("server").read_bytes())
            credentials = grpc.ssl_server_credentials(
                [pair], AUTHORITY.read_bytes(), require_client_auth=True
            )
            address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
        else:
            server.add_insecure_port(address)
        server.start()
        ready(address)
        server.wait_for_termination()


def stream_handlers(grpc: Any, arrays: WarmArrays) -> dict[str, Any]:
    def repeat(request: bytes, context: Any) -> Iterator[bytes]:
        count, data = request.split(b" ", 1)
        return itertools.repeat(data, int(count))

    def fetch_each(request: bytes, context: Any) -> Iterator[bytes]:
        nbytes, count = map(int, request.split())
        return (arrays[nbytes].tobytes() for _ in range(count))

    def take(items: Iterator[bytes], context: Any) -> bytes:
        return b"%d" % sum(1 for _ in items)

    return {
        "repeat": grpc.unary_stream_rpc_method_handler(repeat),
        "fetch_each": grpc.unary_stream_rpc_method_handler(fetch_each),
        "take": grpc.stream_unary_rpc_method_handler(take),
    }


async def serve_async(ready: Callable[[str], None]) -> None:
    grpc = load("grpc")

    async def echo(request: bytes, context: Any) -> bytes:
        return request

    async def send(request: bytes, context: Any) -> bytes:
        return size_of(request)

    calls = {"echo": echo, "send": send}
    handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
    with tempfile.TemporaryDirectory() as folder:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
        server.add_insecure_port(f"unix:{folder}/socket")
        await server.start()
        ready(f"unix:{folder}/socket")
        await server.wait_for_termination()
