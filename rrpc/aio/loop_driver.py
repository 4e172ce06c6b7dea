"""An event loop's queue in the core, which receives the ends of calls, and the polling of that queue.

While anything is awaited, the loop polls for a moment in each of its rounds. If nothing arrives for a while,
it sleeps on the queue's descriptor. Many loops may run in a process, each in its own thread, and they may
share clients.
"""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop, get_running_loop
from contextvars import Context
from typing import Any, Protocol

from rrpc import _core

__all__ = ["LoopDriver", "Target", "running_driver"]


class Target(Protocol):
    """Receiver of events from a loop's queue."""

    def arrived(self, first: Any, second: Any, /) -> object:
        """In the loop, as a callback of it. What the two are is between the target and what it awaits."""


class LoopDriver:
    """Polls the queue of one loop; ``poll_soon`` after anything new was begun there."""

    __slots__ = ("_context", "_polling", "loop", "queue")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.queue = _core.LoopQueue()
        self._polling = False
        self._context = Context()  # what comes belongs to none of those who wait
        loop.add_reader(self.queue.fileno(), self.poll_soon)

    def poll_soon(self) -> None:
        """See to it that the loop polls from its next round on."""
        if not self._polling:
            self._polling = True
            self.loop.call_soon(self._poll, context=self._context)

    def _poll(self) -> None:
        arrived = self.queue.poll()
        if arrived is None:
            self._polling = False
            return
        try:
            for target, first, second in (rest := iter(arrived)):
                target.arrived(first, second)
        except Exception as error:
            self.loop.call_exception_handler(
                {"message": "rrpc: what arrived was refused", "exception": error}
            )
            for target, first, second in rest:
                self.loop.call_soon(target.arrived, first, second, context=self._context)
        finally:
            # Last: those woken by what arrived come first, so that what they begin is polled for too.
            self.loop.call_soon(self._poll, context=self._context)


_drivers: dict[AbstractEventLoop, LoopDriver] = {}


def running_driver() -> LoopDriver:
    """Returns the driver of the loop that runs in this thread. Raises RuntimeError if no loop runs."""
    try:
        loop = get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "rrpc.aio is for coroutines, in an event loop that runs (asyncio.run(main())); "
            "elsewhere use rrpc.Client, or the generated client without Async in its name"
        ) from None
    found = _drivers.get(loop)
    return _open(loop) if found is None else found


def _open(loop: AbstractEventLoop) -> LoopDriver:
    for other in list(_drivers):
        if other.is_closed() and (left := _drivers.pop(other, None)) is not None:
            left.queue.close()
    driver = _drivers[loop] = LoopDriver(loop)
    return driver


os.register_at_fork(after_in_child=_drivers.clear)
