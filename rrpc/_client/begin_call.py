"""Begins the calls of blocking clients that have no streams."""

# Runs in the thread that makes the call.

from __future__ import annotations

from typing import Any

from rrpc._call.chain import Chain
from rrpc._call.outgoing import Prepared
from rrpc.errors import RpcError, Unavailable, goes_elsewhere
from rrpc.memory import memory_of

from .blocking_driver import CallbackCall, run
from .futures import Future, only


def call(prepared: Prepared) -> Any:
    """Makes a call in the calling thread, and returns its result."""
    request, connection = prepared.request, prepared.connection
    if connection is None:
        return run(prepared.course())
    if request.out is not None:
        return start(prepared).result()
    name, payload, message = request.encode(connection)
    try:
        reply, blocks = connection.core.call(
            name, payload, message or None, None, prepared.time_left(), prepared.sent()
        )
    except RpcError as error:
        if not goes_elsewhere(error):
            raise request.error(error) from None
    else:
        return request.decode(reply, blocks, message)
    return run(prepared.course())


def start(prepared: Prepared) -> Future[Any]:
    """Starts a call, and returns its future."""
    request, connection = prepared.request, prepared.connection
    if connection is None:
        return start_course(prepared.course())
    name, payload, message = request.encode(connection)
    memory = memory_of(request.out)
    try:
        begun = connection.core.start(
            name, payload, message or None, memory, prepared.time_left(), prepared.sent()
        )
    except Unavailable as error:
        if not goes_elsewhere(error):
            raise
        return start_course(prepared.course())
    return Future(begun, request.decoder(message), prepared.course, request.error)


def start_course(chain: Chain) -> Future[Any]:
    """Starts a call that isn't plain, and returns its future. Raises the error of a call that can't begin."""
    call = CallbackCall(chain)
    call.go_on()
    if call.done() and not chain.call.attempt:
        call.result()  # nothing was begun: better told at once
    return Future(call, only)
