"""A loop goes round while a stream never waits: it has others to see to."""

# For tasks of any loop; nothing here has a state.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from time import monotonic
from typing import Any

# Seconds for which a task may hold the loop.
_SLICE_S = 0.002


def turn_end() -> float:
    """Returns the time, by ``time.monotonic``, at which a task that continues now must yield to others."""
    return monotonic() + _SLICE_S


async def others_turn() -> float:
    """Let the others go on; gives the next ``turn_end``."""
    await asyncio.sleep(0)
    return turn_end()


async def send_in_turns(
    items: AsyncIterable[Any] | Iterable[Any], send: Callable[[Any], Awaitable[None]]
) -> None:
    """Each of the items, one after the other."""
    end = turn_end()
    if isinstance(items, AsyncIterable):
        async for item in items:
            await send(item)
            if monotonic() > end:
                end = await others_turn()
    else:
        for item in items:
            await send(item)
            if monotonic() > end:
                end = await others_turn()
