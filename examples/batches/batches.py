"""Shuffled mini-batches of scikit-learn's handwritten digits, as a stream: what a training job reads its data from."""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import numpy as np
import rrpc
from numpy.typing import NDArray
from sklearn.datasets import load_digits


@dataclass
class Batch:
    """Images of 64 pixels from 0 to 1, and the digit that each shows."""

    pixels: NDArray[np.float32]
    labels: NDArray[np.int64]


@rrpc.error
class UnknownSplit(rrpc.NotFound):
    """There is no such split."""

    split: str
    known: list[str]


@rrpc.service
class Batches:
    """Handwritten digits, every fifth for validation and the others for training."""

    def __init__(self) -> None:
        digits = load_digits()
        pixels, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
        fifth = np.arange(len(labels)) % 5 == 0
        self._splits = {
            "train": Batch(pixels[~fifth], labels[~fifth]),
            "validation": Batch(pixels[fifth], labels[fifth]),
        }
        self._counted = {"batches_made": 0, "epochs_ended": 0, "epochs_left_early": 0}
        self._lock = Lock()  # streams are served by several threads

    @rrpc.method(idempotent=True, throws=[UnknownSplit])
    def whole(self, split: str) -> Batch:
        """All of a split at once, in its own order."""
        if split not in self._splits:
            raise UnknownSplit(split, sorted(self._splits))
        return self._splits[split]

    @rrpc.method(throws=[UnknownSplit])
    def epoch(self, split: str, size: int = 64, seed: int = 0) -> Iterator[Batch]:
        """Each row of a split once, in an order that the seed decides; the last batch has what is left."""
        rows = self.whole(split)
        if size < 1:
            raise rrpc.InvalidArgument(f"a batch has one row or more, not {size}")
        order = np.random.default_rng(seed).permutation(len(rows.labels))
        left_early = 1
        try:
            for start in range(0, len(order), size):
                yield self._batch(rows, order[start : start + size])
            left_early = 0
        finally:  # when the client leaves, its deadline passes or it dies, the yield raises GeneratorExit
            self._count(epochs_ended=1, epochs_left_early=left_early)

    @rrpc.method(idempotent=True)
    def counters(self) -> dict[str, int]:
        """Batches made, epochs ended and left early; and what the server's process has moved and copied."""
        with self._lock:
            return {**rrpc.stats(), **self._counted}

    def _batch(self, rows: Batch, chosen: NDArray[np.int64]) -> Batch:
        """Gathered right into registered memory, where the client reads it: this end copies it no more."""
        pixels = rrpc.empty((len(chosen), rows.pixels.shape[1]), np.float32)
        # In numpy's other modes `take` writes to a buffer of its own first.
        np.take(rows.pixels, chosen, axis=0, out=pixels, mode="clip")
        self._count(batches_made=1)
        return Batch(pixels, rows.labels[chosen])

    def _count(self, **more: int) -> None:
        with self._lock:
            for what, number in more.items():
                self._counted[what] += number
