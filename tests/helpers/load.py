"""Calls that mustn't run twice, each with a key of its own, one after the other for as long as a test takes."""

import asyncio
from collections.abc import Callable
from typing import Any

from aio import until
from counted_service import AsyncCountedClient
from processes import patience

__all__ = ["Answers", "LoopLoad"]


class Answers:
    """What came of the calls."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.errors: dict[str, Exception] = {}

    def of(self, name: str) -> int:
        """How many that server has given."""
        return list(self.answers.values()).count(name)

    def check(self, runs: list[str]) -> None:
        """None was lost, none ran twice."""
        mine = [key for key in runs if key.startswith("key-")]
        assert len(mine) == len(set(mine)), "a call ran twice"
        ran = set(mine)
        assert self.answers.keys() <= ran
        unseen = {key for key, error in self.errors.items() if getattr(error, "not_executed", False)}
        assert not unseen & ran, "an error says that no handler has seen a call that ran"
        assert ran <= self.answers.keys() | self.errors.keys()


class LoopLoad(Answers):
    """Of an asyncio client: so many tasks, each of which has a call under way, in an ``async with`` statement."""

    def __init__(self, client: AsyncCountedClient, tasks: int = 8) -> None:
        super().__init__()
        self._client = client
        self._count = tasks
        self._ending = False

    async def _run(self, number: int) -> None:
        count = 0
        while not self._ending:
            key = f"key-{number}-{count}"
            count += 1
            try:
                call = self._client.once if count % 2 else self._client.once.start
                self.answers[key] = await call(key, timeout=patience(20))
            except Exception as error:
                self.errors[key] = error

    async def goes_on(self) -> None:
        """Wait for more answers."""
        there = len(self.answers)
        await _until(lambda: len(self.answers) > there + 20)

    async def reaches(self, name: str) -> None:
        """Wait until the server answers, from now on."""
        before = self.of(name)
        await _until(lambda: self.of(name) > before + 2)

    async def __aenter__(self) -> "LoopLoad":
        self._tasks = [asyncio.ensure_future(self._run(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._ending = True
        await asyncio.wait(self._tasks)


async def _until(condition: Callable[[], Any]) -> None:
    async def found() -> bool:
        return bool(condition())

    await until(found)
