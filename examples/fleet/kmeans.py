"""k-means over rows that the caller has: each server gets them once, by calling back, and tells how its runs go."""

import hashlib
from collections.abc import Iterator
from threading import Lock

import numpy as np
import rrpc
from fleet_client import DeskClient, Fit, KMeansBase
from numpy.typing import NDArray

Rows = NDArray[np.float64]


def lloyd(rows: Rows, k: int, seed: int) -> Iterator[tuple[Rows, float]]:
    """The centroids and their inertia in each round, until no row changes its cluster."""
    centroids = rows[np.random.default_rng(seed).choice(len(rows), k, replace=False)]
    before = np.full(len(rows), -1)
    while True:
        # The square of a row is left out of its distances: it is the same to all centroids.
        clusters = ((centroids**2).sum(axis=1) - 2 * rows @ centroids.T).argmin(axis=1)
        yield centroids, float(((rows - centroids[clusters]) ** 2).sum())
        if np.array_equal(clusters, before):
            return
        before = clusters
        members = np.eye(k)[clusters]
        counts = members.sum(axis=0)[:, None]
        # One that has lost all of its rows stays where it is.
        centroids = np.where(counts > 0, members.T @ rows / np.maximum(counts, 1), centroids)


class KMeans(KMeansBase):
    """``name`` tells servers apart in what the program prints."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._digest = ""
        self._rows: Rows = np.empty((0, 0))
        self._lock = Lock()  # several runs may begin at once

    def fit(self, digest: str, k: int, seed: int) -> Fit:
        """Each report is a call of its own: when the caller has gone it fails, which ends the run."""
        desk = rrpc.context().client(DeskClient)
        rows = self._rows_of(desk, digest)
        if not 1 <= k <= len(rows):
            raise rrpc.InvalidArgument(f"{len(rows)} rows can't be put into {k} clusters")
        for rounds, (centroids, inertia) in enumerate(lloyd(rows, k, seed), 1):
            fit = Fit(seed, self._name, rounds, inertia, centroids)
            desk.report(self._name, seed, rounds, inertia)
        return fit

    def _rows_of(self, desk: DeskClient, digest: str) -> Rows:
        """The rows of the last caller are kept; a server that has been started again has none, and asks."""
        with self._lock:
            if digest != self._digest:
                rows = desk.rows()
                if hashlib.sha256(rows.data).hexdigest() != digest:
                    raise rrpc.DataLoss("these aren't the rows that the call is about")
                self._digest, self._rows = digest, rows
            return self._rows
