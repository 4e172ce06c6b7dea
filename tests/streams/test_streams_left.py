"""Streams that their callers don't take to the end: whoever asked hears how they ended, and nothing stays."""

import asyncio
import gc
import io
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
from aio import Run, until
from flow import flow_rpc
from numpy.typing import NDArray
from processes import eventually

import rrpc
from rrpc._client import stream_call
from rrpc.interceptors import Sleep

Main = Callable[[Any], Any]


class Ends(rrpc.ClientInterceptor):
    """How calls with streams ended."""

    def __init__(self) -> None:
        self.seen: list[BaseException | None] = []

    def stream(self, call: Any) -> Generator[Any, Any, Any]:
        call.on_end(self.seen.append)
        return (yield call)


class Never(rrpc.ClientInterceptor):
    """Waits before the call."""

    def stream(self, call: Any) -> Generator[Any, Any, Any]:
        yield Sleep(3600)


@pytest.fixture
def with_client(in_loop: Run[None], flow_address: str) -> Callable[..., None]:
    """Runs a coroutine function with an asyncio client that has such interceptors."""

    def run(main: Main, *interceptors: Any) -> None:
        async def with_one() -> None:
            async with flow_rpc.AsyncFlowClient(
                flow_address, timeout=30.0, interceptors=interceptors
            ) as client:
                await main(client)

        in_loop(with_one())

    return run


async def ended(stream: Any) -> None:
    async def done() -> bool:
        return bool(stream.done())

    await until(done)


def leave(stream: Any, how: str) -> Any:
    """Gives what is to be kept of it."""
    if how == "close":
        stream.close()
    elif how == "cancel":
        assert not stream.cancel()
    return None if how in ("drop", "cancel") else stream


# Calls that have ended by themselves, with items that nobody takes


@pytest.mark.parametrize("how", ["close", "drop", "cancel"])
@pytest.mark.parametrize("fail", [False, True])
def test_how_it_ended_is_told(flow: Any, how: str, fail: bool) -> None:
    ends = Ends()
    stream = flow.with_options(interceptors=[ends]).count(5, fail=fail)
    assert next(stream) == 0
    eventually(stream.done)
    stream = leave(stream, how)
    gc.collect()
    assert [type(error) for error in ends.seen] == [rrpc.NotFound if fail else type(None)]


def test_how_it_ended_is_told_after_a_loop_that_was_left(flow: Any) -> None:
    ends = Ends()
    client = flow.with_options(interceptors=[ends])

    def third() -> Any:
        stream = client.count(5)
        eventually(stream.done)
        for value in stream:
            if value == 2:
                break
        return value

    assert third() == 2
    assert ends.seen == [None]


def test_how_it_ended_is_told_where_an_item_is_sent(flow: Any) -> None:
    ends = Ends()
    with flow.with_options(interceptors=[ends]).refuse.open() as stream:
        eventually(stream.done)
        with pytest.raises(rrpc.FailedPrecondition):
            stream.send(1)
        assert [type(error) for error in ends.seen] == [rrpc.FailedPrecondition]
    assert len(ends.seen) == 1


@pytest.mark.parametrize("how", ["close", "drop", "cancel"])
@pytest.mark.parametrize("fail", [False, True])
def test_how_it_ended_is_told_in_a_loop(with_client: Any, how: str, fail: bool) -> None:
    ends = Ends()

    async def main(client: Any) -> None:
        stream = client.count(5, fail=fail)
        assert await stream.__anext__() == 0
        await ended(stream)
        stream = leave(stream, how)
        gc.collect()

        async def told() -> bool:
            return bool(ends.seen)

        await until(told)

    with_client(main, ends)
    assert [type(error) for error in ends.seen] == [rrpc.NotFound if fail else type(None)]


def test_how_it_ended_is_told_where_an_item_is_sent_in_a_loop(with_client: Any) -> None:
    ends = Ends()

    async def main(client: Any) -> None:
        async with client.refuse.open() as stream:
            await ended(stream)
            with pytest.raises(rrpc.FailedPrecondition):
                await stream.send(1)
            assert [type(error) for error in ends.seen] == [rrpc.FailedPrecondition]

    with_client(main, ends)
    assert len(ends.seen) == 1


