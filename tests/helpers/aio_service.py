"""What the tests of asyncio call: async handlers beside plain ones."""

import asyncio
import contextvars
import threading
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import rrpc

_left: contextvars.ContextVar[str] = contextvars.ContextVar("left", default="")


class Kept:
    """What a handler's frame holds."""


@rrpc.service
class Mixed:
    """Async methods and plain ones."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.waiting = 0
        self.kept: weakref.ref[Kept] | None = None
        self._opened = asyncio.Event()
        self._tasks: set[int] = set()

    @rrpc.method
    async def echo(self, text: str) -> str:
        return text

    @rrpc.method
    async def echo_later(self, text: str) -> str:
        await asyncio.sleep(0)
        return text

    @rrpc.method
    def plain(self, text: str) -> str:
        assert threading.current_thread().name.startswith("rrpc-worker")
        return text

    @rrpc.method
    async def double(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        await asyncio.sleep(0)
        return array * 2

    @rrpc.method
    async def fail(self, text: str) -> None:
        await asyncio.sleep(0)
        raise rrpc.NotFound(text, details={"asked": text})

    @rrpc.method
    async def crash(self) -> None:
        raise ZeroDivisionError("on purpose")

    @rrpc.method
    async def keep(self) -> None:
        """Has an object in its frame until it is cancelled."""
        kept = Kept()
        self.kept = weakref.ref(kept)
        await asyncio.Event().wait()

    @rrpc.method
    async def forever(self) -> None:
        """Until it is cancelled."""
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1

    @rrpc.method
    async def stubborn(self) -> str:
        """One that takes no notice of being cancelled."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
        return "late"

    @rrpc.method
    async def hold(self) -> str:
        """Until open() is called."""
        self.waiting += 1
        try:
            await self._opened.wait()
        finally:
            self.waiting -= 1
        return "held"

    @rrpc.method
    async def hold_until(self, path: str) -> str:
        """Until there is such a file."""
        self.waiting += 1
        try:
            while not Path(path).exists():
                await asyncio.sleep(0.005)
        finally:
            self.waiting -= 1
        return "held"

    @rrpc.method
    async def open(self) -> None:
        self._opened.set()

    @rrpc.method
    async def counts(self) -> list[int]:
        """Handlers that wait, and those that were cancelled."""
        return [self.waiting, self.cancelled]

    @rrpc.method
    async def leave(self, text: str) -> str:
        """What another call has left in the context."""
        found = _left.get()
        _left.set(text)
        return found

    @rrpc.method
    async def grouped(self) -> list[int]:
        """What only tasks can do."""
        assert asyncio.current_task() is not None

        async def number(value: int) -> int:
            await asyncio.sleep(0)
            return value

        found = await asyncio.wait_for(asyncio.gather(*map(number, range(3))), 10)
        return list(found)

    @rrpc.method
    async def metadata(self) -> dict[str, str]:
        context = rrpc.context()
        await asyncio.sleep(0)
        context.set_metadata({"answer": "yes"})
        return {name: str(value) for name, value in context.metadata.items()}

    @rrpc.method
    async def time_left(self) -> float | None:
        await asyncio.sleep(0)
        return rrpc.context().time_left()

    @rrpc.method
    async def tasks(self) -> int:
        """How many tasks the calls of this method have run in so far."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(id(task))
        return len(self._tasks)
