"""Streams of coroutines: asyncio clients of plain and of async handlers, and blocking clients of async ones."""

import asyncio
import gc
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from aio import Run, until
from flow import flow_rpc, nothing_left
from processes import cpu_seconds, patience, volume

import rrpc

WINDOW = 16
Main = Callable[[Any], Coroutine[Any, Any, None]]


@pytest.fixture(params=["plain", "async"])
def handlers(request: pytest.FixtureRequest) -> dict[str, str]:
    """Names of methods whose handlers are of a kind."""
    later = {"count": "later", "add": "add_later", "sums": "sums_later"}
    return later if request.param == "async" else {name: name for name in later}


@pytest.fixture
def in_flow(in_loop: Run[None], flow: Any, flow_address: str) -> Callable[[Main], None]:
    """Runs a coroutine function with an asyncio client; nothing is left after it."""

    def run(main: Main) -> None:
        async def with_client() -> None:
            async with flow_rpc.AsyncFlowClient(flow_address, timeout=patience(60)) as client:
                await main(client)
                gc.collect()

        with nothing_left(flow):
            in_loop(with_client())

    return run


def test_a_stream_of_results(in_flow: Any, handlers: dict[str, str]) -> None:
    async def main(client: Any) -> None:
        count = getattr(client, handlers["count"])
        assert [i async for i in count(1000)] == list(range(1000))
        assert [i async for i in count(0)] == []
        stream = count(3, fail=True)
        assert [await stream.__anext__() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(rrpc.NotFound, match="no more"):
            await stream.__anext__()

    in_flow(main)


def test_streams_of_arguments(in_flow: Any, handlers: dict[str, str]) -> None:
    async def values() -> AsyncIterator[int]:
        for i in range(100):
            await asyncio.sleep(0)
            yield i

    async def main(client: Any) -> None:
        add, sums = getattr(client, handlers["add"]), getattr(client, handlers["sums"])
        assert await add(range(2000)) == 1_999_000
        assert await add(values()) == 4950
        async with add.open() as stream:
            await stream.send(3)
            await stream.send(4)
            assert await stream.finish() == 7
        assert [total async for total in sums([1, 2, 3])] == [1, 3, 6]
        assert [total async for total in sums(values())][-1] == 4950
        async with sums.open() as both:
            for value, total in ((1, 1), (2, 3)):
                await both.send(value)
                assert await both.__anext__() == total
            await both.finish()
            assert [total async for total in both] == []

    in_flow(main)


def test_arrays(in_flow: Any) -> None:
    async def main(client: Any) -> None:
        blocks = [block async for block in client.blocks(3, 200_000)]
        assert [(block.nbytes, block[0]) for block in blocks] == [(200_000, i) for i in range(3)]
        assert await client.weigh(blocks) == 600_000

    in_flow(main)


@pytest.mark.parametrize("how", ["break", "with", "cancel", "drop", "task"])
def test_leaving_a_stream_early_ends_it(in_flow: Any, handlers: dict[str, str], how: str) -> None:
    async def main(client: Any) -> None:
        stream = getattr(client, handlers["count"])(1 << 40)
        if how == "break":
            async for value in stream:
                if value == 3:
                    break
            stream.close()
        elif how == "with":
            async with stream:
                await stream.__anext__()
        elif how == "cancel":
            await stream.__anext__()
            stream.cancel()
            with pytest.raises(rrpc.Cancelled):
                async for _ in stream:
                    pass
        elif how == "drop":
            del stream
        else:
            stream = client.sleeps()
            await stream.__anext__()
            task = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    in_flow(main)


def test_a_producer_is_ahead_by_the_window(
    in_loop: Run[None], flow_address: str, handlers: dict[str, str]
) -> None:
    async def main() -> None:
        async with flow_rpc.AsyncFlowClient(flow_address, stream_window_items=WINDOW) as client:
            before = (await client.counts())["given"]

            async def given() -> Any:
                counts = await client.counts()
                return counts["given"] - before

            async def ahead() -> Any:
                return await given() >= WINDOW

            async with getattr(client, handlers["count"])(1 << 40) as stream:
                assert await stream.__anext__() == 0
                await until(ahead)
                for _ in range(100):
                    assert await given() <= 1 + WINDOW + 2

    in_loop(main())


def test_waiting_for_items_after_there_was_no_room_takes_no_processor_time(in_flow: Any) -> None:
    async def main(client: Any) -> None:
        async def fill() -> None:
            while True:
                await stream.send(1)

        async with client.swallow.open() as stream:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(fill(), 1)
            await client.go_on()
            before = cpu_seconds(os.getpid())
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(stream.__anext__(), 1)
            assert cpu_seconds(os.getpid()) - before < 0.5

    in_flow(main)


def test_many_streams_in_one_loop(in_flow: Any, handlers: dict[str, str]) -> None:
    async def main(client: Any) -> None:
        count = getattr(client, handlers["count"])

        async def total(n: int) -> int:
            return sum([i async for i in count(n)])

        totals = await asyncio.gather(*(total(n) for n in range(100)))
        assert totals == [n * (n - 1) // 2 for n in range(100)]

    in_flow(main)


def test_misuse_is_named(in_flow: Any) -> None:
    async def main(client: Any) -> None:
        stream = client.count(2)
        assert [i async for i in stream] == [0, 1]
        with pytest.raises(RuntimeError, match="has ended, its items are given once"):
            async for _ in stream:
                pass
        values = client.add.open()
        await values.send(1)
        assert await values.finish() == 1
        with pytest.raises(RuntimeError, match=r"send\(\) after finish\(\)"):
            await values.send(2)
        with pytest.raises(rrpc.InvalidArgument, match="takes an iterable of items, async or not, not int"):
            await client.add(5)

    in_flow(main)


def test_what_the_callers_own_iterable_raises(in_flow: Any, handlers: dict[str, str]) -> None:
    async def values() -> AsyncIterator[int]:
        yield 1
        raise KeyError("mine")

    async def main(client: Any) -> None:
        with pytest.raises(KeyError, match="mine"):
            await getattr(client, handlers["add"])(values())
        with pytest.raises(KeyError, match="mine"):
            async for _ in getattr(client, handlers["sums"])(values()):
                pass

    in_flow(main)


def test_blocking_clients_of_async_handlers(flow: Any) -> None:
    with nothing_left(flow):
        assert list(flow.later(1000)) == list(range(1000))
        assert flow.add_later(range(100)) == 4950
        assert list(flow.sums_later([1, 2, 3])) == [1, 3, 6]
        with flow.sleeps() as stream:
            assert next(stream) == 1


@pytest.mark.slow
def test_a_thousand_streams_some_of_them_left(in_flow: Any, handlers: dict[str, str]) -> None:
    chance = random.Random(1)

    async def main(client: Any) -> None:
        count, sums = getattr(client, handlers["count"]), getattr(client, handlers["sums"])

        async def use(number: int) -> None:
            stream = count(300) if number % 2 else sums(range(300))
            async for value in stream:
                if chance.random() < 0.01:
                    stream.cancel()
                    return
                if value % 50 == 0:
                    await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(use(number)) for number in range(volume(1000, 100))]
        for task in tasks[::10]:
            asyncio.get_running_loop().call_later(chance.random() * 0.5, task.cancel)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in ended} <= {type(None), asyncio.CancelledError}
        assert await client.add([1]) == 1

    in_flow(main)
