"""A service that says which digit is on a picture."""

import os

import numpy as np
import rrpc
from numpy.typing import NDArray

Rows = NDArray[np.float64]


@rrpc.service
class Classifier:
    """A linear classifier of pictures of 8 x 8 pixels."""

    def __init__(self, weights: Rows) -> None:
        self.weights = weights

    @rrpc.method(idempotent=True)
    def classify(self, pictures: Rows) -> tuple[NDArray[np.int64], int]:
        """The digit on each picture, and the pid of the replica that says so."""
        return (with_ones(pictures) @ self.weights).argmax(1), os.getpid()


def with_ones(rows: Rows) -> Rows:
    """The rows with a column of ones, whose weight is the offset."""
    return np.hstack([rows, np.ones((len(rows), 1))])


def fit(rows: Rows, digits: NDArray[np.int64], rounds: int = 300, rate: float = 0.5) -> Rows:
    """Weights of a softmax regression, shape (columns + 1, 10), by gradient descent."""
    rows, truth = with_ones(rows), np.eye(10)[digits]
    weights = np.zeros((rows.shape[1], 10))
    for _ in range(rounds):
        scores = np.exp((logits := rows @ weights) - logits.max(1, keepdims=True))
        weights += rate / len(rows) * rows.T @ (truth - scores / scores.sum(1, keepdims=True))
    return weights
