"""An event loop that goes round by hand, for the core's LoopDriver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from processes import eventually

from rrpc import _core

__all__ = ["Collected", "HandLoop"]


class HandLoop:
    """Has as much of an event loop as a driver needs."""

    def __init__(self) -> None:
        self._due: list[Callable[[], object]] = []
        this: Any = self
        self.driver = _core.LoopDriver(this)

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: Any = None) -> None:
        """Keeps the callback for the next round."""
        self._due.append(lambda: callback(*arguments))

    def get_debug(self) -> bool:
        """Returns False."""
        return False

    def round(self) -> None:
        """Polls once, and runs what is due."""
        self.driver.poll_soon()
        due, self._due = self._due, []
        for callback in due:
            callback()

    def go_on_until(self, condition: Callable[[], bool]) -> None:
        """Goes round until the condition holds."""

        def holds() -> bool:
            self.round()
            return condition()

        eventually(holds)


class Collected(list[Any]):
    """A target that keeps what arrives."""

    def arrived(self, first: Any, second: Any) -> None:
        """Keeps both."""
        self.append((first, second))
