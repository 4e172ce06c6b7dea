"""A server of the core alone, without services: what the methods below do, straight from `_core`.

Run as `python core_server.py address...`; prints the addresses bound, each on a line.
"""

import sys
from typing import Any

import rrpc
from rrpc import _core
from rrpc.options import merged


def echo(server: _core.Server, request: tuple[Any, ...]) -> None:
    """Payload and metadata go back, and a result for each argument."""
    handle, _, payload, blocks, _, metadata, _ = request
    server.reply(handle, payload, blocks, metadata=metadata)


def fail(server: _core.Server, request: tuple[Any, ...]) -> None:
    handle, _, payload, _, _, metadata, _ = request
    server.reply_error(handle, int(rrpc.StatusCode.ABORTED), "as asked", payload, metadata)


def refuse(server: _core.Server, request: tuple[Any, ...]) -> None:
    server.reply_error(request[0], int(rrpc.StatusCode.UNAUTHENTICATED), "before a handler", not_seen=True)


def much(server: _core.Server, request: tuple[Any, ...]) -> None:
    """A reply with as many bytes of metadata as asked."""
    handle, _, payload, *_ = request
    server.reply(handle, b"", metadata=b"m" * int(payload))


METHODS = {b"echo": echo, b"fail": fail, b"refuse": refuse, b"much": much}


def main() -> None:
    server = _core.Server(merged({}))
    for address in sys.argv[1:]:
        print(server.listen(address), flush=True)
    while (request := server.next()) is not None:
        METHODS[request[1]](server, request)


if __name__ == "__main__":
    main()
