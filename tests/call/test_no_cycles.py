"""What a call leaves behind: nothing that only the collector of cycles finds, at either end."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
from processes import eventually
from two_versions import generate

import rrpc

CALLS = 20
Union = bytes | list[memoryview]


@rrpc.service
class Kept:
    @rrpc.method
    def union(self, value: Union) -> Union:
        return value

    @rrpc.method
    def refuse(self, value: Union) -> int:
        raise rrpc.NotFound("not here")

    @rrpc.method
    def take(self, values: Iterator[Union]) -> int:
        return sum(1 for _ in values)

    @rrpc.method
    def give(self, count: int) -> Iterator[Union]:
        for _ in range(count):
            yield memory()

    @rrpc.method
    def swap(self, values: Iterator[Union]) -> Iterator[Union]:
        yield from values


CLIENTS = generate(Kept)


def memory() -> list[memoryview]:
    return [np.ones(100_000, np.uint8).data]


def wrong(client: Any) -> None:
    with pytest.raises(rrpc.InvalidArgument):
        client.union([1])


def refused(client: Any) -> None:
    with pytest.raises(rrpc.NotFound):
        client.refuse(memory())


def taken(client: Any) -> None:
    with client.take.open() as stream:
        for _ in range(3):
            stream.send(memory())
        assert stream.finish() == 3


def left(client: Any) -> None:
    with client.give(1000) as stream:
        next(stream)


BLOCKING: dict[str, Callable[[Any], Any]] = {
    "unary": lambda client: client.union(memory()),
    "future": lambda client: client.union.start(memory()).result(),
    "given up": lambda client: client.union.start(memory()).cancel(),
    "wrong": wrong,
    "refused": refused,
    "given": lambda client: [None for _ in client.give(3)],
    "taken": taken,
    "both": lambda client: [None for _ in client.swap(memory() for _ in range(3))],
    "left": left,
}


async def wrong_later(client: Any) -> None:
    with pytest.raises(rrpc.InvalidArgument):
        await client.union([1])


async def refused_later(client: Any) -> None:
    with pytest.raises(rrpc.NotFound):
        await client.refuse(memory())


async def given_later(client: Any) -> None:
    async for _ in client.give(3):
        pass


async def taken_later(client: Any) -> None:
    async with client.take.open() as stream:
        for _ in range(3):
            await stream.send(memory())
        assert await stream.finish() == 3


async def left_later(client: Any) -> None:
    async with client.give(1000) as stream:
        await anext(stream)


ASYNCIO: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "unary": lambda client: client.union(memory()),
    "future": lambda client: client.union.start(memory()),
    "wrong": wrong_later,
    "refused": refused_later,
    "given": given_later,
    "taken": taken_later,
    "left": left_later,
}


@contextmanager
def collected(server: rrpc.Server, kinds: list[str]) -> Iterator[None]:
    """Has the kinds of all objects that the calls made in it leave behind."""
    gc.collect()
    gc.disable()
    try:
        yield
        eventually(lambda: server.stats()["calls_running"] == 0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds += sorted(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def until_nothing_is_left(server: rrpc.Server) -> Iterator[AbstractContextManager[None]]:
    """Gives contexts to make the calls in, until one has left nothing.

    What threads of earlier tests leave behind comes once, a call's cycles come each time.
    """
    kinds: list[str] = []
    for _ in range(3):
        kinds.clear()
        yield collected(server, kinds)
        if len(kinds) < CALLS:
            return
    pytest.fail(f"{len(kinds)} objects: {', '.join(kinds)}")


@pytest.mark.parametrize("what", BLOCKING)
def test_blocking_calls(what: str) -> None:
    server = rrpc.serve(Kept(), listen="tcp://127.0.0.1:0")
    with server, CLIENTS.KeptClient(server.addresses[0], timeout=20.0) as client:
        BLOCKING[what](client)  # what is made once
        for calls in until_nothing_is_left(server):
            with calls:
                for _ in range(CALLS):
                    BLOCKING[what](client)


@pytest.mark.parametrize("what", ASYNCIO)
def test_asyncio_calls(what: str) -> None:
    async def run(server: rrpc.Server) -> None:
        async with CLIENTS.AsyncKeptClient(server.addresses[0], timeout=20.0) as client:
            await ASYNCIO[what](client)
            for calls in until_nothing_is_left(server):
                with calls:
                    for _ in range(CALLS):
                        await ASYNCIO[what](client)

    with rrpc.serve(Kept(), listen="tcp://127.0.0.1:0") as server:
        asyncio.run(run(server))


def test_an_asyncio_stream_keeps_no_item() -> None:
    async def swap(server: rrpc.Server) -> None:
        client = CLIENTS.AsyncKeptClient(server.addresses[0], timeout=20.0)
        async with client, client.swap.open() as stream:
            await stream.send(memory())
            item = await anext(stream)
            array = weakref.ref(item[0].obj)
            del item
            assert array() is None

    with rrpc.serve(Kept(), listen="tcp://127.0.0.1:0") as server:
        asyncio.run(swap(server))
