"""Clusters of real processes, whose scheduler, workers and client talk over rrpc."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, wait

import rrpc

WAIT_SECONDS = 90.0
FAULTS = {
    "distributed.scheduler.allowed-failures": 10,
    "distributed.comm.rrpc": {"keepalive-interval": 1.0, "keepalive-timeout": 1.0},
}


@contextmanager
def cluster(config: dict[str, Any] | None = None, **options: Any) -> Iterator[Any]:
    """A client of a cluster of two workers with nannies."""
    options = {"n_workers": 2, "threads_per_worker": 1, **options}
    with (
        dask.config.set(config or {}),
        LocalCluster(protocol="rrpc://", dashboard_address=":0", silence_logs=False, **options) as made,
        Client(made) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster(FAULTS) as client:
        yield client


def workers(client: Any) -> list[str]:
    return list(client.scheduler_info()["workers"])


def moved(client: Any, count: int = 1 << 22) -> float:
    """The sum of an array that one worker makes and another one fetches."""
    first, second = workers(client)[:2]
    array = client.submit(np.arange, count, workers=[first], pure=False)
    total: float = client.submit(np.sum, array, workers=[second], pure=False).result(WAIT_SECONDS)
    return total


def test_all_addresses_are_ours(client: Any) -> None:
    addresses = [client.scheduler.address, *workers(client)]
    assert len(addresses) == 3
    assert all(address.startswith("rrpc://") for address in addresses)


def test_arrays_go_from_worker_to_worker(client: Any) -> None:
    assert moved(client) == sum(range(1 << 22))


def test_an_array_larger_than_a_shard_of_dask_arrives_in_one_piece(client: Any) -> None:
    first, second = workers(client)
    array = client.submit(np.ones, 9 << 20, workers=[first], pure=False)  # 72 MiB
    wait(array)
    before = client.run(rrpc.stats, workers=[second])[second]["reads"]
    assert client.submit(len, array, workers=[second], pure=False).result(WAIT_SECONDS) == 9 << 20
    assert client.run(rrpc.stats, workers=[second])[second]["reads"] == before + 1


def test_scatter_and_gather(client: Any) -> None:
    arrays = [np.full(1 << 20, number) for number in range(4)]
    back = client.gather(client.scatter(arrays))
    assert all((ours == theirs).all() for ours, theirs in zip(back, arrays, strict=True))


def test_an_array_job(client: Any) -> None:
    matrix = dask.array.ones((2000, 2000), chunks=500)
    assert float((matrix @ matrix.T).sum().compute()) == 2000.0**3


def shuffled(rows: int = 20_000) -> Any:
    frame = pd.DataFrame({"key": np.arange(rows) % 97, "value": np.arange(rows)})
    return dask.dataframe.from_pandas(frame, npartitions=8).shuffle("key")


def test_a_shuffle(client: Any) -> None:
    parts = client.gather(client.compute(shuffled().to_delayed()))
    assert sum(part["value"].sum() for part in parts) == sum(range(20_000))
    homes = [set(part["key"]) for part in parts]
    assert sum(map(len, homes)) == 97, "each key is in one partition"


def amid_a_shuffle(client: Any, do: Callable[[int], object]) -> None:
    """A shuffle whose result is right, though ``do(pid)`` is done to one of its workers while it runs."""
    pid = next(iter(client.run(os.getpid).values()))
    total = client.compute(shuffled()["value"].sum())
    do(pid)
    assert total.result(timeout=WAIT_SECONDS) == sum(range(20_000))


def test_a_worker_that_is_killed_amid_a_shuffle(client: Any) -> None:
    amid_a_shuffle(client, lambda pid: os.kill(pid, signal.SIGKILL))
    client.wait_for_workers(2, timeout=WAIT_SECONDS)
    assert moved(client) == sum(range(1 << 22))


def test_a_worker_that_is_frozen_amid_a_shuffle() -> None:
    frozen: list[int] = []
    with cluster(FAULTS) as client:
        try:
            amid_a_shuffle(client, lambda pid: (os.kill(pid, signal.SIGSTOP), frozen.append(pid)))
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)


def test_workers_that_are_restarted(client: Any) -> None:
    before = set(client.run(os.getpid).values())
    client.restart(timeout=WAIT_SECONDS)
    assert before.isdisjoint(client.run(os.getpid).values())
    assert moved(client) == sum(range(1 << 22))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_each_way_to_begin_processes(method: str) -> None:
    with cluster({"distributed.worker.multiprocessing-method": method}) as client:
        assert moved(client) == sum(range(1 << 22))


def test_several_loops_in_a_process_use_one_cluster(client: Any) -> None:
    totals: list[float] = []

    def another(number: int) -> None:
        with Client(client.scheduler.address, set_as_default=False) as own:  # with a loop of its own
            totals.append(own.submit(sum, range(100), pure=False).result(WAIT_SECONDS))
            totals.append(float(own.gather(own.scatter(np.full(1 << 16, number))).sum()))

    threads = [threading.Thread(target=another, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert sorted(totals) == [4950.0] * 3 + [65536.0 * number for number in (1, 2, 3)]
