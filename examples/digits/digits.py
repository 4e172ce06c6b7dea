"""A model behind a service: scikit-learn's neural network reads handwritten digits, each call alone or in batches."""

import numpy as np
import rrpc
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier


@rrpc.service
class Digits:
    """Reads images of 8 x 8 pixels, with values from 0 to 16."""

    def __init__(self, neurons: int = 1024) -> None:
        digits = load_digits()
        training = np.arange(len(digits.target)) % 5 != 0
        self._network = MLPClassifier(
            (neurons, neurons), early_stopping=True, n_iter_no_change=2, random_state=0
        )
        self._network.fit((digits.data[training] / 16).astype(np.float32), digits.target[training])

    @rrpc.method(idempotent=True)
    @rrpc.batched(max_batch=64)
    def read(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns the digit of each image, a row of 64 pixels."""
        return self._read(images)

    @rrpc.method(idempotent=True)
    def read_alone(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        """Does the same without batching, for comparison."""
        return self._read(images)

    @rrpc.method(idempotent=True)
    def batch_sizes(self) -> dict[int, int]:
        """Returns how many batches of each number of calls there were."""
        return rrpc.batch_sizes(self.read)

    def _read(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        if images.ndim != 2 or images.shape[1] != 64:
            raise rrpc.InvalidArgument(f"images have 64 pixels each, shape (n, 64), not {images.shape}")
        digits: NDArray[np.int64] = self._network.predict(images / np.float32(16)).astype(np.int64)
        return digits
