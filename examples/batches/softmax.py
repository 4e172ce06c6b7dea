"""Softmax regression, in numpy alone."""

import numpy as np
from batches_client import Batch
from numpy.typing import NDArray

RATE = 1.0


class SoftmaxRegression:
    """A weight for each pixel and digit, and a bias for each digit."""

    def __init__(self, pixels: int, digits: int = 10) -> None:
        self.weights = np.zeros((pixels, digits), np.float32)
        self.bias = np.zeros(digits, np.float32)

    def learn(self, batch: Batch) -> None:
        """A step down the gradient of the cross entropy, which is how far the probabilities are off."""
        scores = batch.pixels @ self.weights + self.bias
        off = np.exp(scores - scores.max(axis=1, keepdims=True))
        off /= off.sum(axis=1, keepdims=True)
        off[np.arange(len(off)), batch.labels] -= 1
        self.weights -= RATE / len(off) * (batch.pixels.T @ off)
        self.bias -= RATE / len(off) * off.sum(axis=0)

    def accuracy(self, batch: Batch) -> float:
        """What part of the digits it gets right."""
        guessed: NDArray[np.int64] = (batch.pixels @ self.weights + self.bias).argmax(axis=1)
        return float((guessed == batch.labels).mean())
