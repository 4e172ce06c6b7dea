"""The service that test_types calls; served by rrpc-serve."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

import rrpc
from rrpc import Shape

Rows = Annotated[NDArray[np.float32], Shape("n", "d")]
Weights = Annotated[NDArray[np.float32], Shape("n")]


@dataclass
class Table:
    """`n` here is the table's own."""

    rows: Rows
    weights: Weights | None = None
    labels: tuple[str, ...] = ()


@rrpc.service
class Shapes:
    @rrpc.method
    def search(
        self, queries: Rows, weights: Weights | None = None, k: int = 2
    ) -> tuple[
        Annotated[NDArray[np.int64], Shape("n", "k")], Annotated[NDArray[np.float32], Shape("n", "k")]
    ]:
        """With weights of -1 it gives one row too many, with -2 one of the two."""
        rows = len(queries)
        first, second = rows, rows
        if weights is not None and rows:
            first += weights[0] < 0
            second += weights[0] == -1
        return np.zeros((first, k), np.int64), np.zeros((second, k), np.float32)

    @rrpc.method
    def tables(self, tables: list[Table], n: int = 0) -> list[Table]:
        return tables

    @rrpc.method
    def joined(self, parts: dict[str, tuple[Weights, ...]]) -> Weights:
        return next(iter(parts.values()))[0]

    @rrpc.method
    def fixed(
        self, point: Annotated[NDArray[np.float64], Shape(3)]
    ) -> Annotated[NDArray[np.float64], Shape(3)]:
        return point if point[0] else np.zeros(4)

    @rrpc.method
    def small(self, number: rrpc.i8, other: rrpc.f32 = 0.5) -> rrpc.u8:
        return number
