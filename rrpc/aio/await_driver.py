"""Calls with streams on their way: what their course asks for is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from rrpc._call.chain import Chain, Sleep, drive_async
from rrpc._call.outgoing import OutgoingCall, Waiting

__all__ = ["carry_out"]


async def carry_out(chain: Chain, asked: Any) -> Any:
    """Carries a course that has begun out to its end, which may not be the call's."""
    return await drive_async(chain, partial(_do, chain.call), asked)


def _do(call: OutgoingCall, asked: Any) -> Awaitable[Any]:
    return _DO.get(type(asked), _await)(call, asked)


async def _wait(call: OutgoingCall, waiting: Waiting) -> Any:
    """Waits for a connection, or for several attempts, until the call's deadline."""
    call.interrupt_with(waiting.future.cancel)
    future = asyncio.wrap_future(waiting.future)
    try:
        done, _ = await asyncio.wait([future], timeout=call.time_left())
        if not done or future.cancelled():
            raise waiting.late()
        return future.result()
    finally:
        call.interrupt_with(None)
        future.cancel()


async def _sleep(call: OutgoingCall, sleep: Sleep) -> None:
    seconds, late = call.nap(sleep.seconds)
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    call.interrupt_with(lambda: loop.call_soon_threadsafe(woken.set))
    try:
        await asyncio.wait_for(woken.wait(), seconds)
    except asyncio.TimeoutError:
        pass
    finally:
        call.interrupt_with(None)
    call.check(late)


async def _await(call: OutgoingCall, awaitable: Any) -> Any:
    """Awaits an awaitable that an interceptor yielded, until the call's deadline."""
    loop, future = asyncio.get_running_loop(), asyncio.ensure_future(awaitable)
    call.interrupt_with(lambda: loop.call_soon_threadsafe(future.cancel))
    try:
        return await asyncio.wait_for(future, call.time_left())
    except (asyncio.CancelledError, asyncio.TimeoutError) as error:
        if future.cancelled():  # else the error is its own
            call.check(late=isinstance(error, asyncio.TimeoutError))
        raise
    finally:
        call.interrupt_with(None)


_DO: dict[type, Callable[[OutgoingCall, Any], Awaitable[Any]]] = {
    Waiting: _wait,
    Sleep: _sleep,
}
