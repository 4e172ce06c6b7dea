"""Connections to owners, each shared by the fetches from one address."""

from __future__ import annotations

import threading
from collections import OrderedDict

import rrpc

from .certificates import certificates

__all__ = ["Peers"]

IDLE_MAX = 64
"""Number of connections that are kept while nothing is fetched over them."""


class Peers:
    """Lends clients by address. Of those that nobody uses, the ones used longest ago are closed."""

    def __init__(self, idle_max: int = IDLE_MAX) -> None:
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._used: dict[str, tuple[rrpc.Client, int]] = {}
        self._idle: OrderedDict[str, rrpc.Client] = OrderedDict()

    def lend(self, address: str) -> rrpc.Client:
        """A client of that address, to be given back. It connects with the first call."""
        with self._lock:
            client, users = self._used.get(address, (None, 0))
            client = client or self._idle.pop(address, None)
            client = client or rrpc.connect(address, lazy=True, **certificates())
            self._used[address] = client, users + 1
            return client

    def give_back(self, address: str, keep: bool = True) -> None:
        """Ends one ``lend`` of that address. Without ``keep`` its last user closes the client."""
        with self._lock:
            client, users = self._used.pop(address)
            if users > 1:
                self._used[address] = client, users - 1
                return
            closing: rrpc.Client | None = client
            if keep:
                self._idle[address] = client
                closing = self._idle.popitem(last=False)[1] if len(self._idle) > self._idle_max else None
        if closing is not None:
            closing.close()