# Before there is a connection


def test_a_call_cancelled_before_it_is_sent(with_client: Any) -> None:
    ends = Ends()

    async def main(client: Any) -> None:
        stream = client.count(5)
        waiter = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0)
        assert stream.cancel()
        with pytest.raises(rrpc.Cancelled):
            await waiter
        assert not stream.cancel()
        stream = client.sums.open()
        assert stream.cancel()  # before its task has begun
        with pytest.raises(rrpc.Cancelled):
            await stream.send(1)

    with_client(main, ends, Never())
    assert [type(error) for error in ends.seen] == [rrpc.Cancelled] * 2


def test_what_the_items_raise_before_the_call_is_sent(with_client: Any) -> None:
    def values() -> Iterator[int]:
        yield from map(int, ["mine"])

    async def main(client: Any) -> None:
        with pytest.raises(ValueError, match="mine"):
            await client.sums(values()).__anext__()

    with_client(main, Never())


# What is fed


@pytest.mark.parametrize("how", ["drop", "with", "cancel", "ends", "refused"])
def test_items_that_nobody_wants_any_more(with_client: Any, how: str) -> None:
    begun, closed = [], []

    async def values() -> AsyncIterator[int]:
        begun.append(1)
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.append(1)

    async def all_closed() -> bool:
        return len(closed) == 1

    async def main(client: Any) -> None:
        stream = (client.refuse if how == "refused" else client.sums)(values())
        while not begun:
            await asyncio.sleep(0)
        if how == "drop":
            del stream
        elif how == "with":
            async with stream:
                assert await stream.__anext__() == 1
        elif how == "cancel":
            assert await stream.__anext__() == 1
            waiter = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0)
            assert stream.cancel()
            with pytest.raises(rrpc.Cancelled):
                await waiter
        elif how == "refused":
            with pytest.raises(rrpc.FailedPrecondition):
                await stream.__anext__()
        else:
            assert await stream.__anext__() == 1
            await stream._items.aclose()
        gc.collect()
        await until(all_closed)

    with_client(main)


def test_a_dropped_stream_whose_items_never_end(with_client: Any) -> None:
    ends = Ends()

    async def values() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async def main(client: Any) -> None:
        async def told() -> bool:
            return bool(ends.seen)

        client.sums(values())
        await until(told)

    with_client(main, ends)
    assert [type(error) for error in ends.seen] == [rrpc.Cancelled]


def test_a_loop_over_a_stream_that_has_no_name(with_client: Any) -> None:
    async def main(client: Any) -> None:
        assert [total async for total in client.sums(range(1000))][-1] == 499_500

    with_client(main)


def test_only_generators_are_closed(flow: Any) -> None:
    class Lines(io.StringIO):
        def __next__(self) -> Any:
            return int(super().__next__())

    mine = Lines("1\n2\n")
    assert flow.add(mine) == 3
    mine.seek(0)
    assert list(flow.sums(mine)) == [1, 3]
    assert not mine.closed


# Memory


def test_arguments_go_with_their_call(address: str) -> None:
    @rrpc.service
    class Echo:
        @rrpc.method
        def items(self, array: NDArray[np.uint8]) -> Iterator[int]:
            yield from array[:3].tolist()

    with rrpc.serve(Echo(), listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        gone = threading.Event()
        gc.collect()
        gc.disable()
        try:
            array = np.ones(100_000, np.uint8)
            weakref.finalize(array, gone.set)
            assert list(rrpc.open_stream(client, "Echo.items", array)) == [1, 1, 1]
            del array
            assert (
                client.call("rrpc.Health.check") is not None
            )  # what the core held is given back in a crossing
            assert gone.is_set()
        finally:
            gc.enable()


def test_the_names_of_its_module_may_go_first(flow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter clears modules as it ends, without the GIL before it drops what the main module holds."""
    failures: list[Any] = []
    answers = flow.count(1_000_000)
    assert next(answers) == 0
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    with monkeypatch.context() as ending:
        for name in [name for name in vars(stream_call) if not name.startswith("__")]:
            ending.setattr(stream_call, name, None)
        del answers
        gc.collect()
    assert not failures
