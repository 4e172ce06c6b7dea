"""Starts calls without streams in an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rrpc.errors import InvalidArgument, ResourceExhausted, RpcError, Unavailable
from rrpc.memory import memory_of

from .async_future import Future, Watched
from .loop_driver import running_driver

if TYPE_CHECKING:
    from rrpc._call.chain import Chain
    from rrpc._call.outgoing import Prepared


def start(prepared: Prepared) -> Future[Any]:
    """Starts a call, and returns its future."""
    driver = running_driver()
    request, connection = prepared.request, prepared.connection
    watched: Watched[Any] | None = None
    if connection is None:
        connection = prepared.pick()
        if connection is None:
            return Future.of_chain(prepared.course(), driver.loop)
        watched = Watched(prepared.channel, connection, prepared.around, driver.loop)
    try:
        name, payload, message = request.encode(connection)
    except (InvalidArgument, ResourceExhausted):
        raise
    except RpcError:  # the two ends don't agree on the interface, which the course tells
        return Future.of_chain(prepared.course(), driver.loop)
    future: Future[Any] = Future(loop=driver.loop) if watched is None else watched
    future.decode = request.decoder(message)
    future.typed = request.error
    future.again = prepared
    memory = memory_of(request.out)
    try:
        future.call = connection.core.start_in_loop(
            driver, future, name, payload, message or None, memory, prepared.time_left(), prepared.sent()
        )
    except Unavailable as error:
        if not error.not_executed:
            raise
        return Future.of_chain(prepared.course(), driver.loop)
    if watched is not None:
        watched.begun()
    driver.poll_soon()
    return future


def start_course(chain: Chain) -> Future[Any]:
    """Starts, in the running loop, a call that a connection has turned down before a handler saw it."""
    return Future.of_chain(chain, running_driver().loop)
