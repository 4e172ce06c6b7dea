"""Starts calls without streams in an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rrpc.errors import InvalidArgument, ResourceExhausted, RpcError, Unavailable
from rrpc.memory import memory_of

from .async_future import Future, RequestFuture, WatchedFuture, future_of
from .loop_driver import running_driver

if TYPE_CHECKING:
    from rrpc._call.chain import Chain
    from rrpc._call.outgoing import Prepared


def start(prepared: Prepared) -> Future[Any]:
    """Starts a call, and returns its future."""
    driver = running_driver()
    request, connection = prepared.request, prepared.connection
    kind: type[RequestFuture[Any]] = RequestFuture
    if connection is None:
        connection, kind = prepared.pick(), WatchedFuture
        if connection is None:
            return future_of(prepared.course(), driver.loop)
    try:
        name, payload, message = request.encode(connection)
    except (InvalidArgument, ResourceExhausted):
        raise
    except RpcError:  # the two ends don't agree on the interface, which the course tells
        return future_of(prepared.course(), driver.loop)
    future = kind(driver.loop, prepared, request.decoder(message))
    memory = memory_of(request.out)
    try:
        future.send(
            connection, driver, name, payload, message or None, memory, prepared.time_left(), prepared.sent()
        )
    except Unavailable as error:
        if not error.not_executed:
            raise
        return future_of(prepared.course(), driver.loop)
    driver.poll_soon()
    return future


def start_course(chain: Chain) -> Future[Any]:
    """Starts, in the running loop, a call that a connection has turned down before a handler saw it."""
    return future_of(chain, running_driver().loop)
