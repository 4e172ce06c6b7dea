"""Two Dask jobs on scikit-learn's handwritten digits, over rrpc and over Dask's own tcp, with results that are checked.

The array job finds the nearest neighbour of each image among all others; its blocks of distances need rows of every
worker. The shuffle brings together all pixels of each place and label, 2.3 million rows, and averages them.
"""

import argparse
import logging
import statistics
import time
from typing import Any

import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, performance_report
from sklearn.datasets import load_digits

SCHEMES = ("tcp", "rrpc")
NOISE_LEVELS = 20
BLOCK_ROWS = 450
FAR = 1e9


def images_of(block: int) -> np.ndarray:
    """The images of a block of rows; workers load them themselves."""
    images: np.ndarray = load_digits().data[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
    return images


def nearest() -> tuple[Any, np.ndarray]:
    """The array job: the index of each image's nearest neighbour, as a Dask array and as numpy finds it."""
    images = load_digits().data
    count, pixels = images.shape
    blocks = [
        dask.array.from_delayed(
            dask.delayed(images_of)(block),
            (min(BLOCK_ROWS, count - block * BLOCK_ROWS), pixels),
            images.dtype,
        )
        for block in range(-(-count // BLOCK_ROWS))
    ]
    rows = dask.array.concatenate(blocks)
    norms = (rows**2).sum(axis=1)
    distances = norms[:, None] - 2 * rows @ rows.T + norms[None, :]
    job = (distances + FAR * dask.array.eye(count, BLOCK_ROWS)).argmin(axis=1)
    squared = (images**2).sum(axis=1)
    found = squared[:, None] - 2 * images @ images.T + squared[None, :] + FAR * np.eye(count)
    return job, found.argmin(axis=1)


def pixels_of(noise: int) -> pd.DataFrame:
    """One row for each pixel of each image: where it stands, of which label, and its value with so much noise."""
    digits = load_digits()
    noisy = digits.data + np.random.default_rng(noise).normal(0, noise, digits.data.shape)
    place = digits.target[:, None] * noisy.shape[1] + np.arange(noisy.shape[1])
    return pd.DataFrame({"place": place.ravel(), "value": noisy.ravel()})


def means() -> tuple[Any, pd.Series]:
    """The shuffle: the mean of each pixel of each label, as Dask and as pandas find it."""
    parts = dask.dataframe.from_map(pixels_of, range(NOISE_LEVELS)).shuffle("place")
    job = parts.map_partitions(lambda part: part.groupby("place").value.mean(), meta=("value", "f8"))
    rows = pd.concat(map(pixels_of, range(NOISE_LEVELS)), ignore_index=True)
    return job, rows.groupby("place").value.mean()


def timed(jobs: dict[str, tuple[Any, Any]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds that each job took in each round, over each scheme in turn."""
    clusters = {
        scheme: LocalCluster(
            n_workers=2, threads_per_worker=1, protocol=f"{scheme}://", dashboard_address=":0"
        )
        for scheme in SCHEMES
    }
    clients = {scheme: Client(cluster, set_as_default=False) for scheme, cluster in clusters.items()}
    seconds: dict[str, dict[str, list[float]]] = {name: {scheme: [] for scheme in SCHEMES} for name in jobs}
    try:
        for number in range(rounds + 1):  # the first round warms up
            for name, (job, expected) in jobs.items():
                for scheme, client in clients.items():
                    start = time.perf_counter()
                    result = client.compute(job).result(timeout=120)
                    if number:
                        seconds[name][scheme].append(time.perf_counter() - start)
                    check(result, expected)
    finally:
        for client in clients.values():
            client.close()
        for cluster in clusters.values():
            cluster.close()
    return seconds


def check(result: Any, expected: Any) -> None:
    """Raises AssertionError unless Dask's result is that of numpy and pandas."""
    if isinstance(expected, pd.Series):
        pd.testing.assert_series_equal(result.sort_index(), expected, check_names=False)
    else:
        np.testing.assert_array_equal(result, expected)


def watched(jobs: dict[str, tuple[Any, Any]], report: str) -> None:
    """Runs the jobs over rrpc, and writes what Dask's dashboard shows of them into an HTML file."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, protocol="rrpc://", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
        performance_report(filename=report, mode="inline"),
    ):
        for job, expected in jobs.values():
            check(client.compute(job).result(timeout=120), expected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each job over each scheme (5)")
    parser.add_argument("--report", help="an HTML file for what the dashboard shows of the jobs over rrpc")
    given = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    jobs: dict[str, tuple[Any, Any]] = {"nearest": nearest(), "shuffle": means()}
    for name, by_scheme in timed(jobs, given.rounds).items():
        tcp, ours = (statistics.median(by_scheme[scheme]) for scheme in SCHEMES)
        print(f"{name:9}  tcp {tcp * 1e3:6.0f} ms   rrpc {ours * 1e3:6.0f} ms   tcp / rrpc {tcp / ours:.2f}")
    print(f"{'results':9}  those of numpy and pandas, in every run")
    if given.report:
        watched(jobs, given.report)
        print(f"{'report':9}  {given.report}")


if __name__ == "__main__":
    main()
