"""Client processes that do as they should while budgets are tried: ``python -m bench.honest TASK ARGUMENT...``.

Each prints its figures as JSON.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from itertools import count

import rrpc

from bench.measure import percentile
from bench.peers.base import Floats, touched
from bench.peers.rrpc_client import BenchClient
from bench.processes import descriptor_count, raise_descriptor_limit
from bench.settings import MIB

ARRAY_BYTES = 128 * 1024
ARRAY_EVERY = 10
PACE_S = 0.001
PATIENCE_S = 2.0
MOVED_BYTES = 10_000_000_000
LIVE_ARRAYS = 10_000
LIVE_BYTES = 200_000
LANDING_MIB = 256
LOAD_SIZES = [64 * 1024 << step for step in range(13)]


def paced(address: str, small_bytes: str, duration: str) -> dict[str, float]:
    """Connects, and makes small calls, every tenth with an array, at a pace that leaves the cores idle mostly.

    A call that fails counts with the time that it took.
    """
    times: dict[str, list[int]] = {"": [], "array_": []}
    failed = 0
    data, numbers = bytes(int(small_bytes)), touched(ARRAY_BYTES)
    begun = time.perf_counter_ns()
    with connected(address) as client:
        connect_ms = (time.perf_counter_ns() - begun) / 1e6
        end = time.perf_counter() + float(duration)
        for number in count(1):
            start = time.perf_counter_ns()
            kind = "array_" if number % ARRAY_EVERY == 0 else ""
            try:
                if kind:
                    assert client.send(numbers) == numbers.nbytes
                else:
                    assert client.echo(data) == data
            except Exception:
                failed += 1
            times[kind].append(time.perf_counter_ns() - start)
            time.sleep(PACE_S)
            if time.perf_counter() > end and times["array_"]:
                break
    found = {f"{kind}p99_us": percentile(took, 0.99) / 1e3 for kind, took in times.items()}
    return {"connect_ms": connect_ms, **found, "failed": failed}


def connected(address: str) -> BenchClient:
    """A client, at the first attempt that succeeds."""
    end = time.perf_counter() + 5 * PATIENCE_S
    while True:
        with contextlib.suppress(rrpc.RpcError):
            return BenchClient(address, timeout=PATIENCE_S)
        if time.perf_counter() > end:
            raise TimeoutError(f"no connection to {address} in {5 * PATIENCE_S:g} s")


def first(task: str, address: str) -> dict[str, float]:
    """GB/s of a call whose bytes land in memory never used before, and of the median of five after it."""
    nbytes = LANDING_MIB * MIB
    with BenchClient(address) as client:
        call = landing_call(client, task, nbytes)
        rates = []
        for _ in range(6):
            start = time.perf_counter_ns()
            call()
            rates.append(nbytes / (time.perf_counter_ns() - start))
    warm = sorted(rates[1:])[2]
    return {"first_gbps": rates[0], "warm_gbps": warm, "first_part": rates[0] / warm}


def landing_call(client: BenchClient, task: str, nbytes: int) -> Callable[[], object]:
    if task == "argument":
        array = touched(nbytes)
        return lambda: client.send(array)
    if task == "pool argument":
        pooled = in_pool(touched(nbytes))
        return lambda: client.send(pooled)
    client.prepare(nbytes)
    return lambda: (client.fetch_pool if task == "pool result" else client.fetch)(nbytes)


def in_pool(array: Floats) -> Floats:
    pooled: Floats = rrpc.empty(array.shape, array.dtype)
    pooled[:] = array
    return pooled


def live() -> dict[str, float]:
    """How many descriptors so many live arrays cost this process."""
    raise_descriptor_limit()
    before = descriptor_count("self")
    kept = [rrpc.empty(LIVE_BYTES, "u1") for _ in range(LIVE_ARRAYS)]
    return {"descriptors": (descriptor_count("self") - before) if kept else 0}


def load(address: str) -> dict[str, float]:
    """Connects and says so; on a line, moves 10 GB both ways in arrays of many sizes and says so; on another, ends."""
    with BenchClient(address) as client:
        client.echo(b"")
        wait_for_line()
        moved = 0
        while moved < MOVED_BYTES:
            for size in LOAD_SIZES:
                client.send(touched(size))
                client.fetch_fresh(size)
                moved += 2 * size
        wait_for_line()
    return {}


def wait_for_line() -> None:
    print("{}", flush=True)
    sys.stdin.readline()


TASKS: dict[str, Callable[..., dict[str, float]]] = {
    "paced": paced,
    "first": first,
    "live": live,
    "load": load,
}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])), flush=True)
