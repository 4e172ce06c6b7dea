"""Clusters of real processes, whose scheduler, workers and client talk over rrpc."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import dask
import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 10}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, protocol="rrpc://", dashboard_address=":0", silence_logs=False
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def workers(client: Any) -> list[str]:
    return list(client.scheduler_info()["workers"])


def test_all_addresses_are_ours(client: Any) -> None:
    addresses = [client.scheduler.address, *workers(client)]
    assert len(addresses) == 3
    assert all(address.startswith("rrpc://") for address in addresses)


def test_arrays_go_from_worker_to_worker(client: Any) -> None:
    first, second = workers(client)
    array = client.submit(np.arange, 1 << 22, workers=[first])
    assert client.submit(np.sum, array, workers=[second]).result() == sum(range(1 << 22))


def test_scatter_and_gather(client: Any) -> None:
    arrays = [np.full(1 << 20, number) for number in range(4)]
    back = client.gather(client.scatter(arrays))
    assert all((ours == theirs).all() for ours, theirs in zip(back, arrays, strict=True))


def test_an_array_job(client: Any) -> None:
    matrix = dask.array.ones((2000, 2000), chunks=500)
    assert float((matrix @ matrix.T).sum().compute()) == 2000.0**3


def shuffled() -> Any:
    frame = pd.DataFrame({"key": np.arange(20_000) % 97, "value": np.arange(20_000)})
    return dask.dataframe.from_pandas(frame, npartitions=8).shuffle("key")


def test_a_shuffle(client: Any) -> None:
    parts = client.gather(client.compute(shuffled().to_delayed()))
    assert sum(part["value"].sum() for part in parts) == sum(range(20_000))
    homes = [set(part["key"]) for part in parts]
    assert sum(map(len, homes)) == 97, "each key is in one partition"


def test_a_worker_that_is_killed_amid_a_shuffle(client: Any) -> None:
    victim = next(iter(client.run(os.getpid).values()))
    total = client.compute(shuffled()["value"].sum())
    os.kill(victim, signal.SIGKILL)
    assert total.result(timeout=60) == sum(range(20_000))
    client.wait_for_workers(2, timeout=60)
