"""Train on two nodes of a Ray cluster, both on this machine, and serve the result from both of them."""

import argparse
import os
import signal
import sys
import time
from collections import Counter
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # both nodes keep to 127.0.0.1

import numpy as np
import ray
import ray_rrpc
import rrpc
from classifier import Classifier, Rows, fit
from classifier_client import ClassifierClient
from numpy.typing import NDArray
from ray.cluster_utils import Cluster

ray_rrpc.register()  # before a method names the transport
HELD_BACK = 297
RETRY = rrpc.RetryPolicy(max_attempts=20, initial_backoff=0.05, max_backoff=0.5, budget=None)


@ray.remote(num_cpus=1)
class Loader:
    """Holds the pictures. Whoever trains fetches them from its memory."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits  # it takes a while to import

        digits = load_digits()
        self.rows: Rows = digits.data / 16.0
        self.digits: NDArray[np.int64] = digits.target.astype(np.int64)

    @ray.method(tensor_transport="rrpc")
    def training(self) -> tuple[Rows, NDArray[np.int64]]:
        return self.rows[:-HELD_BACK], self.digits[:-HELD_BACK]

    @ray.method(tensor_transport="rrpc")
    def held_back(self) -> tuple[Rows, NDArray[np.int64]]:
        return self.rows[-HELD_BACK:], self.digits[-HELD_BACK:]


@ray.remote(num_cpus=1)
class Trainer:
    """Fits weights to a sample of the pictures of its own."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    @ray.method(tensor_transport="rrpc")
    def weights(self, data: tuple[Rows, NDArray[np.int64]]) -> Rows:
        rows, digits = data
        drawn = self.random.integers(0, len(rows), len(rows))
        return fit(rows[drawn], digits[drawn])

    def fetched(self) -> int:
        """Bytes that this actor has read from others' memory."""
        return rrpc.stats()["bytes_read"]


def train(trainers: int) -> tuple[Rows, Rows, NDArray[np.int64]]:
    """The mean of what the trainers found, and the pictures and digits that none of them saw."""
    loader = Loader.options(scheduling_strategy="SPREAD").remote()
    actors = [Trainer.options(scheduling_strategy="SPREAD").remote(seed) for seed in range(trainers)]
    data = (
        loader.training.remote()
    )  # a reference: the pictures stay where they are until somebody fetches them
    ray.wait([data], fetch_local=False)
    start = time.perf_counter()
    found = ray.get([actor.weights.remote(data) for actor in actors])
    seconds = time.perf_counter() - start
    fetched = sum(ray.get([actor.fetched.remote() for actor in actors]))
    print(f"trained      {trainers} times in {seconds:.2f} s, {fetched:,} bytes fetched from the loader")
    rows, digits = ray.get(loader.held_back.remote())
    return np.mean(found, axis=0), rows, digits


def classify(target: str, rows: Rows, truth: NDArray[np.int64], calls: int) -> None:
    """Asks the replicas again and again, and kills the one that answers first."""
    right, asked, by_whom, killed = 0, 0, Counter[int](), 0
    with ClassifierClient(target, policy="round_robin", timeout=60.0, retry=RETRY) as classifier:
        start = time.perf_counter()
        while asked < calls * len(rows) or len(by_whom.keys() - {killed}) < 2:
            digits, pid = classifier.classify(rows)
            right, asked = right + int((digits == truth).sum()), asked + len(rows)
            by_whom[pid] += 1
            if not killed:
                os.kill(pid, signal.SIGKILL)
                killed = pid
        seconds = time.perf_counter() - start
    counts = ", ".join(f"{n:,} by {pid}" for pid, n in by_whom.items())
    print(f"classified   {asked:,} pictures in {seconds:.2f} s, {right / asked:.1%} right: {counts}")
    print(f"killed       {killed} after its first answer; no call failed, Ray started another replica")


def run(options: argparse.Namespace) -> None:
    node: dict[str, Any] = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
        weights, rows, digits = train(options.trainers)
        with ray_rrpc.serve(Classifier, weights, replicas=2) as replicas:
            print(f"serving      {replicas.target} at {', '.join(replicas.addresses())}")
            classify(replicas.target, rows, digits, options.calls)
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    parser.add_argument("--trainers", type=int, default=4)
    parser.add_argument("--calls", type=int, default=2000, help="at least so many, of 297 pictures each")
    try:
        run(parser.parse_args())
    except (rrpc.RpcError, ray.exceptions.RayError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
