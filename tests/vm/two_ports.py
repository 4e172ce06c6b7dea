"""Two adapters of one host, each on a network of its own: a channel over both, and one connection with a rail, of which
one goes down and comes back.
Run by tests/vm/two_ports.sh."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from guest_network import down
from lab import LAB
from processes import Served, ServeFactory, eventually
from under_way import slowly

import rrpc

LINKS = {"rxp": "rp", "rxq": "rq"}
NETWORKS = {"rxp": "10.9.4.1", "rxq": "10.9.5.1"}
ARRAY = np.ones(1 << 20, np.uint8)
LARGE = np.arange(16 << 20, dtype=np.uint8)
CALLS = 8
# Without a header: what an adapter must have sent at least, in packets of 4 KiB, if it had so many of the calls.
PACKETS_PER_CALL = ARRAY.nbytes // 4096


def packets(adapter: str) -> int:
    """What an adapter has sent, on both ends of its connections."""
    return int(Path(f"/sys/class/infiniband/{adapter}/ports/1/hw_counters/sent_pkts").read_text())


def size(client: rrpc.Client) -> int:
    answer: int = client.call("Lab.size", ARRAY)
    return answer


def calls_by(client: rrpc.Client) -> dict[str, int]:
    """Makes calls with arrays in parallel; gives how many of them, at least, went by each adapter."""
    before = {adapter: packets(adapter) for adapter in LINKS}
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(size, [client] * CALLS)) == [ARRAY.nbytes] * CALLS
    return {adapter: (packets(adapter) - count) // PACKETS_PER_CALL for adapter, count in before.items()}


def states(channel: rrpc.Channel) -> list[str]:
    return [address["state"] for address in channel.info()["addresses"]]


@pytest.fixture
def served(serve: ServeFactory) -> Served:
    listens = [f"verbs+tcp://{address}:0?device={adapter}" for adapter, address in NETWORKS.items()]
    return serve(LAB, "Lab", listen=listens, module="lab_service", args=["--workers", "6"])


@pytest.fixture
def channel(served: Served) -> Iterator[rrpc.Channel]:
    keepalive = slowly(2.0)
    with rrpc.Channel(
        served.addresses,
        policy="round_robin",
        connect_timeout=slowly(30.0),
        keepalive_interval=keepalive,
        keepalive_timeout=keepalive,
    ) as made:
        made.wait_ready(slowly(30.0))
        eventually(lambda: states(made) == ["ready"] * 2, what="connections over both ports")
        yield made


def test_calls_use_both_ports_and_one_that_is_left(channel: rrpc.Channel) -> None:
    again = rrpc.RetryPolicy(max_attempts=10, initial_backoff=0.05, budget=None)
    with rrpc.connect(channel, timeout=slowly(60.0), retry=again) as client:
        both = calls_by(client)
        assert min(both.values()) >= CALLS // 2 - 1, both
        with down(LINKS["rxq"]):
            eventually(lambda: states(channel)[1] != "ready", slowly(30.0), "the lost port is noticed")
            one = calls_by(client)
            assert one["rxp"] >= CALLS - 1, one
            assert one["rxq"] == 0, one
        eventually(lambda: states(channel) == ["ready"] * 2, slowly(60.0), "the port is used again")
        both = calls_by(client)
        assert min(both.values()) >= CALLS // 2 - 1, both


@pytest.fixture
def striped(served: Served) -> Iterator[rrpc.Client]:
    own, rail = served.addresses
    with rrpc.connect(f"{own}?rail={rail.removeprefix('verbs+tcp://')}", timeout=slowly(60.0)) as client:
        eventually(lambda: has_rail(client), slowly(30.0), "the rail is connected")
        yield client


def has_rail(client: rrpc.Client) -> bool:
    return bool(client.info()["rails"].endswith(" connected"))


def shares(client: rrpc.Client) -> dict[str, float]:
    """Has a large array fetched by the server, then by the client; gives what part of it each adapter sent."""
    before = {adapter: packets(adapter) for adapter in LINKS}
    assert np.array_equal(client.call("Lab.echo", LARGE), LARGE)
    sent = {adapter: packets(adapter) - count for adapter, count in before.items()}
    return {adapter: count / sum(sent.values()) for adapter, count in sent.items()}


def spread(client: rrpc.Client) -> bool:
    return min(shares(client).values()) > 0.25


def test_one_array_goes_over_both_ports_and_over_the_one_that_is_left(striped: rrpc.Client) -> None:
    eventually(lambda: spread(striped), slowly(30.0), "an array goes over both ports")
    fetched = striped.stats()["bytes_read_by_rails"]
    assert fetched > LARGE.nbytes // 4
    with down(LINKS["rxq"]):
        left = shares(striped)  # what was asked for by the rail is asked for again
        assert left["rxp"] > 0.9, left
        assert not has_rail(striped)
        assert striped.stats()["bytes_read_by_rails"] == fetched
    eventually(lambda: has_rail(striped), slowly(60.0), "the rail is dialled again")
    eventually(lambda: spread(striped), slowly(30.0), "an array goes over both ports again")
