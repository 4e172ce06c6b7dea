"""What the tests of traces call: slow, large, streaming, and by way of others."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import numpy as np
from numpy.typing import NDArray

import rrpc
import rrpc.aio


@rrpc.service
class Traced:
    items = 0
    started = threading.Event()

    @rrpc.method
    def add(self, a: int, b: int = 1) -> int:
        return a + b

    @rrpc.method
    def slow(self, seconds: float) -> None:
        time.sleep(seconds)

    @rrpc.method
    def take(self, rows: NDArray[np.float64]) -> int:
        return rows.nbytes

    @rrpc.method
    def make(self, count: int) -> NDArray[np.float64]:
        return np.ones(count)

    @rrpc.method
    def fail(self) -> None:
        raise rrpc.NotFound("nothing here")

    @rrpc.method
    def by_way_of(self, addresses: list[str], times: int) -> int:
        if not addresses:
            return 1
        with rrpc.connect(addresses[0], timeout=20.0) as client:
            return sum(client.call("Traced.by_way_of", addresses[1:], times) for _ in range(times))

    @rrpc.method
    async def nap(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @rrpc.method
    async def ask(self, address: str, times: int) -> int:
        async with rrpc.aio.connect(address, timeout=20.0) as client:
            return sum(await asyncio.gather(*(client.call("Traced.add", 0) for _ in range(times))))

    @rrpc.method
    def count(self, until: int, size: int) -> Iterator[NDArray[np.uint8]]:
        self.items = 0
        for _ in range(until):
            self.items += 1
            yield np.zeros(size, np.uint8)

    @rrpc.method
    async def double_each(self, numbers: AsyncIterator[int]) -> AsyncIterator[int]:
        async for number in numbers:
            yield 2 * number

    @rrpc.method
    def late_sum(self, numbers: Iterator[int]) -> int:
        assert self.started.wait(30)
        self.started.clear()
        return sum(numbers)

    @rrpc.method
    def go(self) -> None:
        self.started.set()

    @rrpc.method
    def made(self) -> int:
        return self.items

    @rrpc.method
    def sum(self, numbers: Iterator[int]) -> int:
        return sum(numbers)

    @rrpc.method
    def ask_each(self, addresses: list[str]) -> Iterator[int]:
        for address in addresses:
            with rrpc.connect(address, timeout=20.0) as client:
                yield client.call("Traced.add", 1)

    @rrpc.method
    def knows_tracing(self) -> bool:
        return "rrpc.tracing" in sys.modules
