"""Servers that take no new clients; where they listen; and servers of async handlers alone."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from aio import until
from processes import eventually, patience

import rrpc
from rrpc.std import HealthClient, HealthStatus


@rrpc.service
class Plain:
    @rrpc.method
    def double(self, number: int) -> int:
        return 2 * number

    @rrpc.method
    def back(self, items: Iterator[int]) -> Iterator[int]:
        yield from items


@rrpc.service
class Later:
    @rrpc.method
    async def double(self, number: int) -> int:
        return 2 * number

    @rrpc.method
    async def back(self, items: AsyncIterator[int]) -> AsyncIterator[int]:
        async for item in items:
            yield item

    @rrpc.method
    async def hold(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("service", [Plain, Later])
def test_those_connected_go_on(new_address: Callable[[str], str], service: type, scheme: str) -> None:
    name = service.__name__
    with (
        rrpc.serve(service(), listen=new_address(scheme)) as server,
        rrpc.connect(server.addresses[0]) as client,
    ):
        stream = rrpc.open_stream(client, f"{name}.back", sends=True)
        stream.send(1)
        assert next(stream) == 1
        server.stop_listening()
        server.stop_listening()  # which does nothing
        with pytest.raises(rrpc.Unavailable):
            rrpc.connect(server.addresses[0])
        stream.send(2)
        assert next(stream) == 2
        assert client.call(f"{name}.double", 4) == 8
        with rrpc.connect(server.listen(new_address(scheme))) as another:
            assert another.call(f"{name}.double", 5) == 10
        stream.cancel()


@pytest.fixture(params=["tcp", "shm", "rrpc"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("scheme", ["tcp", "rrpc"], indirect=True)
def test_no_host_is_every_address_of_both_families(scheme: str) -> None:
    with rrpc.serve(Plain(), listen=f"{scheme}://:0") as server:
        bound = server.addresses[0]
        port = bound.rpartition(":")[2]
        assert bound == f"{scheme}://[::]:{port}"
        for host in ("127.0.0.1", "[::1]", "localhost", "[::]", "0.0.0.0"):
            with rrpc.connect(f"{scheme}://{host}:{port}") as client:
                assert client.call("Plain.double", 2) == 4
        with socket.create_connection(("127.0.0.1", int(port))):
            pass


def test_a_peer_of_ipv4_is_named_so() -> None:
    seen = []
    server = rrpc.serve(Plain(), listen="tcp://:0", observer=lambda call: seen.append(call.peer))
    with server, rrpc.connect(server.addresses[0].replace("[::]", "127.0.0.1")) as client:
        client.call("Plain.double", 2)
        eventually(lambda: seen)
    assert seen[0].startswith("127.0.0.1:")


def worker_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("rrpc-w", "rrpc-b"))]


def test_async_handlers_alone_have_no_workers(address: str) -> None:
    before = worker_threads()
    with rrpc.serve(Later(), listen=address) as server, rrpc.Channel(server.addresses[0]) as channel:
        assert worker_threads() == before
        client, health = (
            rrpc.Client(channel, timeout=patience(20)),
            HealthClient(channel, timeout=patience(20)),
        )
        assert client.call("Later.double", 3) == 6
        assert health.check("Later") is HealthStatus.SERVING
        assert "rrpc.Health" in client.call("rrpc.Reflection.services")
        with pytest.raises(rrpc.Unimplemented, match="Later has no method 'treble'"):
            client.call("Later.treble", 3)
        with pytest.raises(rrpc.Unimplemented, match="there is no service 'Sooner' here"):
            next(rrpc.open_stream(client, "Sooner.back", sends=True))
        watched = [health.watch() for _ in range(3)]
        assert [next(states) for states in watched] == [HealthStatus.SERVING] * 3
        server.health.set("Later", False)
        assert [next(states) for states in watched] == [HealthStatus.NOT_SERVING] * 3
        assert not server.wait(0.01)
        watched[0].close()
        waiting = threading.Thread(target=server.wait)
        waiting.start()
        server.stop()
        waiting.join(patience(20))
        assert not waiting.is_alive()


def test_they_answer_probes_while_their_queue_is_full(address: str) -> None:
    server = rrpc.serve(Later(), listen=address, max_concurrency=1, max_queue=1)
    with server, rrpc.Channel(server.addresses[0]) as channel:
        client = rrpc.Client(channel, timeout=patience(60))
        held = [client.start("Later.hold") for _ in range(2)]
        # A call that waits for the connection may be overtaken by one that finds it made.
        eventually(lambda: client.call("rrpc.Stats.process")["calls_running"] == 3)  # the call that asks, too
        with pytest.raises(rrpc.ResourceExhausted):
            client.call("Later.hold")
        assert HealthClient(channel, timeout=patience(20)).check() is HealthStatus.SERVING
        assert not any(future.done() for future in held)


@pytest.mark.parametrize("how", ["awaited", "in a task", "called", "in a thread", "after the loop"])
def test_an_asyncio_client_is_closed_anywhere(address: str, how: str) -> None:
    async def main(bound: str) -> Any:
        client = await rrpc.aio.connect(bound)
        pending = client.start("Later.hold")
        await until(lambda: counted(client, 1))
        if how == "awaited":
            await client.close()
        elif how == "in a task":
            await asyncio.ensure_future(client.close())
        elif how == "called":
            client.close()
        elif how == "in a thread":
            await asyncio.to_thread(client.close)
        else:
            pending.cancel()
            return client
        with pytest.raises(rrpc.Unavailable):
            await pending
        with pytest.raises(rrpc.Unavailable, match="closed"):
            await client.call("Later.double", 1)
        return client

    with rrpc.serve(Later(), listen=address) as server:
        asyncio.run(main(server.addresses[0])).close()
        eventually(lambda: server.stats()["connections"] == 0)


async def counted(client: Any, running: int) -> bool:
    return bool(client.stats()["calls_in_flight"] == running)
