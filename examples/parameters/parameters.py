"""A parameter server: it owns a model's weights, which many workers read while others change them."""

from threading import Lock

import numpy as np
import rrpc
from network import FLOATS, first_weights
from numpy.typing import NDArray


@rrpc.service
class Parameters:
    """The weights of one network, as one vector."""

    def __init__(self) -> None:
        self._weights = first_weights()
        self._steps = 0
        self._lock = Lock()

    @rrpc.method(idempotent=True)
    def pull(self) -> NDArray[np.float32]:
        """The weights as they are now.

        A result is read by the client after the method has returned, when the lock is held no more: the live vector
        would arrive with some weights from before a step and some from behind it. So a copy goes, made in the memory
        that clients read.
        """
        with self._lock:
            return rrpc.snapshot(self._weights)

    @rrpc.method
    def push(self, change: NDArray[np.float32]) -> int:
        """Adds ``change`` to the weights; gives the number of steps so far."""
        if change.shape != (FLOATS,):
            raise rrpc.InvalidArgument(f"a change has {FLOATS} numbers, not the shape {change.shape}")
        with self._lock:
            self._weights += change
            self._steps += 1
            return self._steps

    @rrpc.method(idempotent=True)
    def counters(self) -> dict[str, int]:
        """Steps so far, and what the server's process has moved and copied."""
        return {**rrpc.stats(), "steps": self._steps}
