"""rrpc itself, over one transport, with ordinary arrays or arrays from its pool."""

import functools
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.peers.base import AsyncConnection, Connection, Floats, Mode, Peer
from bench.peers.certificates import AUTHORITY, certificate, key
from bench.peers.optional import load

if TYPE_CHECKING:
    from bench.peers.rrpc_client import AsyncBenchClient, BenchClient

COPIED = ("bytes_read", "bytes_written", "bytes_copied", "bytes_staged")


class RrpcConnection(Connection):
    def __init__(self, client: "BenchClient", pool: bool) -> None:
        self._client = client
        self._pool = pool
        self._fetch = client.fetch_pool if pool else client.fetch

    def echo(self, data: bytes) -> bytes:
        return self._client.echo(data)

    def pipeline(self, data: bytes, window: int, calls: int) -> None:
        in_flight: deque[Any] = deque()
        start = self._client.echo.start
        for _ in range(calls):
            if len(in_flight) == window:
                in_flight.popleft().result()
            in_flight.append(start(data))
        for future in in_flight:
            future.result()

    def array(self, nbytes: int) -> Floats:
        ordinary = super().array(nbytes)
        if not self._pool:
            return ordinary
        array: Floats = load("rrpc").empty(ordinary.shape, ordinary.dtype)
        array[:] = ordinary
        return array

    def send(self, array: Floats) -> int:
        return self._client.send(array)

    def fetch(self, nbytes: int) -> Floats:
        return self._fetch(nbytes)

    def ways(self) -> dict[str, Callable[[bytes], bytes]]:
        client, msgpack = self._client, load("msgpack")
        connection = client._channel.ready
        assert connection is not None
        core = connection.core

        def bare(data: bytes) -> bytes:
            reply, _ = core.call(b"Bench.echo", msgpack.packb([data]), None, None, None)
            echoed: bytes = msgpack.unpackb(reply)
            return echoed

        return {
            "generated client": client.echo,
            "Client.call": functools.partial(client.call, "Bench.echo"),
            "bare core": bare,
            "with a deadline": functools.partial(client.echo, timeout=30.0),
            "with metadata": functools.partial(client.echo, metadata={"request-id": "4711"}),
        }

    def receive(self, data: bytes, count: int) -> int:
        return sum(1 for _ in self._client.repeat(data, count))

    def receive_records(self, count: int) -> int | None:
        return sum(1 for _ in self._client.rows(count))

    def stream(self, data: bytes, count: int) -> int:
        return self._client.take(itertools.repeat(data, count))

    def fetch_each(self, nbytes: int, count: int) -> int:
        return sum(array.nbytes for array in self._client.fetch_each(nbytes, count))

    def lending(self, nbytes: int) -> dict[str, Callable[[], None]]:
        array = load("rrpc").zeros(nbytes // 4, "float32")
        array[-1] = 1

        def argument() -> None:
            assert self._client.look(array) == 1

        def result() -> None:
            found = self._client.lend(nbytes)
            assert found[0] + found[-1] == 1

        return {"argument": argument, "result": result}

    def trace(self, data: bytes) -> None:
        with load("rrpc").trace() as trace:
            self.echo(data)
        assert [call.method for call in trace.calls] == ["Bench.echo"]

    def bytes_copied(self) -> int | None:
        ours, theirs = load("rrpc").stats(), self._client.counters()
        return sum(end[key] for end in (ours, theirs) for key in COPIED)

    def close(self) -> None:
        self._client.close()


class RrpcAsyncConnection(AsyncConnection):
    def __init__(self, client: "AsyncBenchClient") -> None:
        self._client = client

    async def echo(self, data: bytes) -> bytes:
        return await self._client.echo(data)

    async def send(self, array: Floats) -> int:
        return await self._client.send(array)

    async def close(self) -> None:
        await self._client.close()


class RrpcPeer(Peer):
    def __init__(self, name: str, transport: str, pool: bool, tls: bool = False) -> None:
        super().__init__(name)
        self._transport = transport
        self._listen = "tcps" if tls else "tcp" if transport == "tcp" else "rrpc"
        self._pool = pool
        self._tls = tls
        self.small_calls = not pool
        self.asyncio = self.streams = not (pool or tls)
        self.many_connections = not tls

    def missing(self) -> str:
        try:
            load("rrpc._core")
        except ImportError as error:
            return f"the core is not built: {error}"
        return ""

    def server_arguments(self, mode: Mode) -> list[str]:
        return [
            "-m",
            "rrpc.cli.serve",
            f"bench.peers.rrpc_service:{'AsyncBench' if mode == 'aio' else 'Bench'}",
            "--listen",
            f"{self._listen}://127.0.0.1:0",
            *(
                ("--tls-cert", str(certificate("server")), "--tls-key", str(key("server")))
                if self._tls
                else ()
            ),
            *(("--tls-client-ca", str(AUTHORITY)) if self._tls else ()),
        ]

    def connect(self, address: str, mode: Mode) -> Connection:
        from bench.peers.rrpc_client import BenchClient

        options: dict[str, Any] = {
            "tls_ca": AUTHORITY,
            "tls_cert": certificate("client"),
            "tls_key": key("client"),
        }
        client = BenchClient(address, **(options if self._tls else {}))
        assert client.info()["transport"] == self._transport, client.info()
        return RrpcConnection(client, self._pool)

    async def connect_async(self, address: str) -> AsyncConnection:
        from bench.peers.rrpc_client import AsyncBenchClient

        client = await AsyncBenchClient(address)
        assert client.info()["transport"] == self._transport, client.info()
        return RrpcAsyncConnection(client)
