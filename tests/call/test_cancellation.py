"""Calls that are given up: their reads stop, no memory stays exposed, nothing is left at either end."""

import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from lab import TRANSPORTS, LabServer, address_to_listen_on, settles, transient
from processes import HELPERS, ServeFactory, eventually, patience, volume

import rrpc
from rrpc.std import StatsClient

SERVICE = (HELPERS / "context_service.py").read_text()
MIB = 1 << 20


@pytest.fixture(scope="module")
def seen_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    folder = tmp_path_factory.mktemp("cancelled")
    factory = ServeFactory(folder, address_to_listen_on)
    yield LabServer(
        factory(SERVICE, "Seen", listen=TRANSPORTS, module="context_service", args=["--workers", "8"])
    )
    factory.close()


@pytest.fixture
def seen(seen_server: LabServer, transport: str) -> Iterator[rrpc.Client]:
    with rrpc.connect(seen_server.address(transport), timeout=patience(60)) as client:
        yield client


def _idle(client: rrpc.Client) -> Callable[[], None]:
    """What waits until both ends hold no more than now."""
    here, there = transient(rrpc.stats()), transient(client.call("Seen.counts"))

    def settled() -> None:
        settles(rrpc.stats, here)
        settles(lambda: client.call("Seen.counts"), there)
        with StatsClient(client.address, timeout=patience(30)) as stats:
            eventually(lambda: stats.process().calls_running == 1, what="the call that asks, and no other")

    return settled


def test_the_arguments_are_not_exposed_any_more(seen: rrpc.Client, request: pytest.FixtureRequest) -> None:
    """Though the handler goes on, with what it has fetched; and its result, that nobody wants, isn't exposed."""
    name = request.node.name
    settled = _idle(seen)
    array = np.ones(MIB)
    future = seen.start("Seen.keep", name, array)
    assert seen.call("Seen.began", name)
    assert rrpc.stats()["bytes_exposed"] >= array.nbytes
    assert future.cancel()
    eventually(lambda: rrpc.stats()["bytes_exposed"] == 0)
    array[:] = 5
    seen.call("Seen.release", name)
    assert seen.call("Seen.seen", name) == 2 * MIB
    settled()


def test_reads_under_way_stop(seen: rrpc.Client) -> None:
    """What was begun to be fetched isn't fetched to its end, and no handler sees it."""
    settled = _idle(seen)
    array = np.ones(volume(256, 32) * MIB, np.uint8)

    def stopped() -> bool:  # unless the call was over before it could be cancelled
        before = seen.call("Seen.counts")
        future = seen.start("Seen.echo", array)
        eventually(lambda: seen.call("Seen.counts")["pool_bytes_used"] >= array.nbytes or future.done())
        future.cancel()
        eventually(lambda: rrpc.stats()["bytes_exposed"] == 0)
        return future.cancelled() and seen.call("Seen.counts")["bytes_read"] == before["bytes_read"]

    eventually(stopped, 60.0)
    settled()


def _random_call(client: rrpc.Client, chance: random.Random, arrays: list[Any]) -> rrpc.Future[Any]:
    array = arrays[chance.randrange(len(arrays))]
    kind = chance.randrange(6)
    if kind == 0:
        return client.start("Seen.echo", "small")
    if kind == 1:
        return client.start("Seen.echo", array)
    if kind == 2:
        return client.start("Seen.make", array.nbytes)
    if kind == 3:
        return client.start("Seen.make", array.nbytes, out=np.empty(array.nbytes, np.uint8))
    if kind == 4:
        return client.start("Seen.pause", 5.0, timeout=chance.choice([None, 0.002, 5.0]))
    return client.start("Seen.echo", "x" * 30_000, metadata={"key": b"\xff" * 100})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_calls_given_up_at_any_moment(seen: rrpc.Client, seed: int) -> None:
    """Hundreds of them, of every kind, several at a time; some with the connection."""
    settled = _idle(seen)
    chance = random.Random(seed)
    arrays = [np.full(nbytes, 7, np.uint8) for nbytes in (100, 20_000, MIB, 8 * MIB)]
    outcomes: dict[str, int] = {}
    other = rrpc.connect(seen.address)
    for _ in range(volume(400, 40)):
        calls = [_random_call(other, chance, arrays) for _ in range(chance.randrange(1, 5))]
        other = _give_up(other, calls, chance)
        for call in calls:
            outcome = type(call.exception(timeout=patience(30))).__name__
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        del call, calls
    other.close()
    print(outcomes)
    assert outcomes["Cancelled"] > 10
    assert outcomes["NoneType"] > 10
    assert outcomes.keys() <= {"Cancelled", "NoneType", "Unavailable", "DeadlineExceeded"}
    gc.collect()  # a traceback holds the frames that it has passed through, with what they have
    settled()
    with StatsClient(seen.address, timeout=patience(30)) as stats:
        eventually(lambda: stats.process().connections == 2, what="ours and the one that asks")


def _give_up(client: rrpc.Client, calls: list[Any], chance: random.Random) -> rrpc.Client:
    """After a while: all calls, or their connection; gives the client to go on with."""
    with suppress(TimeoutError, rrpc.RpcError):
        calls[0].result(timeout=chance.expovariate(500))
    how = chance.random()
    if how < 0.05:
        client.close()
        return rrpc.connect(client.address)
    if how < 0.3:
        thread = threading.Thread(target=lambda: [call.cancel() for call in calls])
        thread.start()
        thread.join()
    else:
        for call in calls:
            call.cancel()
    return client
