"""The service that the client of this folder calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import rrpc
from numpy.typing import NDArray


@dataclass
class Summary:
    """What a station knows of its readings."""

    count: int
    total: float


@rrpc.error
class Frozen(rrpc.FailedPrecondition):
    """The station is frozen."""

    degrees: int


@rrpc.service
class Station:
    """Readings of a weather station."""

    @rrpc.method
    def summary(self, readings: list[float]) -> Summary:
        return Summary(len(readings), sum(readings))

    @rrpc.method
    def scaled(self, readings: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
        return readings * factor

    @rrpc.method
    def echo(self, value: Any) -> Any:
        return value

    @rrpc.method(throws=[Frozen])
    def thaw(self) -> None:
        raise Frozen(degrees=-3)

    @rrpc.method
    def days(self, count: int, readings: int) -> Iterator[NDArray[np.float64]]:
        for day in range(count):
            yield np.full(readings, float(day))

    @rrpc.method
    def record(self, days: Iterator[Any]) -> float:
        return float(sum(np.sum(day) for day in days))

    @rrpc.method
    def totals(self, days: Iterator[Any]) -> Iterator[float]:
        total = 0.0
        for day in days:
            total += float(np.sum(day))
            yield total

    @rrpc.method
    def watch(self) -> Iterator[int]:
        yield 0
        rrpc.context().wait_cancelled()
        raise rrpc.Cancelled("nobody watches any more")
