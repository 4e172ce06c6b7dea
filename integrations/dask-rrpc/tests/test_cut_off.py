"""A worker whose connections go silent, as behind a router that has failed: nothing closes them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from distributed import wait
from distributed.comm import CommClosedError, connect
from test_cluster import FAULTS, WAIT_SECONDS, cluster, workers
from waiting import eventually

from tests.faults.relay import Relay

KEEPALIVE_SECONDS = 2.0
"""With the options of FAULTS: this is the longest silence, interval and timeout together."""


def vacant_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def worker_behind(to_scheduler: Relay, to_worker: Relay) -> Iterator[None]:
    """A worker that the cluster reaches by a relay, and that reaches its scheduler by another one."""
    to_worker.target = vacant_port()
    command = [sys.executable, "-m", "distributed.cli.dask_worker", f"rrpc://127.0.0.1:{to_scheduler.port}"]
    command += ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--name", "behind"]
    command += ["--listen-address", f"rrpc://127.0.0.1:{to_worker.target}"]
    command += ["--contact-address", f"rrpc://127.0.0.1:{to_worker.port}"]
    faults = FAULTS["distributed.comm.rrpc"]
    keepalive = {
        f"DASK_DISTRIBUTED__COMM__RRPC__{name.replace('-', '_').upper()}": str(value)
        for name, value in faults.items()
    }
    # Over shared memory nothing would go through the relays.
    process = subprocess.Popen(command, env={**os.environ, **keepalive, "RRPC_TRANSPORTS": "tcp"})
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def ended(comm: Any) -> float:
    """Seconds until a read of a comm that says nothing is over."""
    start = time.monotonic()
    with pytest.raises(CommClosedError, match="silent"):
        await comm.read()
    return time.monotonic() - start


def test_a_worker_that_is_cut_off() -> None:
    relays = Relay(), Relay()
    with cluster(FAULTS) as client:
        relays[0].target = int(client.scheduler.address.rpartition(":")[2])
        with worker_behind(*relays):
            client.wait_for_workers(3, timeout=WAIT_SECONDS)
            behind = f"rrpc://127.0.0.1:{relays[1].port}"
            assert behind in workers(client)
            # The scheduler may have it made again by another worker.
            array = client.submit(np.arange, 1 << 22, workers=[behind], allow_other_workers=True, pure=False)
            wait(array)
            assert client.who_has(array)[array.key] == (behind,)
            loop = client.loop.asyncio_loop
            comm = asyncio.run_coroutine_threadsafe(connect(behind), loop).result(WAIT_SECONDS)
            for relay in relays:
                relay.silence(True)
            took = asyncio.run_coroutine_threadsafe(ended(comm), loop)
            other = next(address for address in workers(client) if address != behind)
            total: Any = client.submit(np.sum, array, workers=[other], pure=False)
            assert total.result(timeout=WAIT_SECONDS) == sum(range(1 << 22))
            assert took.result(timeout=WAIT_SECONDS) < 3 * KEEPALIVE_SECONDS
            eventually(lambda: behind not in workers(client), WAIT_SECONDS)
    for relay in relays:
        relay.close()
