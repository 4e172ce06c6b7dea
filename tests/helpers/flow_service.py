"""The service that the tests of streams call; served by rrpc-serve."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

import rrpc

Block = Annotated[NDArray[np.uint8], rrpc.Shape("size")]


@dataclass
class Row:
    id: int
    name: str
    score: float = 0.0


_lock = threading.Lock()
_counts = {"begun": 0, "closed": 0, "given": 0, "taken": 0}
_go_on = threading.Event()


def _count(name: str, by: int = 1) -> None:
    with _lock:
        _counts[name] += by


@rrpc.service
class Flow:
    """Streams of every kind."""

    @rrpc.method
    def count(self, n: int, fail: bool = False) -> Iterator[int]:
        """0 to n - 1; then NotFound, if it is to fail."""
        _count("begun")
        try:
            for i in range(n):
                yield i
                _count("given")
            if fail:
                raise rrpc.NotFound("no more", details={"n": n})
        finally:
            _count("closed")

    @rrpc.method
    def rows(self, n: int, name: str = "row") -> Iterable[Row]:
        return [Row(i, name, i / 2) for i in range(n)]

    @rrpc.method
    def blocks(self, n: int, size: int) -> Iterator[Block]:
        """Arrays whose bytes are their number."""
        _count("begun")
        try:
            for i in range(n):
                block = rrpc.empty(size, np.uint8)
                block[...] = i % 251
                yield block
                _count("given")
        finally:
            _count("closed")

    @rrpc.method
    def ticks(self, n: int, seconds: float) -> Iterator[float]:
        """The time, every so many seconds."""
        for _ in range(n):
            yield time.monotonic()
            time.sleep(seconds)

    @rrpc.method
    def waits(self, n: int) -> Iterator[int]:
        """n items; the last once go_on was called."""
        yield from range(n - 1)
        _go_on.wait()
        yield n - 1

    @rrpc.method
    def until_told(self) -> Iterator[int]:
        """Items without end, until go_on was called."""
        while not _go_on.is_set():
            yield 0

    @rrpc.method
    def wrong(self) -> Iterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    @rrpc.method
    def whoever(self) -> Iterator[str]:
        """What rrpc.context() says, from each part of the generator."""
        for _ in range(3):
            yield rrpc.context().method

    @rrpc.method
    def badges(self, fail: bool = False) -> Iterator[str]:
        """What the caller's metadata says; some of its own goes ahead of the items, some with the end."""
        rrpc.context().send_initial_metadata({"room": "7"})
        yield str(rrpc.context().metadata["badge"])
        rrpc.context().set_metadata({"left": "at noon"})
        if fail:
            raise rrpc.Aborted("fire")

    @rrpc.method
    def add(self, values: Iterator[int]) -> int:
        return sum(values)

    @rrpc.method
    def add_slowly(self, values: Iterator[int]) -> int:
        """Takes one, then waits until go_on was called."""
        total = 0
        for value in values:
            total += value
            _count("taken")
            _go_on.wait()
        return total

    @rrpc.method
    def first(self, values: Iterator[int]) -> int:
        """Ends with the first item."""
        return next(values)

    @rrpc.method
    def first_block(self, blocks: Iterator[Block]) -> int:
        """The bytes of the first."""
        return next(blocks).nbytes

    @rrpc.method
    def weigh(self, blocks: Iterator[Block]) -> int:
        """The bytes of all blocks, each of which must be its number."""
        total = 0
        for i, block in enumerate(blocks):
            assert (block == i % 251).all()
            total += block.nbytes
            _count("taken")
        return total

    @rrpc.method
    def sums(self, values: Iterator[int]) -> Iterator[int]:
        """The sum so far, after each."""
        total = 0
        for value in values:
            total += value
            yield total

    @rrpc.method
    def swallow(self, values: Iterator[int]) -> Iterator[int]:
        """Takes all, then gives as many; it begins once go_on was called."""
        _go_on.wait()
        yield from range(sum(1 for _ in values))

    @rrpc.method
    def refuse(self, values: Iterator[int]) -> Iterator[int]:
        raise rrpc.FailedPrecondition("not today")

    @rrpc.method
    async def later(self, n: int, fail: bool = False) -> AsyncIterator[int]:
        """As count, in the loop."""
        _count("begun")
        try:
            for i in range(n):
                yield i
                _count("given")
            if fail:
                raise rrpc.NotFound("no more", details={"n": n})
        finally:
            _count("closed")

    @rrpc.method
    async def add_later(self, values: AsyncIterator[int]) -> int:
        total = 0
        async for value in values:
            await asyncio.sleep(0)
            total += value
        return total

    @rrpc.method
    async def sums_later(self, values: AsyncIterator[int]) -> AsyncIterator[int]:
        total = 0
        async for value in values:
            total += value
            yield total

    @rrpc.method
    async def swallow_later(self, values: AsyncIterator[int]) -> AsyncIterator[int]:
        """Takes all, then gives as many."""
        for i in range(len([value async for value in values])):
            yield i

    @rrpc.method
    async def sleeps(self) -> AsyncIterator[int]:
        """One item, then none."""
        _count("begun")
        try:
            yield 1
            await asyncio.sleep(1000)
        finally:
            _count("closed")

    @rrpc.method
    def waits_to_go_on(self) -> None:
        _go_on.wait()

    @rrpc.method
    def go_on(self) -> None:
        _go_on.set()

    @rrpc.method
    def hold(self) -> None:
        _go_on.clear()

    @rrpc.method
    def counts(self) -> dict[str, int]:
        with _lock:
            return dict(_counts)

    @rrpc.method
    def usage(self) -> dict[str, int]:
        """rrpc.stats() of the server's process."""
        return rrpc.stats()
