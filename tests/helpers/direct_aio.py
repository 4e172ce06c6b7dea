"""A blocking server of the service in direct.py, and asyncio clients whose methods are bound to a connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from direct import ADDRESS, Bench, bench_rpc
from processes import patience

import rrpc


@pytest.fixture(name="server", autouse=True)
def server_fixture(bench: Bench) -> Iterator[rrpc.Server]:
    with rrpc.Server(bench, listen=ADDRESS, workers=4) as server:
        bench.peer = server.addresses[0]
        yield server


@contextlib.asynccontextmanager
async def ready_client(**options: Any) -> AsyncIterator[Any]:
    """A client whose methods ``add`` and ``slow`` were called once, by which they are bound to its connection."""
    async with bench_rpc.AsyncBenchClient(ADDRESS, **options) as client:
        await client.add(1)
        await client.slow(0.0)
        yield client


async def comes(semaphore: threading.Semaphore) -> None:
    """Waits, without a thread, until another thread has released it."""
    await until_true(lambda: semaphore.acquire(blocking=False))


async def until_true(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), patience(20))
