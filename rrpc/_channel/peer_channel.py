"""The way back: calls to a client, over the connection that it made."""

# Handlers use it, and whatever threads they pass it to. Nothing in it changes.

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING, Any

from rrpc.errors import RpcError, Unavailable, unsent

from .channel import Channel
from .connection import Connection, Contract
from .subchannel import READY, SHUTDOWN

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rrpc import _core


# A peer may never describe its interface, and the handler's worker waits meanwhile. Connecting has the same limit.
_AGREE_SECONDS = 10.0


class PeerChannel(Channel):
    """One connection, which this end can't make again, and doesn't close."""

    metadata_bytes_max = 8192  # what both ends take unless they are told otherwise

    def __init__(self, core: _core.Client, end: float | None = None) -> None:
        """``end``: a point in time that bounds how long ``admit`` waits for the peer's description."""
        # Past the base's constructor: there is no upkeep, as only the client can connect.
        self._connection = Connection(core.info()["address"], core)
        self.ready = self._connection
        self._pid = os.getpid()
        self._end = end

    @property
    def target(self) -> str:
        return self._connection.address

    @property
    def state(self) -> str:
        return READY if self._connection.usable() else SHUTDOWN

    def pick_nowait(self, wait_for_ready: bool = False) -> Connection:
        self.check_process()
        if not self._connection.usable():
            raise unsent(Unavailable(f"{self.target}: the client has gone, and only it can connect again"))
        return self._connection

    def pick_soon(self, wait_for_ready: bool = False) -> Future[Connection]:
        from concurrent.futures import Future

        future: Future[Connection] = Future()
        try:
            future.set_result(self.pick_nowait())
        except Unavailable as error:
            future.set_exception(error)
        return future

    def connect_failure(self, error: RpcError) -> RpcError:
        return error

    def failed(self, connection: Connection, error: Any) -> None: ...

    def succeeded(self, connection: Connection) -> None: ...

    def admit(self, contract: Contract) -> None:
        latest = monotonic() + _AGREE_SECONDS
        self._connection.agreement(contract, latest if self._end is None else min(self._end, latest))

    def connect(self) -> None:
        self.pick_nowait()

    def connections(self) -> list[Connection]:
        return [self._connection]

    def info(self) -> dict[str, Any]:
        return {"target": self.target, "state": self.state, "addresses": []}

    def why_not(self) -> str:
        return ""

    def close(self) -> None: ...
