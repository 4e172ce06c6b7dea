"""A server of the core alone, without services: what the methods below do, straight from `_core`.

Run as `python core_server.py address...`; prints the addresses bound, each on a line.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import core_streams
from lab import TRANSPORTS, address_to_listen_on
from processes import child_environment

import rrpc
from rrpc import _core
from rrpc._options import merged


def echo(server: _core.Server, request: tuple[Any, ...]) -> None:
    """Payload and metadata go back, and a result for each argument."""
    handle, _, payload, blocks, _, metadata, *_ = request
    server.reply(handle, payload, blocks, metadata=metadata)


def fail(server: _core.Server, request: tuple[Any, ...]) -> None:
    handle, _, payload, _, _, metadata, *_ = request
    server.reply_error(handle, int(rrpc.StatusCode.ABORTED), "as asked", payload, metadata)


def refuse(server: _core.Server, request: tuple[Any, ...]) -> None:
    server.reply_error(
        request[0], int(rrpc.StatusCode.UNAUTHENTICATED), "before a handler", not_executed=True
    )


def much(server: _core.Server, request: tuple[Any, ...]) -> None:
    """A reply with as many bytes of metadata as asked."""
    handle, _, payload, *_ = request
    server.reply(handle, b"", metadata=b"m" * int(payload))


def hold(server: _core.Server, request: tuple[Any, ...]) -> None:
    """Answered once the call is given up, if ever; `seen` tells."""
    handle, _, payload, *_ = request
    holding.append(payload)

    def given_up() -> None:
        gone.append(payload + (b" cancelled" if server.is_cancelled(handle) else b" told too early"))
        server.reply(handle, b"too late")
        if server.on_cancel(handle, lambda: gone.append(payload + b" twice")):
            gone.append(payload + b" known after its reply")

    server.on_cancel(handle, given_up)


def seen(server: _core.Server, request: tuple[Any, ...]) -> None:
    """What was held, and what was given up."""
    server.reply(request[0], b",".join(holding) + b"|" + b",".join(gone))


def drain(server: _core.Server, request: tuple[Any, ...]) -> None:
    threading.Thread(target=server.drain, args=(30.0,)).start()
    server.reply(request[0], b"")


def counts(server: _core.Server, request: tuple[Any, ...]) -> None:
    names = [b"%s %d" % (name.encode(), value) for name, value in _core.stats().items()]
    server.reply(request[0], b"\n".join(names))


def stamps(server: _core.Server, request: tuple[Any, ...]) -> None:
    server.reply(request[0], b" ".join(b"%d" % at for at in server.stamps(request[0]) or ()))


def down(server: _core.Server, request: tuple[Any, ...]) -> None:
    """Calls `down` back at the caller until the number is 0, with the buffers that came; what comes goes back."""
    handle, _, payload, blocks, ns_left, *_ = request
    answer, depth = payload, int(payload)
    timeout = None if ns_left < 0 else ns_left / 1e9
    try:
        if depth > 0:
            answer, blocks = server.peer(handle).call(b"down", b"%d" % (depth - 1), blocks, None, timeout)
            answer += b" " + payload
    except rrpc.RpcError as error:
        gone.append(payload + b" " + type(error).__name__.encode())
        server.reply_error(handle, int(error.code), str(error))
    else:
        server.reply(handle, answer, blocks)


holding: list[bytes] = []
gone: list[bytes] = []
METHODS = {
    b"echo": echo,
    b"fail": fail,
    b"refuse": refuse,
    b"much": much,
    b"hold": hold,
    b"seen": seen,
    b"drain": drain,
    b"down": down,
    b"stamps": stamps,
    b"counts": counts,
    **core_streams.METHODS,
}


def serve(server: _core.Server) -> None:
    while (request := server.next()) is not None:
        METHODS[request[1]](server, request)
        del request  # its memory


def workers(server: _core.Server) -> None:
    """Some to call back and to be called back meanwhile."""
    for _ in range(4):
        threading.Thread(target=serve, args=(server,), daemon=True).start()


def main() -> None:
    server = _core.Server(merged({}))
    for address in sys.argv[1:]:
        print(server.listen(address), flush=True)
    workers(server)
    serve(server)


@contextmanager
def serving(shm_name: str = "") -> Iterator[tuple[dict[str, str], "subprocess.Popen[str]"]]:
    """The addresses of a core_server.py by transport, and its process."""
    command = [sys.executable, __file__, *(address_to_listen_on(t, shm_name) for t in TRANSPORTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as process:
        assert process.stdout is not None
        yield {transport: process.stdout.readline().strip() for transport in TRANSPORTS}, process
        process.kill()


if __name__ == "__main__":
    main()
