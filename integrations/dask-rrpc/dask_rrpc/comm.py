"""One comm: messages as lists of frames over a stream, one item a message."""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from contextlib import suppress
from typing import Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Comm, CommClosedError
from distributed.comm.utils import from_frames, to_frames
from distributed.utils import ensure_memoryview, get_ip, nbytes

import rrpc

from .shared import Lease

__all__ = ["SCHEME", "RrpcComm"]

SCHEME = "rrpc://"
CLOSE_SECONDS = 1.0
"""How long close() waits for the other process to have what was written."""

_logger = logging.getLogger(__name__)
_numbers = itertools.count(1)


class RrpcComm(Comm):
    """A connection as Dask sees it: one reads, one writes."""

    def __init__(
        self, stream: Any, *, peer: str, local: str = "", deserialize: bool = True, lease: Lease | None = None
    ) -> None:
        super().__init__(deserialize=deserialize)
        self._stream = stream
        self._lease = lease
        self._closed = False
        self._peer_addr = peer
        self._local_addr = local or SCHEME + unparse_host_port(
            get_ip(parse_host_port(peer.removeprefix(SCHEME))[0]), 0
        )
        self._number = next(_numbers)
        self._finalizer = weakref.finalize(self, _dangling, stream, lease, repr(self))
        self._finalizer.atexit = False
        stream.on_end(_closer(weakref.ref(self)))

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    def closed(self) -> bool:
        return self._closed

    async def read(self, deserializers: Any = None) -> Any:
        if self._closed and self._stream is None:
            raise CommClosedError(f"in {self}: it was closed")
        try:
            frames = await anext(self._stream)
        except StopAsyncIteration:
            self.abort()
            raise CommClosedError(f"in {self}: the other end has closed it") from None
        except rrpc.RpcError as error:
            self.abort()
            raise CommClosedError(f"in {self}: {error}") from error
        except BaseException:  # what was read of the message is lost with it
            self.abort()
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError:
            self.abort()
            raise CommClosedError(f"in {self}: the message is cut short") from None

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        if self._closed:
            raise CommClosedError(f"in {self}: it was closed")
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options},
        )
        if self._closed:
            raise CommClosedError(f"in {self}: it was closed")
        try:
            await self._stream.send([ensure_memoryview(frame) for frame in frames])
        except rrpc.RpcError as error:
            self.abort()
            raise CommClosedError(f"in {self}: {error}") from error
        except BaseException:
            self.abort()
            raise
        return sum(map(nbytes, frames))

    async def close(self) -> None:
        stream, self._closed = self._stream, True
        if stream is None:
            return
        with suppress(rrpc.RpcError, asyncio.TimeoutError, RuntimeError):
            await asyncio.wait_for(stream.flush(), CLOSE_SECONDS)
        self.abort()

    def abort(self) -> None:
        stream, self._stream, self._closed = self._stream, None, True
        if stream is not None:
            self._finalizer.detach()
            stream.cancel()
            lease, self._lease = self._lease, None
            if lease is not None:
                lease.end()

    async def wait_closed(self) -> None:
        stream = self._stream
        if stream is not None:
            await stream.wait_closed()


def _dangling(stream: Any, lease: Lease | None, name: str) -> None:
    if not stream.done():
        _logger.warning("Closing dangling stream in %s", name)
        stream.cancel()
    if lease is not None:
        lease.end()


def _closer(reference: weakref.ref[RrpcComm]) -> Any:
    def closed() -> None:
        comm = reference()
        if comm is not None:
            comm._closed = True

    return closed
