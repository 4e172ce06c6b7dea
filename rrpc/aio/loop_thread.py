"""Runs a server's async handlers, in a running loop or in a thread with a loop of its own."""

# Any thread may call `open` and `close`, also a handler of the loop itself. `_run` and `_main` are the thread's own.

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

from .handler_tasks import HandlerTasks


class LoopThread:
    """The async handlers of a server, in a thread of its own unless it is opened in a loop that runs."""

    def __init__(self, *parts: Any) -> None:
        self.tasks = HandlerTasks(*parts)
        self.running = self.tasks.running
        self._opened = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def open_here(self) -> None:
        """Opens it in the running loop."""
        self.tasks.open()
        self._opened.set()

    async def close_here(self) -> None:
        """Cancel what runs in this loop, and wait for it."""
        await self.tasks.close()

    def open(self) -> None:
        """Opens it in a thread with a loop of its own; nothing if it is open."""
        if self._opened.is_set():
            return
        # No daemon: the interpreter's end stops the server, which closes this.
        self._thread = threading.Thread(target=self._run, name="rrpc-loop")
        self._thread.start()
        # `_run` sets it also where opening failed.
        self._opened.wait()
        if self._error is not None:
            raise self._error

    def close(self, timeout: float | None) -> bool:
        """Cancel what runs and wait for it, where it has a loop of its own; False if it takes longer."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return True
        self._opened.wait()  # or failed to
        with suppress(RuntimeError, AttributeError):  # the loop has closed meanwhile, or never came to be
            self._loop.call_soon_threadsafe(self._closing.set)
        if threading.current_thread() is not thread:  # else a handler stops its own server
            thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._opened.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self.open_here()
        await self._closing.wait()
        await self.tasks.close()
