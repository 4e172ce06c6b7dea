"""Starts calls without streams in an event loop."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from rrpc._call.context import current
from rrpc._call.outgoing import plain_connection
from rrpc._interface import OutSpec, decode_into, target_of
from rrpc._options import seconds
from rrpc.codec import decode
from rrpc.errors import RpcError, Unavailable
from rrpc.memory import memory_of
from rrpc.metadata import MetadataLike, together

from .async_future import Future, Watched
from .loop_driver import running_driver

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from rrpc._call.chain import Chain
    from rrpc._call.outgoing import CallOptions
    from rrpc._channel import Channel, Connection
    from rrpc._client.client import Untyped
    from rrpc._client.stubs import UnaryMethod

__all__ = ["start_method", "start_untyped"]


class _Client(Protocol):
    """A client of this package, as far as starting a call goes."""

    _channel: Channel
    _options: CallOptions

    def _course(self, request: Untyped, timeout: float | None, metadata: MetadataLike | None) -> Chain: ...


def start_method(
    stub: UnaryMethod[Any],
    arguments: tuple[Any, ...],
    timeout: float | None,
    metadata: MetadataLike | None,
    out: Any,
) -> Future[Any]:
    """Starts a call of a stub's method and returns its future."""
    driver = running_driver()
    if out is not None:
        out = target_of(out)
    connection, encode, name, _, start = stub._plain
    around = current()
    wait = stub._timeout if timeout is None else seconds(timeout)
    if wait == 0.0:
        return Future.of_chain(stub._course(arguments, wait, metadata, out), driver.loop)
    watched: Watched[Any] | None = None
    if connection is not stub._channel.ready or not (around is None or around.ended):
        watched = _watched(stub._channel, stub._options, driver.loop)
        bound = None if watched is None else _bound(stub, watched.connection)
        if watched is None or bound is None:
            return Future.of_chain(stub._course(arguments, wait, metadata, out), driver.loop)
        connection, encode, name, _, start = bound
        wait = watched.timeout_of(wait)
    sent = stub._packed if metadata is None else together(stub._options.metadata, metadata)
    payload, buffers = encode(arguments, None if out is None else OutSpec.of(out))
    future: Future[Any] = Future(loop=driver.loop) if watched is None else watched
    sizes = buffers.sizes
    if out is None and sizes is None:
        future.decode = stub._decode
    else:
        future.decode = partial(_decode_into, stub._decode, out, sizes)
    future.typed = stub._typed
    future.again = stub._course, arguments, None if wait is None else monotonic() + wait, metadata, out
    try:
        future.call = start(driver.queue, future, name, payload, buffers or None, memory_of(out), wait, sent)
    except Unavailable as error:
        if not error.not_executed:
            raise
        return Future.of_chain(stub._course(arguments, wait, metadata, out), driver.loop)
    if watched is not None:
        watched.begun()
    driver.poll_soon()
    return future


def start_untyped(
    client: _Client, request: Untyped, timeout: float | None, metadata: MetadataLike | None
) -> Future[Any]:
    """By name."""
    driver = running_driver()
    connection = plain_connection(client._channel, client._options)
    wait = client._options.timeout if timeout is None else seconds(timeout)
    if wait == 0.0:
        return Future.of_chain(client._course(request, wait, metadata), driver.loop)
    watched: Watched[Any] | None = None
    if connection is None:
        watched = _watched(client._channel, client._options, driver.loop)
        if watched is None:
            return Future.of_chain(client._course(request, wait, metadata), driver.loop)
        connection, wait = watched.connection, watched.timeout_of(wait)
    name, payload, buffers = request.encoded()
    sent = together(client._options.metadata, metadata)
    out = request.out
    future: Future[Any] = Future(loop=driver.loop) if watched is None else watched
    future.decode = decode if out is None else partial(_decode_into, decode_into, out)
    future.again = client._course, request, None if wait is None else monotonic() + wait, metadata
    try:
        future.call = connection.core.start_in_loop(
            driver.queue, future, name, payload, buffers, memory_of(out), wait, sent
        )
    except Unavailable as error:
        if not error.not_executed:
            raise
        return Future.of_chain(client._course(request, wait, metadata), driver.loop)
    if watched is not None:
        watched.begun()
    driver.poll_soon()
    return future


def _watched(channel: Channel, options: CallOptions, loop: AbstractEventLoop) -> Watched[Any] | None:
    """Returns the future for a call over a connection that the channel picks, or for a call in a handler.

    Returns None if the call has to go its course. The course then raises the error, if there is one.
    """
    around = current()
    if around is not None and around.ended:
        around = None
    if not options.plain or (around is not None and around.links):
        return None
    try:
        connection = channel.pick_nowait(options.wait_for_ready)
    except RpcError:
        return None
    return None if connection is None else Watched(channel, connection, around, loop)


def _bound(stub: UnaryMethod[Any], connection: Connection) -> tuple[Any, ...] | None:
    """Binds the stub to the connection, like ``stub._bind``. Returns None if the two ends don't agree."""
    try:
        return stub._bind(connection)
    except RpcError:
        return None


def _decode_into(decode: Any, out: Any, *rest: Any) -> Any:
    *sizes, payload, blocks = rest
    return decode(payload, blocks, out, *sizes)
