"""A service for replicas."""

import os

import numpy as np
from numpy.typing import NDArray

import rrpc


@rrpc.service
class Scaler:
    """Scales rows."""

    def __init__(self, factor: float = 2.0, broken: bool = False) -> None:
        if broken:
            raise RuntimeError("the table is missing")
        self.factor = factor

    @rrpc.method(idempotent=True)
    def scale(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return rows * self.factor

    @rrpc.method(idempotent=True)
    def pid(self) -> int:
        return os.getpid()

    @rrpc.method(idempotent=True)
    def node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())
