"""Connections, each shared by this process's comms to one address, and closed with the last of them."""

from __future__ import annotations

import os
import threading

from .link import options
from .links_client import AsyncLinksClient

__all__ = ["Lease"]

_lock = threading.Lock()
_leases: dict[tuple[int, str], tuple[AsyncLinksClient, set[Lease]]] = {}


class Lease:
    """A comm's share in the connection to an address, as ``rrpc://host:port``. To be given back with :meth:`end`."""

    def __init__(self, address: str) -> None:
        self._key = os.getpid(), address  # a forked process has none of its parent's
        with _lock:
            if self._key not in _leases:
                _leases[self._key] = AsyncLinksClient(address, **options()), set()
            self.client, holders = _leases[self._key]
            holders.add(self)

    def end(self) -> None:
        """Again does nothing."""
        with _lock:
            client, holders = _leases.get(self._key, (None, set()))
            if self not in holders:
                return
            holders.remove(self)
            if holders:
                return
            del _leases[self._key]
        if client is not None and self._key[0] == os.getpid():
            client.close()
