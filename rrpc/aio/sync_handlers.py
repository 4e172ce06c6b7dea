"""Synchronous functions where coroutines are expected: the built-in services' in a server that has no worker."""

# Runs in the thread of the server's loop, which these functions must not hold up.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from rrpc._server.dispatch import Handler
from rrpc._server.waker import Waker


def to_loop(handler: Handler) -> None:
    """Has an event loop call the handler. Its function waits for nothing, but by a ``rrpc._server.waker.Waker``."""
    function = handler.function
    handler.is_async = True
    handler.function = _items(function) if handler.plan.kind else _result(function)


def _result(function: Callable[..., Any]) -> Callable[..., Any]:
    async def result(*arguments: Any) -> Any:
        return function(*arguments)

    return result


def _items(function: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    async def items(*arguments: Any) -> AsyncIterator[Any]:
        source = function(*arguments)
        try:
            for item in source:
                if isinstance(item, Waker):
                    await _woken(item)
                else:
                    yield item
        finally:
            source.close()  # type: ignore[attr-defined]  # a generator

    return items


async def _woken(waker: Waker) -> None:
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    # wake() may come from any thread.
    waker.wait(lambda: loop.call_soon_threadsafe(woken.set))
    await woken.wait()
