"""Blocking calls in coroutines: they hold up the event loop, so that they are refused, with what to do instead."""

# Blocking calls look here in their own thread, before they wait for anything.

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

# Flags of code objects whose frames an event loop runs.
_WAITS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_running: Callable[[], Any] | None = None


def loop_here() -> Callable[[], Any] | None:
    """Returns the function that gets the loop running in the calling thread, None if there is no such loop.

    Returns None in place of the function if nobody has imported asyncio yet.
    """
    # Not by get(), which holds the dict's lock where there is no GIL: the interpreter's end, which stops daemon threads
    # wherever they are, would wait for one that it has stopped there.
    if "asyncio" not in sys.modules:
        return None
    return getattr(sys.modules["asyncio"], "_get_running_loop", None)


def refuse_blocking(call: str, instead: str, depth: int) -> None:
    """``refuse_in_coroutine``, where a loop runs in this thread."""
    global _running
    if _running is None:
        _running = loop_here()
    if _running is not None and _running() is not None:
        refuse_in_coroutine(call, instead, depth + 1)


def refuse_in_coroutine(call: str, instead: str, depth: int) -> None:
    """Raises RuntimeError if the caller ``depth`` frames above this one's is a coroutine.

    Frames of rrpc itself don't count. Notebooks, where a loop runs but cells are synchronous code, may block.
    """
    frame: Any = sys._getframe(depth + 1)
    while frame is not None and (frame.f_globals.get("__package__") or "").partition(".")[0] == "rrpc":
        frame = frame.f_back
    if frame is not None and frame.f_code.co_flags & _WAITS:
        raise RuntimeError(
            f"{call} blocks, and was called in a coroutine, where it would hold up the event loop: await {instead}, "
            f"or await asyncio.to_thread(...)"
        )
