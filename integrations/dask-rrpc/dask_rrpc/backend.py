"""The backend that ``distributed`` finds by its entry point: ``rrpc://host:port``, served and reached."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import dask.config
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, CommClosedError, Connector, FatalCommClosedError
from distributed.comm.tcp import BaseTCPBackend
from distributed.comm.utils import ensure_concrete_host

import rrpc
import rrpc.aio

from .comm import SCHEME, RrpcComm
from .link import Links, options
from .shared import Lease

__all__ = ["RrpcBackend"]


def refuse_plain(address: str, connection_args: dict[str, Any]) -> None:
    """Raises FatalCommClosedError where the user wants encryption, which rrpc doesn't have yet."""
    wanted = connection_args.get("require_encryption")
    if wanted is None:
        wanted = dask.config.get("distributed.comm.require-encryption")
    if wanted or connection_args.get("ssl_context") is not None:
        raise FatalCommClosedError(
            f"{SCHEME}{address}: rrpc encrypts nothing, and encryption is required: use tls://, "
            "or set distributed.comm.require-encryption to False and give no certificates"
        )


class RrpcConnector(Connector):  # type: ignore[misc]
    """Connects to a listener."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> RrpcComm:
        refuse_plain(address, connection_args)
        parse_host_port(address)  # ValueError
        lease = Lease(SCHEME + address)
        try:
            await lease.client
            return RrpcComm(
                lease.client.link.open(), peer=SCHEME + address, deserialize=deserialize, lease=lease
            )
        except rrpc.RpcError as error:
            lease.end()
            raise CommClosedError(f"in {SCHEME}{address}: {error}") from error
        except BaseException:
            lease.end()
            raise


class RrpcListener(BaseListener):  # type: ignore[misc]
    """Serves comms in the loop that starts it."""

    prefix = SCHEME  # workers read it

    def get_host_port(self) -> tuple[str, int]:
        """As TCP's listeners have it."""
        return parse_host_port(self.listen_address.removeprefix(SCHEME))

    def __init__(
        self,
        location: str,
        handle_comm: Callable[[RrpcComm], Awaitable[None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        refuse_plain(location, connection_args)
        self.host, self.port = parse_host_port(location, default_port)
        self._default_host = default_host
        self._handle_comm = handle_comm
        self._deserialize = deserialize
        self._allow_offload = allow_offload
        self._server: rrpc.aio.Server | None = None
        self._comms: weakref.WeakSet[RrpcComm] = weakref.WeakSet()
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        host = self.host or "0.0.0.0"
        server = rrpc.aio.Server(
            Links(self._accept), listen=SCHEME + unparse_host_port(host, self.port), **options(server=True)
        )
        await server.start()
        self._server = server
        self.port = parse_host_port(server.addresses[0].removeprefix(SCHEME))[1]

    def stop(self) -> None:
        server, self._server = self._server, None
        self._stopped = True
        if server is not None:
            server.stop_listening()
            self._begin(self._end(server))

    async def _end(self, server: rrpc.aio.Server) -> None:
        """Comms that are there outlive the listener."""
        for comm in list(self._comms):
            await comm.wait_closed()
        await server.stop()

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, stream: Any) -> None:
        if self._stopped:
            stream.cancel()
            return
        local = self.contact_address
        try:
            parse_host_port(stream.peer_address)
            peer = SCHEME + stream.peer_address
        except ValueError:  # over shared memory it is a process of this host
            peer = SCHEME + unparse_host_port(parse_host_port(local.removeprefix(SCHEME))[0], 0)
        comm = RrpcComm(stream, peer=peer, local=local, deserialize=self._deserialize)
        comm.allow_offload = self._allow_offload
        self._comms.add(comm)
        self._begin(self._serve(comm))

    async def _serve(self, comm: RrpcComm) -> None:
        try:
            await self.on_connection(comm)
        except CommClosedError:
            return
        await self._handle_comm(comm)

    def _bound(self, host: str) -> str:
        if self._server is None:
            raise ValueError("the listener hasn't been started, or was stopped")
        return SCHEME + unparse_host_port(host, self.port)

    @property
    def listen_address(self) -> str:
        return self._bound(self.host or "0.0.0.0")

    @property
    def contact_address(self) -> str:
        return self._bound(ensure_concrete_host(self.host or "0.0.0.0", default_host=self._default_host))


class RrpcBackend(BaseTCPBackend):  # type: ignore[misc]
    """``rrpc://host:port``: shared memory on one host, RDMA where there is an adapter, TCP otherwise."""

    _connector_class = RrpcConnector
    _listener_class = RrpcListener
