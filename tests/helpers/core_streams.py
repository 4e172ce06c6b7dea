"""The methods with streams of a server of the core alone."""

import time
from typing import Any

import rrpc
from rrpc import _core


def count(server: _core.Server, request: tuple[Any, ...]) -> None:
    """As many items as the payload says, each its number and, where it has `b`, a buffer too."""
    handle, _, payload, *_ = request
    stream = server.stream(handle)
    number, _, buffered = payload.partition(b" ")
    try:
        stream.send_initial_metadata(b"first " + payload)
        for i in range(int(number)):
            stream.send(b"%d" % i, [bytes([i % 256]) * 100_000] if buffered else None)
    except rrpc.RpcError as error:
        server.reply_error(handle, int(error.code), str(error))
    else:
        server.reply(handle, b"all", metadata=b"last")


def total(server: _core.Server, request: tuple[Any, ...]) -> None:
    """The sum of the client's items; `enough` is answered at the first item."""
    handle, _, payload, *_ = request
    stream = server.stream(handle)
    added = 0
    try:
        while items := stream.receive(100):
            added += sum(int(item) for item, _ in items)
            if payload == b"enough":
                break
    except rrpc.RpcError as error:
        server.reply_error(handle, int(error.code), str(error))
    else:
        server.reply(handle, b"%d" % added)


def echo_items(server: _core.Server, request: tuple[Any, ...]) -> None:
    stream = server.stream(request[0])
    try:
        while items := stream.receive(3):
            for item, blocks in items:
                stream.send(item, blocks)
    except rrpc.RpcError as error:
        server.reply_error(request[0], int(error.code), str(error))
    else:
        server.reply(request[0], b"")


def then_fail(server: _core.Server, request: tuple[Any, ...]) -> None:
    """Two items, then an error."""
    stream = server.stream(request[0])
    stream.send(b"one")
    stream.send(b"two")
    server.reply_error(request[0], int(rrpc.StatusCode.NOT_FOUND), "no third", b"details", b"metadata")


producing: dict[int, tuple[_core.Stream, int, int]] = {}


def produce(server: _core.Server, request: tuple[Any, ...]) -> None:
    """As `count`, parked whenever there is no room."""
    handle, _, payload, *_, kind = request
    stream, made, wanted = producing.pop(handle) if kind & 8 else (server.stream(handle), 0, int(payload))
    try:
        while made < wanted:
            if not stream.try_send(b"%d" % made):
                producing[handle] = stream, made, wanted
                return stream.park()
            made += 1
    except rrpc.RpcError as error:
        server.reply_error(handle, int(error.code), str(error))
    else:
        server.reply(handle, b"%.6f" % time.monotonic())
    return None


def parked(server: _core.Server, request: tuple[Any, ...]) -> None:
    server.reply(request[0], b"%d" % len(producing))


METHODS = {
    b"count": count,
    b"sum": total,
    b"echo_items": echo_items,
    b"then_fail": then_fail,
    b"produce": produce,
    b"parked": parked,
}
