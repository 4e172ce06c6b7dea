"""A server whose connections are polled by threads of their own, a share each."""

import asyncio
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from lab import LAB, address_to_listen_on
from processes import Served, ServeFactory, eventually

import rrpc
import rrpc.aio


@rrpc.service
class Sums:
    @rrpc.method
    def total(self, array: np.ndarray) -> float:
        return float(array.sum())

    @rrpc.method
    def halves(self, array: np.ndarray) -> Iterator[np.ndarray]:
        yield array[: array.size // 2]
        yield array[array.size // 2 :]


@rrpc.service
class AsyncSums:
    @rrpc.method
    async def total(self, array: np.ndarray) -> float:
        await asyncio.sleep(0)
        return float(array.sum())


ARRAY = np.arange(300_000.0)


def threads_of(served: Served) -> int:
    status = Path(f"/proc/{served.pid}/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])


def test_calls_arrays_and_streams_of_many_clients(address: str) -> None:
    with rrpc.serve(Sums(), listen=address, pollers=3) as server:
        clients = [rrpc.connect(server.addresses[0]) for _ in range(12)]
        for _ in range(3):
            running = [client.start("Sums.total", ARRAY) for client in clients]
            assert [each.result(timeout=20) for each in running] == [ARRAY.sum()] * 12
        for client in clients:
            halves = rrpc.open_stream(client, "Sums.halves", ARRAY)
            assert np.array_equal(np.concatenate(list(halves)), ARRAY)
        for client in clients:
            client.close()


def test_handlers_in_an_event_loop(address: str) -> None:
    async def main() -> None:
        async with rrpc.aio.serve(AsyncSums(), listen=address, pollers=2) as server:
            clients = [await rrpc.aio.connect(server.addresses[0]) for _ in range(4)]
            for _ in range(20):
                totals = await asyncio.gather(*(each.call("AsyncSums.total", ARRAY) for each in clients))
                assert totals == [ARRAY.sum()] * 4
            for client in clients:
                await client.close()

    asyncio.run(main())


def test_connections_max_counts_those_of_every_poller(address: str) -> None:
    with rrpc.serve(Sums(), listen=address, pollers=2, connections_max=3) as server:
        clients = [rrpc.connect(server.addresses[0]) for _ in range(3)]
        for client in clients:
            client.call("Sums.total", ARRAY)
        with pytest.raises(rrpc.ResourceExhausted, match="connections_max"):
            rrpc.connect(server.addresses[0], timeout=5).call("Sums.total", ARRAY)
        clients.pop().close()

        def admitted() -> bool:
            try:
                clients.append(rrpc.connect(server.addresses[0], timeout=5))
                return bool(clients[-1].call("Sums.total", ARRAY) == ARRAY.sum())
            except rrpc.ResourceExhausted:
                return False

        eventually(admitted)
        for client in clients:
            client.close()


def test_a_drained_server_answers_what_is_under_way(serve: ServeFactory) -> None:
    args = ["--pollers", "2", "--workers", "4"]
    served = serve(LAB, "Lab", args=args, module="lab_service")
    clients = [rrpc.connect(served.address, timeout=20.0) for _ in range(4)]
    with rrpc.connect(served.address, timeout=20.0) as other:
        held = [client.start("Lab.hold", str(i), 1.0) for i, client in enumerate(clients[:3])]
        for i in range(len(held)):
            eventually(partial(other.call, "Lab.holding", str(i)))
    served.signal(signal.SIGTERM)
    assert [each.result() for each in held] == [False] * 3
    assert served.wait() == 0
    for client in clients:
        client.close()


def test_rrpc_serve_has_so_many_threads_more(serve: ServeFactory) -> None:
    usual = serve(LAB, "Lab", args=["--workers", "1"], module="lab_service")
    more = serve(LAB, "Lab", args=["--workers", "1", "--pollers", "3"], module="lab_service")
    for served in (usual, more):
        with rrpc.connect(served.address) as client:
            assert client.call("Lab.add", 1, 2) == 3
    eventually(lambda: threads_of(more) - threads_of(usual) == 3)  # helper threads end when they have no work


@pytest.mark.parametrize("count", [0, 65, -1, 1.5, "two"])
def test_a_bad_number_is_refused(count: object) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="pollers"):
        rrpc.serve(Sums(), listen=address_to_listen_on("tcp"), pollers=count)
