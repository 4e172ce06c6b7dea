"""``with rrpc.trace() as trace:`` and what can be done with what it collected."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from rrpc._call.context import around as surroundings
from rrpc._call.context import current, enter

from . import chrome, show
from .client_recorder import link
from .traced_call import TracedCall

if TYPE_CHECKING:
    from rich.table import Table


class Trace:
    """The calls that are made in a ``with`` statement, each with its phases on one time line.

    A call that is under way when the block ends is completed later; one made by a thread belongs to a trace where
    the thread runs in a copy of the block's context, as asyncio's tasks do. With rich installed, ``rich.print(trace)``
    shows colours.
    """

    def __init__(self) -> None:
        self.calls: list[TracedCall] = []
        """In the order in which they began; those that their handlers made are their ``children``."""
        self._before: Any = None
        self._entered = False

    def __enter__(self) -> Trace:
        if self._entered:
            raise RuntimeError("a trace is for one `with` statement: make another one with rrpc.trace()")
        self._entered = True
        self._before = current()
        enter(surroundings().with_link(self._link))
        return self

    def __exit__(self, *exc_info: object) -> None:
        enter(self._before)
        self._before = None

    def _link(self, call: Any) -> Generator[Any, Any, Any]:
        return link(call, self.calls)

    def all_calls(self) -> Iterator[TracedCall]:
        """Yields all traced calls, including the calls that handlers made."""
        for call in self.calls:
            yield from call.all_calls()

    def table(self) -> Table:
        """Returns the trace as a table of the ``rich`` package, which must be installed."""
        return show.as_table(self.calls)

    def print(self, file: TextIO | None = None) -> None:
        """Prints the trace to ``file`` or stdout, in colours if that is a terminal and rich is installed."""
        file = sys.stdout if file is None else file
        if file.isatty():
            try:
                from rich.console import Console
            except ModuleNotFoundError:
                pass
            else:
                Console(file=file).print(self)
                return
        print(self, file=file)

    def events(self) -> list[dict[str, Any]]:
        """Chrome's trace events."""
        return chrome.events(self.calls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that https://ui.perfetto.dev and chrome://tracing open."""
        import json

        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": self.events(), "displayTimeUnit": "ns"}, file)

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return show.as_text(self.calls)

    def __repr__(self) -> str:
        return f"<rrpc.Trace of {len(self.calls)} calls>"
