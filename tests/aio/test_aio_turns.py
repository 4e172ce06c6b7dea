"""Streams that never wait, in a loop: it goes round meanwhile."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from aio import Run, until
from flow import flow_rpc
from flow_service import Flow

import rrpc

WIDE = 1 << 18
OPTIONS = {"stream_window_items": WIDE, "stream_window_bytes": 1 << 30}


class Told:
    """Becomes true when the loop next goes round."""

    def __init__(self) -> None:
        self.now = False

    def soon(self) -> None:
        asyncio.get_running_loop().call_soon(setattr, self, "now", True)


def until_told(told: Told) -> Iterator[int]:
    told.soon()
    for _ in itertools.takewhile(lambda _: not told.now, range(WIDE)):
        yield 1


async def until_told_async(told: Told) -> AsyncIterator[int]:
    for item in until_told(told):
        yield item


@pytest.mark.parametrize("items", [until_told, until_told_async])
def test_of_items_to_send(in_loop: Run[None], address: str, items: object) -> None:
    async def main(to: str) -> None:
        async with flow_rpc.AsyncFlowClient(to, timeout=60.0) as client:
            assert await client.add([1]) == 1
            assert await client.add(items(Told())) < WIDE  # type: ignore[operator]

    with rrpc.serve(Flow(), listen=address, workers=1, **OPTIONS) as server:
        in_loop(main(server.addresses[0]))


def test_of_items_that_are_here(in_loop: Run[None], flow_address: str) -> None:
    async def main() -> None:
        async with flow_rpc.AsyncFlowClient(flow_address, timeout=60.0, **OPTIONS) as client:
            stream, told = client.count(50_000), Told()

            async def all_here() -> bool:
                return bool(stream.done())

            await until(all_here)
            value = await stream.__anext__()
            told.soon()
            while value < 49_999 and not told.now:
                value = await stream.__anext__()
            assert value < 49_999

    in_loop(main())


def test_of_an_async_handler_that_gives_an_iterable(address: str) -> None:
    @rrpc.service
    class Endless:
        told = False

        @rrpc.method
        async def until_told(self) -> Iterator[int]:
            def items() -> Iterator[int]:
                while not self.told:
                    yield 0

            return items()

        @rrpc.method
        async def tell(self) -> None:
            self.told = True

    with (
        rrpc.serve(Endless(), listen=address) as server,
        rrpc.connect(server.addresses[0], timeout=60.0, **OPTIONS) as client,
    ):
        stream = rrpc.open_stream(client, "Endless.until_told")
        assert next(stream) == 0
        client.call("Endless.tell")
        assert sum(1 for _ in stream) < WIDE - 1
