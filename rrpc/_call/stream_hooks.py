"""Functions that interceptors run on the items of a stream and at its end."""

# The thread or task that sends or receives an item runs its functions; whoever notices the end of the call runs
# `end`.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Map = Callable[[Any], Any]
OnEnd = Callable[["BaseException | None"], object]
_F = TypeVar("_F", bound=Callable[..., Any])


class StreamHooks:
    """Functions of the interceptors of one call with streams.

    ``depth`` is the depth of the interceptor that adds a function; the outermost has depth 1. Items that a
    caller sends pass the outermost interceptor first; items that it receives pass the outermost last. On a
    server the order is reversed, because the handler is at the inner end of the interceptors.
    """

    __slots__ = ("_ends", "_received", "_sent", "_serving", "ended")

    def __init__(self, *, serving: bool) -> None:
        self._serving = serving
        self._sent: list[tuple[int, Map]] = []
        self._received: list[tuple[int, Map]] = []
        self._ends: list[tuple[int, OnEnd]] = []
        self.ended = False

    def __bool__(self) -> bool:
        return bool(self._sent or self._received or self._ends)

    def map_sent(self, depth: int, function: Map) -> None:
        self._add(self._sent, depth, _function("map_sent", function), self._serving)

    def map_received(self, depth: int, function: Map) -> None:
        self._add(self._received, depth, _function("map_received", function), not self._serving)

    def on_end(self, depth: int, function: OnEnd) -> None:
        self._add(self._ends, depth, _function("on_end", function), True)

    def keep_to(self, depth: int) -> None:
        """Forget what the interceptors inside of ``depth`` asked for: the call is made again."""
        for asked in (self._sent, self._received, self._ends):
            asked[:] = [entry for entry in asked if entry[0] <= depth]

    def sent(self, item: Any) -> Any:
        """Returns the item to send in place of ``item``."""
        for _, function in self._sent:
            item = function(item)
        return item

    def received(self, item: Any) -> Any:
        """Returns the item to hand on in place of the received ``item``."""
        for _, function in self._received:
            item = function(item)
        return item

    def end(self, error: BaseException | None) -> None:
        """Both directions have ended, with ``error`` if they failed; only the first time counts."""
        if self.ended:
            return
        self.ended = True
        ends, self._ends = self._ends, []  # which may hold the call
        for _, function in ends:
            try:
                function(error)
            except Exception:  # noqa: PERF203
                import logging

                logging.getLogger("rrpc.interceptors").exception("a function given to on_end() raised")

    @staticmethod
    def _add(asked: list[tuple[int, _F]], depth: int, function: _F, innermost_first: bool) -> None:
        asked.append((depth, function))
        asked.sort(key=_depth, reverse=innermost_first)  # stable: of one interceptor in the order asked


def _depth(entry: tuple[int, Any]) -> int:
    return entry[0]


def _function(name: str, function: _F) -> _F:
    if not callable(function):
        raise TypeError(f"{name}() takes a function, not {type(function).__name__}")
    return function
