"""Cluster rows from many starting points, by whatever servers there are, and keep what is best."""

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from threading import Lock

import numpy as np
import rrpc
from fleet_client import DeskBase, Fit, KMeansClient
from numpy.typing import NDArray

DEFAULT_SERVERS = "rrpc://127.0.0.1:7474,127.0.0.1:7475,127.0.0.1:7476"
# No budget: it is for many calls, and here a server that is killed has a handful of them.
RETRY = rrpc.RetryPolicy(budget=None)

Rows = NDArray[np.float64]


class Desk(DeskBase):
    """What the servers call while they work. Several of them may at a time, each comes in a thread of its own."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.rows_sent = 0
        self.reports = 0
        self.begun: Counter[int] = Counter()
        self._lock = Lock()

    def rows(self) -> Rows:
        with self._lock:
            self.rows_sent += 1
        return self._rows

    def report(self, server: str, seed: int, rounds: int, inertia: float) -> None:
        with self._lock:
            self.reports += 1
            self.begun[seed] += rounds == 1
            if sys.stderr.isatty():
                so_far = f"{server}: seed {seed:4}, round {rounds:2}, {inertia:,.1f}"
                print(so_far, end="\r", file=sys.stderr)

    def begun_again(self) -> int:
        return self.begun.total() - len(self.begun)


def connect(servers: str, desk: rrpc.Server, policy: str, timeout: float) -> KMeansClient:
    """A client of all the servers, which may call the desk. While none of them is there, calls wait."""
    return KMeansClient(servers, serve=desk, policy=policy, timeout=timeout, wait_for_ready=True, retry=RETRY)


def search(kmeans: KMeansClient, rows: Rows, k: int, seeds: Iterable[int], at_once: int) -> Iterator[Fit]:
    """Runs in whatever order they end. Each that ends lets another begin, so fast servers get more of them."""
    digest, left = hashlib.sha256(rows.data).hexdigest(), iter(seeds)
    running: set[Future[Fit]] = {kmeans.fit.start(digest, k, seed) for seed in islice(left, at_once)}
    while running:
        ended, running = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            yield future.result()
        running |= {kmeans.fit.start(digest, k, seed) for seed in islice(left, len(ended))}


def rows_of(path: str | None) -> Rows:
    if path is not None:
        rows = np.load(path)
    else:
        from sklearn.datasets import load_digits  # it takes a while to import

        rows = load_digits().data
    return np.ascontiguousarray(rows, np.float64)


def run(options: argparse.Namespace) -> None:
    rows = rows_of(options.rows)
    desk, done, best = Desk(rows), Counter[str](), None
    with (
        rrpc.Server(desk) as server,  # it listens nowhere: only those that we call can call it
        connect(options.server, server, options.policy, options.timeout) as kmeans,
    ):
        start = time.perf_counter()
        for fit in search(kmeans, rows, options.k, range(options.runs), options.at_once):
            done[fit.server] += 1
            if best is None or fit.inertia < best.inertia:
                best = fit
                print(f"seed {fit.seed:4}: inertia {fit.inertia:,.1f} after {fit.rounds} rounds", flush=True)
        seconds = time.perf_counter() - start
    by_whom = ", ".join(f"{count} by {name}" for name, count in sorted(done.items()))
    print(f"runs         {done.total()} in {seconds:.1f} s: {by_whom}; begun again: {desk.begun_again()}")
    print(f"called back  {desk.reports:,} reports, {desk.rows_sent} times the rows ({rows.nbytes:,} bytes)")
    if options.output and best is not None:
        np.save(options.output, best.centroids)


def count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="cluster", description=__doc__)
    add = result.add_argument
    add("--server", default=DEFAULT_SERVERS, metavar="ADDRESSES", help=f"default {DEFAULT_SERVERS}")
    add("--policy", choices=["least_outstanding", "round_robin"], default="least_outstanding")
    add("--rows", metavar="FILE.npy", help="what to cluster; default scikit-learn's handwritten digits")
    add("-k", type=count, default=10, metavar="CLUSTERS", help="default 10")
    add("--runs", type=count, default=500, help="default 500")
    add("--at-once", type=count, default=6, metavar="RUNS", help="at all servers together; default 6")
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="of a run, its wait for a server too")
    add("--output", metavar="FILE.npy", help="write the best centroids there")
    return result


def main() -> int:
    try:
        run(parser().parse_args())
    except (rrpc.RpcError, OSError, ValueError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: given up", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
