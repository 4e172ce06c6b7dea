"""What both ends of the tests of deaths serve beside flow_service: calls that wait, and calls back to the caller."""

import asyncio
import gc
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from flow import flow_rpc

import rrpc


def blocks(n: int, size: int) -> Iterator[Any]:
    """What Flow.weigh takes."""
    return (np.full(size, i % 251, np.uint8) for i in range(n))


@rrpc.service
class Busy:
    """Each method as a plain handler and as an async one."""

    @rrpc.method
    def echo(self, value: Any) -> Any:
        return value

    @rrpc.method
    async def echo_later(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    @rrpc.method
    def usage(self) -> dict[str, int]:
        """rrpc.stats() of this process, without what only waits to be collected."""
        gc.collect()
        return rrpc.stats()

    @rrpc.method
    def hold(self) -> None:
        rrpc.context().wait_cancelled(60)

    @rrpc.method
    async def hold_later(self) -> None:
        await asyncio.sleep(60)

    @rrpc.method
    def back(self, depth: int, value: Any) -> Any:
        """Each end calls the other, so many times."""
        return rrpc.context().client().call("Busy.back", depth - 1, value) if depth else value

    @rrpc.method
    async def back_later(self, depth: int, value: Any) -> Any:
        return await rrpc.context().client().call("Busy.back_later", depth - 1, value) if depth else value

    @rrpc.method
    def follow(self, most: int, size: int) -> int:
        """Takes so many items of an endless stream of the caller's."""
        with rrpc.open_stream(rrpc.context().client(), "Flow.blocks", 1 << 40, size) as stream:
            return sum(block.nbytes for block in islice(stream, most))

    @rrpc.method
    async def follow_later(self, most: int, size: int) -> int:
        async with rrpc.context().client(flow_rpc.AsyncFlowClient).blocks(1 << 40, size) as stream:
            return sum([(await stream.__anext__()).nbytes for _ in range(most)])

    @rrpc.method
    def feed(self, n: int, size: int) -> int:
        """Sends items to the caller."""
        weighed: int = rrpc.context().client(flow_rpc.FlowClient).weigh(blocks(n, size))
        return weighed

    @rrpc.method
    async def feed_later(self, n: int, size: int) -> int:
        weighed: int = await rrpc.context().client(flow_rpc.AsyncFlowClient).weigh(blocks(n, size))
        return weighed
