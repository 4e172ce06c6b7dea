"""Peers and links that go away under RDMA: Unavailable in time, and the adapter has its queue pairs back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from guest_network import down, queue_pairs
from lab import LAB, settles, still_answers, transient
from processes import Served, ServeFactory, eventually

import rrpc

MIB = 1 << 20
LINKS = {"rxe": "rx0", "rxe-socket": "rx0", "siw": "iw0"}
INTERVAL = TIMEOUT = 2.0
SLACK = 6.0  # of an emulated machine
KEEPALIVE: dict[str, Any] = {"keepalive_interval": INTERVAL, "keepalive_timeout": TIMEOUT}


@pytest.fixture
def all_come_back() -> Iterator[None]:
    """After the test the kernel has no more queue pairs than before it."""
    before = queue_pairs()
    yield
    eventually(lambda: queue_pairs() <= before, what="queue pairs destroyed")


@pytest.fixture
def served(all_come_back: None, serve: ServeFactory, transport: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=["--workers", "6"])


@contextmanager
def within_the_keepalive(what: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    print(f"{what}: {took:.2f} s")
    assert took < INTERVAL + TIMEOUT + SLACK, f"{what} took {took:.2f} s"


def call_until_it_fails(client: rrpc.Client) -> None:
    array = np.ones(2 * MIB, np.uint8)
    with suppress(rrpc.Unavailable):
        while True:
            client.call("Lab.size", array)


def test_the_link_goes_down_in_calls(served: Served, transport: str) -> None:
    idle = transient(rrpc.stats())
    with rrpc.connect(served.address, connect_timeout=30.0, **KEEPALIVE) as client:
        future = client.start("Lab.hold", "down", 60.0)
        assert client.call("Lab.size", np.ones(2 * MIB, np.uint8)) == 2 * MIB
        assert queue_pairs() >= 2
        with down(LINKS[transport]):
            with within_the_keepalive("Unavailable after the link went down"):
                with pytest.raises(rrpc.Unavailable) as raised:
                    future.result(timeout=60)
                call_until_it_fails(client)
            assert "\n" not in str(raised.value)
    settles(rrpc.stats, idle)
    eventually(lambda: connects(served.address), what="a connection once the link is up")


def connects(address: str) -> bool:
    with suppress(rrpc.Unavailable, rrpc.DeadlineExceeded):
        still_answers(address)
        return True
    return False


def test_the_link_goes_down_in_a_read(served: Served, transport: str) -> None:
    idle = transient(rrpc.stats())
    with rrpc.connect(served.address, connect_timeout=30.0, **KEEPALIVE) as client:
        large = np.ones(32 * MIB, np.uint8)
        futures = [client.start("Lab.size", large), client.start("Lab.make", 32 * MIB)]
        eventually(lambda: rrpc.stats()["messages_sent"] > 0)
        with down(LINKS[transport]), within_the_keepalive("Unavailable in the middle of a read"):
            for future in futures:
                with pytest.raises(rrpc.Unavailable):
                    future.result(timeout=60)
        del futures, future
    settles(rrpc.stats, idle)


def test_what_a_killed_server_leaves(served: Served) -> None:
    idle, before = transient(rrpc.stats()), queue_pairs()
    client = rrpc.connect(served.address, connect_timeout=30.0, **KEEPALIVE)
    futures = [client.start("Lab.hold", "killed"), client.start("Lab.size", np.ones(32 * MIB, np.uint8))]
    eventually(lambda: queue_pairs() >= before + 2)
    served.kill()
    with within_the_keepalive("Unavailable after the server's death"):
        for future in futures:
            with pytest.raises(rrpc.Unavailable):
                future.result(timeout=60)
    del futures, future
    settles(rrpc.stats, idle)
    client.close()
    eventually(lambda: queue_pairs() <= before, what="queue pairs of both ends destroyed")


def test_exposures_are_of_the_kind_that_the_adapter_has(served: Served, transport: str) -> None:
    before = rrpc.stats()
    with rrpc.connect(served.address, connect_timeout=30.0) as client:
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
