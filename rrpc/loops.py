"""Blocking calls in coroutines: they hold up the event loop, so that they are refused, with what to do instead."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["loop_here", "refuse_in_coroutine"]

_WAITS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def loop_here() -> Callable[[], Any] | None:
    """What gives the loop that runs in a thread, or None; None where nobody has imported asyncio yet."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else getattr(asyncio, "_get_running_loop", None)


def refuse_in_coroutine(call: str, instead: str, depth: int) -> None:
    """RuntimeError if the caller ``depth`` frames above this one's is a coroutine. Notebooks, where a loop runs but
    cells are plain code, may block."""
    if sys._getframe(depth + 1).f_code.co_flags & _WAITS:
        raise RuntimeError(
            f"{call} blocks, and was called in a coroutine, where it would hold up the event loop: await {instead}, "
            f"or await asyncio.to_thread(...)"
        )
