"""The address of several processes: clients that come are sent on to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rrpc import _core
from rrpc._options import merged

from .authorization import compile_clients, log_denials


class Redirector:
    """Listens and takes no calls. Threads of the core do all of it; ``options`` as for ``rrpc.Server``."""

    def __init__(self, **options: Any) -> None:
        self._core = _core.Server(merged(compile_clients(options)))
        log_denials(self._core)

    def listen(self, address: str) -> str:
        """Gives the address really bound. Until ``redirect`` its clients are refused as Unavailable."""
        return self._core.listen(address, for_others=True)

    def redirect(self, bound: str, addresses: Sequence[str]) -> None:
        """Sends clients of ``bound`` on to ``addresses`` in turn, each one that ``beside`` gave, as bound."""
        # The core takes the part in which the processes' addresses differ: a port, or the end of a socket's name.
        after = "." if bound.startswith("shm://") else ":"
        self._core.redirect(bound, [address.partition("?")[0].rpartition(after)[2] for address in addresses])

    @staticmethod
    def beside(bound: str, name: str, port: int = 0, asked: str = "") -> str:
        """Returns the address where another process listens for clients of ``bound``.

        It has the same host and the port ``port``, or is a socket ``name`` beside that of ``bound``.
        ``asked`` is the address given to ``listen``; its query (after ``?``) applies to that process too.
        """
        if bound.startswith("shm://"):
            return f"{bound}.{name}"
        _, question, query = asked.partition("?")
        return f"{bound.partition('?')[0].rpartition(':')[0]}:{port}{question}{query}"

    def stop(self) -> None:
        """Close everything."""
        self._core.stop()
