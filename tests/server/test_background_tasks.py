"""Tasks that a handler starts: their calls inherit its deadline and cancellation when that is asked for."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from lab import address_to_listen_on
from processes import patience

import rrpc


@rrpc.service
class Echo:
    @rrpc.method
    async def echo(self, items: AsyncIterator[int]) -> AsyncIterator[int]:
        async for item in items:
            yield item

    @rrpc.method
    async def time_left(self) -> float:
        return rrpc.context().time_left() or -1.0


@rrpc.service
class Starter:
    def __init__(self, other: str, attached: bool) -> None:
        self.other, self.attached = other, attached
        self.rounds, self.left = 0, 0.0
        self.began, self.stop = asyncio.Event(), asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @rrpc.method
    async def go(self, attached: bool) -> None:
        self.task = asyncio.create_task(self.background())
        await asyncio.sleep(patience(60))

    async def background(self) -> None:
        if self.attached:
            with rrpc.attached():
                await self.talk()
        else:
            await self.talk()

    async def talk(self) -> None:
        async with rrpc.aio.connect(self.other) as client:
            self.left = await client.call("Echo.time_left")
            async with rrpc.aio.open_stream(client, "Echo.echo", sends=True) as stream:
                while not self.stop.is_set():
                    await stream.send(self.rounds)
                    await anext(stream)
                    self.rounds += 1
                    self.began.set()
                    await asyncio.sleep(0)


async def cancelled(starter: Starter, address: str) -> "asyncio.Task[None]":
    """Calls it and gives up once its task talks; returns the task."""
    async with rrpc.aio.connect(address) as client:
        call = client.start("Starter.go", starter.attached, timeout=patience(50))
        await asyncio.wait_for(starter.began.wait(), patience(20))
        call.cancel()
    assert starter.task is not None
    return starter.task


async def goes_on(starter: Starter, task: "asyncio.Task[None]") -> None:
    end, before = time.monotonic() + patience(20), starter.rounds
    while starter.rounds < before + 100:
        assert not task.done()
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    starter.stop.set()
    await task


@pytest.mark.parametrize("attached", [False, True])
def test_background_tasks_inherit_only_when_asked(attached: bool) -> None:
    async def use() -> None:
        behind = await rrpc.aio.serve(Echo(), listen=address_to_listen_on("tcp"))
        starter = Starter(behind.addresses[0], attached)
        server = await rrpc.aio.serve(starter, listen=address_to_listen_on("tcp"))
        async with behind, server:
            task = await cancelled(starter, server.addresses[0])
            if attached:
                with pytest.raises(rrpc.Cancelled):
                    await asyncio.wait_for(task, patience(20))
                assert 0 < starter.left <= patience(50)
            else:
                await goes_on(starter, task)
                assert starter.left == -1.0

    asyncio.run(use())
