"""Starts calls without streams in an event loop."""

# Runs in the thread of the loop in which the call is made. Loops may share a client and its connections, never a
# future.

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context as Variables
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc.errors import InvalidArgument, ResourceExhausted, RpcError, Unavailable, goes_elsewhere
from rrpc.memory import memory_of

from .async_future import Future, future_of
from .loop_driver import running_driver

if TYPE_CHECKING:
    from rrpc._call.chain import Chain
    from rrpc._call.outgoing import Prepared
    from rrpc._channel import Connection

_T = TypeVar("_T")


class _RequestFuture(Future[_T]):
    """The future of a call whose request goes straight to the core, which calls ``arrived`` at the call's end."""

    _decode: Callable[[bytes, Any], _T]
    """Makes the result of the reply's payload and buffers."""
    _typed: Callable[[RpcError], RpcError]
    """Makes of an error what the interface declares."""

    def arrived(self, payload: bytes | None, rest: Any) -> None:
        """Takes the reply (``payload`` and its blocks) or, with ``payload`` None, the error."""
        if self.done():
            return
        if payload is None:
            self._failed(rest)
            return
        self._again = None  # which holds the arguments
        try:
            value = self._decode(payload, rest)
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(value)

    def _failed(self, error: RpcError) -> None:
        again, self._again = self._again, None
        if again is None or not goes_elsewhere(error):
            self.set_exception(self._typed(error))
            return
        try:
            Variables().run(self._go, again.course())  # whoever's callback this is in
        except Exception as raised:
            self.set_exception(raised)


class _WatchedFuture(_RequestFuture[_T]):
    """A future that tells the channel how the call ended, by which the channel picks connections.

    It ends with the handler's call that it is made in.
    """

    def __init__(self, prepared: Prepared, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._connection = connection
        self._channel, self._around = prepared.channel, prepared.around

    def begin(self) -> None:
        """Has the call end with the handler's."""
        if self._around is not None:
            self._around.adopt(self._call)

    def arrived(self, payload: bytes | None, rest: Any) -> None:
        """Takes the reply or the error, and tells the channel."""
        if self._around is not None:
            self._around.release(self._call)
        if self.done():
            return
        if payload is None:
            self._channel.failed(self._connection, rest)
        else:
            self._channel.succeeded(self._connection)
        super().arrived(payload, rest)


def start(prepared: Prepared) -> Future[Any]:
    """Starts a call, and returns its future."""
    driver = running_driver()
    request, connection = prepared.request, prepared.connection
    watched: _WatchedFuture[Any] | None = None
    if connection is None:
        connection = prepared.pick()
        if connection is None:
            return future_of(prepared.course(), driver.loop)
        watched = _WatchedFuture(prepared, connection, driver.loop)
    try:
        name, payload, message = request.encode(connection)
    except (InvalidArgument, ResourceExhausted):
        # The arguments are at fault, and would be again in a course.
        raise
    except RpcError:  # the two ends don't agree on the interface, which the course tells
        return future_of(prepared.course(), driver.loop)
    future: _RequestFuture[Any] = _RequestFuture(loop=driver.loop) if watched is None else watched
    future._decode = request.decoder(message)
    future._typed = request.error
    future._again = prepared
    memory = memory_of(request.out)
    try:
        future._call = connection.core.start_in_loop(
            driver, future, name, payload, message or None, memory, prepared.time_left(), prepared.sent()
        )
    except Unavailable as error:
        if not error.not_executed:
            raise
        return future_of(prepared.course(), driver.loop)
    if watched is not None:
        watched.begin()
    driver.poll_soon()
    return future


def start_course(chain: Chain) -> Future[Any]:
    """Starts, in the running loop, a call that a connection has turned down before a handler saw it."""
    return future_of(chain, running_driver().loop)
