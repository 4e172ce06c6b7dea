"""One comm: a stream whose items are Dask's messages, each a list of frames."""

from __future__ import annotations

import asyncio
import logging
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Comm, CommClosedError
from distributed.comm.utils import from_frames, to_frames
from distributed.utils import ensure_memoryview, get_ip, nbytes

import rrpc

__all__ = ["SCHEME", "RrpcComm"]

SCHEME = "rrpc://"
CLOSE_SECONDS = 1.0
"""Longest time that close() waits until the other process has everything that was written."""
WHOLE = 1 << 62
"""Largest piece of a frame, in bytes: frames aren't cut, as the receiver would have to join them by a copy."""


class RrpcComm(Comm):  # type: ignore[misc]
    """A message channel between two processes; one task reads while another writes.

    Args:
        stream: The stream, of a client or of a server.
        peer: Address of the other end.
        local: Address of this end; made up for clients, which have no port of their own.
        deserialize: Whether ``read`` gives objects, or leaves serialized ones as they are.
        client: The client of the stream, kept while the comm is open.
    """

    def __init__(
        self, stream: Any, *, peer: str, local: str = "", deserialize: bool = True, client: Any = None
    ) -> None:
        super().__init__(deserialize=deserialize)
        self._stream, self._client, self._closed = stream, client, False
        self._peer_addr = peer
        host = parse_host_port(peer.removeprefix(SCHEME))[0]
        self._local_addr = local or SCHEME + unparse_host_port(get_ip(host), 0)
        self._finalizer = weakref.finalize(self, _dangling, stream, repr(self))
        self._finalizer.atexit = False
        stream.on_end(partial(_ended, weakref.ref(self)))

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def extra_info(self) -> dict[str, Any]:
        return {"security": self._client.info()["security"]} if self._client else {}

    def closed(self) -> bool:
        return self._closed

    async def read(self, deserializers: Any = None) -> Any:
        if self._stream is None:
            raise CommClosedError(f"in {self}: it was closed")
        try:
            frames = await anext(self._stream)
        except StopAsyncIteration:
            self.abort()
            raise CommClosedError(f"in {self}: the other end has closed it") from None
        except BaseException as error:  # what was read of the message is lost with it
            self._fail(error)
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
        self._check_open()
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options},
            frame_split_size=WHOLE,
        )
        self._check_open()
        try:
            await self._stream.send([ensure_memoryview(frame) for frame in frames])
        except BaseException as error:
            self._fail(error)
            raise
        return sum(map(nbytes, frames))

    async def close(self) -> None:
        stream, self._closed = self._stream, True
        if stream is not None:
            with suppress(rrpc.RpcError, asyncio.TimeoutError, RuntimeError):
                await asyncio.wait_for(stream.flush(), CLOSE_SECONDS)
            self.abort()

    def abort(self) -> None:
        stream, self._stream, self._closed = self._stream, None, True
        if stream is not None:
            self._finalizer.detach()
            stream.cancel()
            self._client = None

    def _check_open(self) -> None:
        if self._closed:
            raise CommClosedError(f"in {self}: it was closed")

    def _fail(self, error: BaseException) -> None:
        """Aborts; raises CommClosedError for an error of the connection."""
        self.abort()
        if isinstance(error, rrpc.RpcError):
            raise CommClosedError(f"in {self}: {error}") from error


def _dangling(stream: Any, name: str) -> None:
    if not stream.done():
        logging.getLogger(__name__).warning("Closing dangling stream in %s", name)
    stream.cancel()


def _ended(reference: weakref.ref[RrpcComm]) -> None:
    if (comm := reference()) is not None:
        comm._closed = True
