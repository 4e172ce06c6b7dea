"""k-nearest-neighbour search over scikit-learn's handwritten digits, or rows of your own, as a service.

The search is numpy's alone; scikit-learn only lends the data, which its wheel holds.
"""

import numpy as np
import rrpc
from numpy.typing import NDArray


@rrpc.service
class Nearest:
    """k-nearest-neighbour search over a fixed table of 64-pixel digits."""

    def __init__(self, table: str = "") -> None:
        """``table``: a CSV file of rows of your own, each with its label in the last column."""
        rows = np.loadtxt(table, np.float32, delimiter=",") if table else digits()
        self._rows = np.ascontiguousarray(rows[:, :-1])
        self._labels = rows[:, -1].astype(np.int64)
        self._squares = np.einsum("ij,ij->i", self._rows, self._rows)
        self._repeated: dict[tuple[int, bool], NDArray[np.float32]] = {}

    @rrpc.method
    def search(
        self, queries: NDArray[np.float32], k: int = 10
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k nearest rows of each query: ids and distances, nearest first, of equals the lower id first."""
        self._check(queries, k)
        keys = sort_keys(self._squared_distances(queries))
        keys = np.partition(keys, k - 1, axis=1)[:, :k]
        keys.sort(axis=1)
        squared = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
        return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64), np.sqrt(squared)

    @rrpc.method
    def classify(self, queries: NDArray[np.float32], k: int = 5) -> NDArray[np.int64]:
        """The digit that most of the k nearest rows show; of several with as many votes, the lowest."""
        ids, _ = self.search(queries, k)
        return np.array([np.bincount(votes).argmax() for votes in self._labels[ids]], np.int64)

    @rrpc.method
    def size(self) -> int:
        """How many rows can be found."""
        return len(self._rows)

    @rrpc.method
    def count(self, rows: NDArray[np.float32]) -> int:
        """How many rows arrived: something to send large arrays to."""
        return len(rows)

    @rrpc.method
    def repeated(self, count: int, registered: bool = False) -> NDArray[np.float32]:
        """That many rows of the table, over and over; kept in ordinary or in registered memory."""
        if (count, registered) not in self._repeated:
            shape = (count, self._rows.shape[1])
            rows = rrpc.empty(shape, np.float32) if registered else np.empty(shape, np.float32)
            rows[:] = self._rows[np.arange(count) % len(self._rows)]
            self._repeated[count, registered] = rows
        return self._repeated[count, registered]

    @rrpc.method
    def counters(self) -> dict[str, int]:
        """What the server's process has moved and copied."""
        return dict(rrpc.stats())

    def _check(self, queries: NDArray[np.float32], k: int) -> None:
        if queries.ndim != 2 or queries.shape[1] != self._rows.shape[1]:
            raise rrpc.InvalidArgument(f"queries must be (n, {self._rows.shape[1]}), not {queries.shape}")
        if not 1 <= k <= len(self._rows):
            raise rrpc.InvalidArgument(f"k must be from 1 to {len(self._rows)}, not {k}")

    def _squared_distances(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """|q - r|² = |q|² - 2 q·r + |r|²: one matrix product does the work."""
        squares = np.einsum("ij,ij->i", queries, queries)
        squared: NDArray[np.float32] = squares[:, None] - 2 * (queries @ self._rows.T) + self._squares
        return np.maximum(squared, np.float32(0)) + np.float32(0)  # the sum turns -0 into 0


def digits() -> NDArray[np.float32]:
    from sklearn.datasets import load_digits  # it takes a while to import

    found = load_digits()
    return np.column_stack([found.data, found.target]).astype(np.float32)


def sort_keys(squared: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Integers in the order of (distance, id): a float that isn't negative sorts as its bits do."""
    ids = np.arange(squared.shape[1], dtype=np.uint64)
    return squared.view(np.uint32).astype(np.uint64) << np.uint64(32) | ids
