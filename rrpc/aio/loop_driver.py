"""An event loop's queue in the core, which receives the ends of calls, and the polling of that queue.

While anything is awaited, the loop polls for a moment in each of its rounds. If nothing arrives for a while,
it sleeps on the queue's descriptor. Many loops may run in a process, each in its own thread, and they may
share clients.
"""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop, CancelledError, get_running_loop
from typing import Any, Protocol

from rrpc import _core


class Target(Protocol):
    """Receiver of events from a loop's queue."""

    def arrived(self, first: Any, second: Any, /) -> object:
        """Takes an event, in a callback of the loop. What the arguments are depends on what the target awaits."""


# The core looks here too. Only a loop's own thread uses its driver.
_drivers: dict[AbstractEventLoop, _core.LoopDriver] = {}
_core.set_loop_drivers(_drivers, CancelledError)


def running_driver() -> _core.LoopDriver:
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


def _open(loop: AbstractEventLoop) -> _core.LoopDriver:
    # A closed loop can't do this any more, so the next one to open does.
    for other in list(_drivers):
        # pop() gives the driver to one of several threads that open loops at the same time.
        if other.is_closed() and (left := _drivers.pop(other, None)) is not None:
            left.close()
    driver = _drivers[loop] = _core.LoopDriver(loop)
    loop.add_reader(driver.fileno(), driver.poll_soon)
    return driver


os.register_at_fork(after_in_child=_drivers.clear)
