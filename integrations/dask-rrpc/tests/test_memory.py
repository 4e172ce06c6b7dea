"""The pool of a worker's process: how large it may grow, and when its memory goes back."""

from pathlib import Path
from typing import Any

import numpy as np
from distributed import LocalCluster, wait
from test_cluster import cluster, workers
from waiting import eventually

import rrpc

LIMIT_BYTES = 2_000_000_000
ARRAY_BYTES = 256 << 20
CROWDED_BYTES = 700_000_000  # of which a worker that has the array uses more than half
POOL_IDLE_SECONDS = 10.0  # after which free memory goes back by itself


def resident_bytes() -> int:
    """Memory of this process that has no file, shared or not."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(status[key].split()[0]) * 1024 for key in ("RssAnon", "RssShmem"))


def pool_limit() -> int:
    return rrpc.stats()["pool_limit_bytes"]


def test_the_pool_is_bounded_by_the_workers_memory() -> None:
    with cluster(memory_limit=LIMIT_BYTES) as client:
        assert set(client.run(pool_limit).values()) == {LIMIT_BYTES}


def test_workers_of_one_process_share_its_pool() -> None:
    before = pool_limit()
    try:
        with LocalCluster(
            n_workers=2, processes=False, protocol="rrpc://", memory_limit=LIMIT_BYTES, dashboard_address=":0"
        ):
            assert pool_limit() == 2 * LIMIT_BYTES
    finally:
        rrpc.set_pool_limit(before)


def test_free_memory_goes_back_before_dask_pauses_a_worker() -> None:
    with cluster(memory_limit=CROWDED_BYTES) as client:
        first, second = workers(client)

        def resident() -> int:
            found: dict[str, int] = client.run(resident_bytes, workers=[second])
            return found[second]

        before = resident()
        array: Any = client.submit(np.ones, ARRAY_BYTES // 8, workers=[first], pure=False)
        fetched = client.submit(lambda array: array, array, workers=[second], pure=False)
        wait(fetched)
        assert resident() > before + ARRAY_BYTES * 0.9
        del fetched, array
        eventually(lambda: resident() < before + ARRAY_BYTES * 0.2, POOL_IDLE_SECONDS / 2)
