"""A loop goes round while a stream never waits: it has others to see to."""

from __future__ import annotations

import asyncio
from time import monotonic

__all__ = ["others_turn", "turn_end"]

_SLICE_S = 0.002


def turn_end() -> float:
    """When, by :func:`time.monotonic`, whoever goes on now leaves the loop to others."""
    return monotonic() + _SLICE_S


async def others_turn() -> float:
    """Let the others go on; gives the next :func:`turn_end`."""
    await asyncio.sleep(0)
    return turn_end()
