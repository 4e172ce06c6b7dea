"""The core's streams in an event loop: what isn't possible yet is awaited."""

# Runs in the thread of the loop that awaits the stream. One task may send while another one receives.

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from rrpc._call.received_items import Pace
from rrpc._core import Awaited

from .fairness import others_turn, turn_end
from .loop_driver import running_driver

if TYPE_CHECKING:
    from rrpc import _core


class _News(asyncio.Future[None]):
    def arrived(self, _: Any, __: Any) -> None:
        if not self.done():
            self.set_result(None)


async def changed(stream: _core.Stream, what: _core.Awaited) -> None:
    """Waits until ``what`` may have come, or the call has ended."""
    driver = running_driver()
    news = _News(loop=driver.loop)
    stream.notify(driver, news, what)
    driver.poll_soon()
    await news


async def delivered(stream: _core.Stream) -> None:
    """Waits until the peer has all items sent so far; raises the call's error."""
    sequence = stream.ask_delivered()
    while not stream.delivered(sequence):
        await changed(stream, Awaited.DELIVERY)


async def received(
    stream: _core.Stream, decode: Callable[..., Any], first: list[Any] | None = None
) -> AsyncGenerator[Any, None]:
    """The items that come, decoded; ``first`` is what has come already."""
    pace = Pace()
    end = turn_end()
    batch = first
    while True:
        if batch is None:
            batch = stream.try_receive(pace.count)
        if batch is None:
            await changed(stream, Awaited.ITEMS)
            end = turn_end()
            continue
        if not batch:
            return
        if monotonic() > end:
            end = await others_turn()
        pace.begin()
        items, with_buffers = len(batch), batch[-1][1] is not None
        batch.reverse()
        take = batch.pop  # so that nothing here keeps an item's memory
        while batch:
            yield decode(*take())
        pace.end(items, with_buffers)
        batch = None
