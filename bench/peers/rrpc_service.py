"""The service that the benchmark calls, served by rrpc-serve as any other."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import rrpc
from numpy.typing import NDArray

from bench.peers.base import WarmArrays


@dataclass
class Row:
    """A small record."""

    number: int
    name: str
    weight: float


@rrpc.service
class Bench:
    """Echo, take an array, give an array."""

    def __init__(self) -> None:
        self._arrays = WarmArrays()
        self._pool_arrays: dict[int, NDArray[np.float32]] = {}
        self._lent: dict[int, NDArray[np.float32]] = {}

    @rrpc.method
    def echo(self, data: bytes) -> bytes:
        return data

    @rrpc.method
    def send(self, array: NDArray[np.float32]) -> int:
        return array.nbytes

    @rrpc.method
    def fetch(self, nbytes: int) -> NDArray[np.float32]:
        """An ordinary array, held and touched."""
        return self._arrays[nbytes]

    @rrpc.method
    def prepare(self, nbytes: int) -> None:
        """Makes the arrays that fetch and fetch_pool give."""
        self.fetch_pool(nbytes)

    @rrpc.method
    def fetch_fresh(self, nbytes: int) -> NDArray[np.float32]:
        """A new ordinary array, touched."""
        return np.ones(nbytes // 4, np.float32)

    @rrpc.method
    def numbers(self, count: int) -> list[int]:
        """A long reply without arrays."""
        return list(range(1_000_000, 1_000_000 + count))

    @rrpc.method
    def fetch_pool(self, nbytes: int) -> NDArray[np.float32]:
        """An array born in registered memory, held and touched."""
        if nbytes not in self._pool_arrays:
            self._pool_arrays[nbytes] = rrpc.empty(nbytes // 4, np.float32)
            self._pool_arrays[nbytes][:] = self._arrays[nbytes]
        return self._pool_arrays[nbytes]

    @rrpc.method
    def look(self, array: rrpc.Borrowed[NDArray[np.float32]]) -> float:
        return float(array[0] + array[-1])

    @rrpc.method
    def lend(self, nbytes: int) -> rrpc.Borrowed[NDArray[np.float32]]:
        if nbytes not in self._lent:
            self._lent[nbytes] = rrpc.zeros(nbytes // 4, np.float32)
            self._lent[nbytes][-1] = 1
        return self._lent[nbytes]

    @rrpc.method
    def repeat(self, data: bytes, times: int) -> Iterator[bytes]:
        for _ in range(times):
            yield data

    @rrpc.method
    def rows(self, times: int) -> Iterator[Row]:
        for i in range(times):
            yield Row(i, "row", 0.5)

    @rrpc.method
    def take(self, items: Iterator[bytes]) -> int:
        return sum(1 for _ in items)

    @rrpc.method
    def fetch_each(self, nbytes: int, times: int) -> Iterator[NDArray[np.float32]]:
        """The ordinary array, so many times."""
        for _ in range(times):
            yield self._arrays[nbytes]

    @rrpc.method
    def counters(self) -> dict[str, int]:
        """What this process has moved."""
        return dict(rrpc.stats())


class AsyncBench(Bench):
    """The same with coroutines for what W9 and W10 call."""

    async def echo(self, data: bytes) -> bytes:  # type: ignore[override]
        return data

    async def send(self, array: NDArray[np.float32]) -> int:  # type: ignore[override]
        return array.nbytes
