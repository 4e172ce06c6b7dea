"""Server processes that are killed under RDMA, and what else only an adapter shows of a connection."""

import socket
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest
from guest_network import queue_pairs
from lab import LAB, settles, transient
from lab_service import Lab
from processes import Served, ServeFactory, eventually
from under_way import UnderWay, slowly

import rrpc

MIB = 1 << 20
KEEPALIVE_SECONDS = slowly(2.0)  # interval, and timeout
SLACK = slowly(6.0)  # of an emulated machine


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=["--workers", "6"])


def test_what_a_killed_server_leaves(served: Served) -> None:
    idle, before = transient(rrpc.stats()), len(queue_pairs())
    client = rrpc.connect(
        served.address,
        connect_timeout=slowly(30.0),
        keepalive_interval=KEEPALIVE_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    under_way = UnderWay(client, "killed")
    assert len(queue_pairs()) == before + 2
    served.kill()
    start = time.monotonic()
    print(under_way.errors(timeout=slowly(60.0)))
    took = time.monotonic() - start
    assert took < 2 * KEEPALIVE_SECONDS + SLACK, f"Unavailable after {took:.2f} s"
    settles(rrpc.stats, idle)
    eventually(lambda: len(queue_pairs()) <= before, what="queue pairs of both ends destroyed")
    client.close()


def test_exposures_are_of_the_kind_that_the_adapter_has(lab_address: str, transport: str) -> None:
    before = rrpc.stats()
    with rrpc.connect(lab_address, connect_timeout=slowly(30.0)) as client:
        assert client.info()["bulk_method"] == "RDMA"
        assert client.call("Lab.size", np.ones(MIB, np.uint8)) == MIB
    after = rrpc.stats()
    made = {
        kind: after[f"exposures_by_{kind}"] - before[f"exposures_by_{kind}"]
        for kind in ("window", "registration")
    }
    assert (
        made == {"window": 0, "registration": 1} if transport == "siw" else {"window": 1, "registration": 0}
    )


@pytest.mark.parametrize("transport", ["rxe", "siw"])
def test_many_connections_take_their_receives_from_one_queue(serve: ServeFactory, transport: str) -> None:
    """Each sends more than its share at a time. On siw, which has no windows, each has a ring of its own after all."""
    args = ["--workers", "6", "--shared-receive-slots", "256"]
    served = serve(LAB, "Lab", listen=transport, module="lab_service", args=args)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(rrpc.connect(served.address, connect_timeout=slowly(30.0))) for _ in range(6)
        ]
        futures = [(i, client.start("Lab.add", i)) for i in range(40) for client in clients]
        assert [future.result(timeout=slowly(60.0)) for _, future in futures] == [i + 1 for i, _ in futures]
        clients[0].close()
        array = np.ones(MIB, np.uint8)
        assert [client.call("Lab.size", array) for client in clients[1:]] == [MIB] * 5


def test_a_request_to_connect_that_is_lost_is_made_again() -> None:
    """Soft-iWARP's connections are TCP's: a plain socket takes the first request, behind the one by which the client
    sees that the host is there, and never answers it. The client makes others while there is time."""
    with socket.create_server(("10.9.1.1", 0)) as silent, rrpc.Server(Lab()) as server:
        address = f"verbs://10.9.1.1:{silent.getsockname()[1]}"
        taken: list[socket.socket] = []

        def lose_one() -> None:
            taken.extend(silent.accept()[0] for _ in range(2))
            silent.close()
            server.listen(address)

        loser = threading.Thread(target=lose_one)
        loser.start()
        with rrpc.connect(address, connect_timeout=slowly(5.0)) as client:
            assert client.call("Lab.add", 1) == 2
        loser.join()
        for connection in taken:
            connection.close()


@pytest.mark.parametrize("network", ["10.9.0", "10.9.1"], ids=["rxe", "siw"])
def test_a_host_that_says_nothing_costs_the_timeout(network: str) -> None:
    """Nobody has the address, and the link loses what is sent to it. Soft-iWARP's own way to connect waits for TCP,
    which gives up after two minutes."""
    start = time.monotonic()
    with pytest.raises((rrpc.DeadlineExceeded, rrpc.Unavailable)):
        rrpc.connect(f"verbs://{network}.77:7471", connect_timeout=slowly(3.0))
    assert time.monotonic() - start < slowly(3.0) + SLACK
