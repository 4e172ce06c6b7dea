"""The backend that ``distributed`` finds by its entry point: it connects to ``rrpc://host:port``, and listens there."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import CommClosedError, Connector, FatalCommClosedError
from distributed.comm.tcp import BaseTCPBackend, BaseTCPListener
from distributed.worker import Worker

import rrpc
import rrpc.aio

from .comm import SCHEME, RrpcComm
from .link import Links, share_pool, shared_client
from .security import options

__all__ = ["RrpcBackend"]

LASTING = rrpc.Unauthenticated, rrpc.ProtocolError, rrpc.InvalidArgument
"""Errors of connecting that trying again doesn't mend; certificates and TLS at one end alone are among them."""


class RrpcConnector(Connector):  # type: ignore[misc]
    """Connects to a listener."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> RrpcComm:
        parse_host_port(address)  # ValueError
        client = shared_client(SCHEME + address, options(connection_args))
        try:
            await client
            stream = client.link.open()
        except rrpc.RpcError as error:
            kind = FatalCommClosedError if isinstance(error, LASTING) else CommClosedError
            raise kind(f"in {SCHEME}{address}: {error}") from error
        return RrpcComm(stream, peer=SCHEME + address, deserialize=deserialize, client=client)


class RrpcListener(BaseTCPListener):  # type: ignore[misc]
    """Serves comms in the event loop that starts it. The base class keeps the addresses, and no socket."""

    prefix = SCHEME
    encrypted = True  # where that is wanted: see options()

    def _get_server_args(self, **connection_args: Any) -> dict[str, Any]:
        return options(connection_args, server=True)

    async def start(self) -> None:
        self._streams: weakref.WeakSet[rrpc.aio.ServerStream[Any, Any]] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        host = self.ip or "0.0.0.0"
        address = SCHEME + unparse_host_port(host, self.port)
        self.tcp_server = server = rrpc.aio.Server(Links(self._accept), listen=address, **self.server_args)
        await server.start()
        self.bound_address = host, parse_host_port(server.addresses[0].removeprefix(SCHEME))[1]
        owner = getattr(self.comm_handler, "__self__", None)
        if isinstance(owner, Worker):  # schedulers and nannies hold no results
            share_pool(owner)

    def stop(self) -> None:
        server, self.tcp_server = self.tcp_server, None
        if server is not None:
            server.stop_listening()
            self._begin(self._end(server))

    async def _end(self, server: rrpc.aio.Server) -> None:
        """Stops the server once its comms are closed: they outlive the listener."""
        for stream in list(self._streams):
            await stream.wait_closed()
        await server.stop()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, stream: Any) -> None:
        if self.tcp_server is None:  # stopped meanwhile
            stream.cancel()
            return
        local = self.contact_address
        try:
            parse_host_port(stream.peer_address)
            peer = SCHEME + stream.peer_address
        except ValueError:  # over shared memory the peer is a process of this host
            peer = SCHEME + unparse_host_port(parse_host_port(local.removeprefix(SCHEME))[0], 0)
        comm = RrpcComm(stream, peer=peer, local=local, deserialize=self.deserialize)
        comm.allow_offload = self.allow_offload
        self._streams.add(stream)
        self._begin(self._serve(comm))

    async def _serve(self, comm: RrpcComm) -> None:
        with suppress(CommClosedError):
            await self.on_connection(comm)
            await self.comm_handler(comm)


class RrpcBackend(BaseTCPBackend):  # type: ignore[misc]
    """``rrpc://host:port``: shared memory on one host, RDMA where there is an adapter, TCP otherwise."""

    _connector_class = RrpcConnector
    _listener_class = RrpcListener
