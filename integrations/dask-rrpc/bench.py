"""``python bench.py``: arrays, echoes and tiny tasks over Dask's tcp and over rrpc, side by side.

Two clusters of two workers each on this host take turns. Cold: the first transfer to a worker. An echo: a request of
the client to a worker, and its reply.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
from distributed import Client, LocalCluster, wait

SCHEMES = ("tcp", "rrpc")
SIZES = {"1 MiB": 1 << 20, "64 MiB": 1 << 26, "1 GiB": 1 << 30}
TASKS = 500
ECHOES = 500
GATHERED = 1 << 30


def fetch(client: Any, nbytes: int) -> float:
    """Seconds that a worker waits for an array of the other one's."""
    first, second = client.scheduler_info()["workers"]
    array = client.submit(np.ones, nbytes // 8, workers=[first], pure=False)
    wait(array)
    start = time.perf_counter()
    client.submit(len, array, workers=[second], pure=False).result()
    return time.perf_counter() - start


def gather(client: Any) -> float:
    """Seconds that the client waits for an array of a worker's."""
    array = client.submit(np.ones, GATHERED // 8, pure=False)
    wait(array)
    start = time.perf_counter()
    client.gather(array)
    return time.perf_counter() - start


def scatter(client: Any, array: Any) -> float:
    """Seconds until a worker has an array of the client's."""
    first, _ = client.scheduler_info()["workers"]
    start = time.perf_counter()
    client.scatter(array, workers=[first], direct=True, hash=False)
    return time.perf_counter() - start


def echoes(client: Any) -> float:
    """Seconds of one request to a worker and its reply."""
    first, _ = client.scheduler_info()["workers"]

    async def run() -> float:
        worker = client.rpc(first)
        for _ in range(20):
            await worker.echo(data=1)
        start = time.perf_counter()
        for _ in range(ECHOES):
            await worker.echo(data=1)
        return (time.perf_counter() - start) / ECHOES

    seconds: float = client.sync(run)
    return seconds


def tasks(client: Any) -> float:
    """Seconds of one tiny task among many."""
    start = time.perf_counter()
    client.gather(client.map(lambda x: x, range(TASKS), pure=False))
    return (time.perf_counter() - start) / TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    rows: dict[str, dict[str, list[float]]] = {}
    for _ in range(2):
        for size, nbytes in SIZES.items():
            for scheme in SCHEMES:
                with begun(scheme) as cluster, Client(cluster) as client:
                    rows.setdefault(f"{size} cold", {}).setdefault(scheme, []).append(fetch(client, nbytes))
    array = np.ones(GATHERED // 8)
    clusters = {scheme: begun(scheme) for scheme in SCHEMES}
    clients = {scheme: Client(cluster) for scheme, cluster in clusters.items()}
    for number in range(rounds + 1):
        for scheme, client in clients.items():
            found = {f"{size} warm": fetch(client, nbytes) for size, nbytes in SIZES.items()}
            found |= {"gather 1 GiB": gather(client), "scatter 1 GiB": scatter(client, array)}
            found |= {"an echo": echoes(client), "a tiny task": tasks(client)}
            for name, seconds in found.items() if number else ():
                rows.setdefault(name, {}).setdefault(scheme, []).append(seconds)
    for client in clients.values():
        client.close()
    for cluster in clusters.values():
        cluster.close()
    print("| | tcp | rrpc | tcp / rrpc |\n|---|---|---|---|")
    for name, by_scheme in rows.items():
        tcp, ours = (statistics.median(by_scheme[scheme]) for scheme in SCHEMES)
        print(f"| {name} | {tcp * 1e3:.2f} ms | {ours * 1e3:.2f} ms | {tcp / ours:.2f} |")


def begun(scheme: str) -> Any:
    """A cluster of two workers."""
    return LocalCluster(
        n_workers=2, threads_per_worker=1, protocol=f"{scheme}://", dashboard_address=":0", memory_limit=0
    )


if __name__ == "__main__":
    main()
