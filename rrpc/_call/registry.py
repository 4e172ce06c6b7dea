"""Functions of upper rooms for lower ones, which may not import them; ``rrpc._registration`` provides them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Upper(Protocol):
    """The functions of upper rooms."""

    def client_over(self, core: Any, cls: type[Any] | None, end: float | None) -> Any:
        """Makes a client of class ``cls`` over a connection of the core; None: of the class that suits the caller.

        ``end`` is the point in time until which that may take; None: as long as it takes to connect.
        """

    def builtin_services(self, server: Any, workers: int) -> Sequence[object]:
        """Makes the services that every server has, for a server with so many workers."""

    def async_handlers(self, *parts: Any) -> Any:
        """Makes what runs a server's async handlers.

        Args:
            *parts: The server's core, its dispatch, its async methods (names), whether it has no
                other methods, the maximum number of calls at a time, tracebacks and observer.
        """

    def run_in_loop(self, handler: Any) -> None:
        """Converts a synchronous handler in place to one that runs in the event loop."""


# Set once while rrpc is imported, and only read afterwards: it needs no lock.
_upper: Upper | None = None


def register(provided: Upper) -> None:
    """Sets the functions of the upper rooms. ``rrpc._registration`` does, once."""
    global _upper
    _upper = provided


def upper() -> Upper:
    """Returns the functions of the upper rooms."""
    if _upper is None:
        raise RuntimeError("import rrpc before its private modules")
    return _upper
