"""The timing loops of bench/measure.py, in asyncio."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

from bench.measure import CALLS_MAX, CALLS_MIN, percentile
from bench.peers.base import AsyncConnection, Floats


async def latency(connection: AsyncConnection, data: bytes, seconds: float) -> dict[str, float]:
    assert await connection.echo(data) == data
    await time_calls(lambda: connection.echo(data), seconds / 5)
    times = await time_calls(lambda: connection.echo(data), seconds)
    return {"p50_us": percentile(times, 0.5) / 1e3, "p99_us": percentile(times, 0.99) / 1e3}


async def bandwidth(connection: AsyncConnection, array: Floats, seconds: float) -> dict[str, float]:
    assert await connection.send(array) == array.nbytes
    await time_calls(lambda: connection.send(array), seconds / 5)
    return {"gbps": array.nbytes / median(await time_calls(lambda: connection.send(array), seconds))}


async def time_calls(call: Callable[[], Awaitable[object]], seconds: float) -> list[int]:
    """Nanoseconds of each call, one after the other."""
    times: list[int] = []
    clock = time.perf_counter_ns
    end = clock() + int(seconds * 1e9)
    before = clock()
    while (before < end or len(times) < CALLS_MIN) and len(times) < CALLS_MAX:
        await call()
        after = clock()
        times.append(after - before)
        before = after
    return times


async def throughput(
    connection: AsyncConnection, data: bytes, seconds: float, window: int, cpu: Callable[[], float]
) -> dict[str, float]:
    """As many tasks as calls are to be in flight, each with one after the other."""
    await in_flight(connection, data, seconds / 5, window)
    start, cpu_before = time.perf_counter(), cpu()
    calls = await in_flight(connection, data, seconds, window)
    elapsed, cpu_spent = time.perf_counter() - start, cpu() - cpu_before
    return {"calls_per_s": calls / elapsed, "cpu_us_per_call": cpu_spent / calls * 1e6}


async def in_flight(connection: AsyncConnection, data: bytes, seconds: float, window: int) -> int:
    """How many calls were made."""
    end = time.perf_counter() + seconds

    async def caller() -> int:
        calls = 0
        while time.perf_counter() < end:
            await connection.echo(data)
            calls += 1
        return calls

    return sum(await asyncio.gather(*(caller() for _ in range(window))))
