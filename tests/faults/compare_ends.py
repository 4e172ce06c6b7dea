"""The clients and servers of ``compare.py``: rrpc over tcp, grpcio, and ucxx, told what to do by a line.

All are set up as their guides say, with arrays of 8 MiB allowed, and keep-alive after 1 s, of 1 s.
"""

import asyncio
import os
import socket
import sys
import threading
import time
import zlib
from concurrent import futures
from pathlib import Path
from typing import Any

# The modules of the tests import each other by name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

import grpc
import numpy as np
from numpy.typing import NDArray

import rrpc
from faults.line import Line

LARGE = 8 << 20
ITEMS = 40
NAP = 0.05
_GRPC = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_GRPC_ALIVE = [
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_RRPC_ALIVE = {"keepalive_interval": 1.0, "keepalive_timeout": 1.0}
_UCX = {
    "UCX_TLS": "tcp",
    "UCX_KEEPALIVE_INTERVAL": "1s",
    "UCX_TCP_KEEPIDLE": "1s",
    "UCX_TCP_KEEPINTVL": "1s",
}
_PATTERN = np.random.default_rng(1).integers(0, 256, LARGE, np.uint8)
SUM = zlib.crc32(_PATTERN.data)


@rrpc.service
class Echo:
    @rrpc.method
    def small(self, value: int) -> int:
        time.sleep(NAP)
        return value

    @rrpc.method
    def argument(self, value: NDArray[np.uint8]) -> int:
        return zlib.crc32(value.data)

    @rrpc.method
    def result(self) -> NDArray[np.uint8]:
        return _PATTERN


def _grpc_small(value: bytes, _: Any) -> bytes:
    time.sleep(NAP)
    return value


_HANDLERS = {
    "small": _grpc_small,
    "argument": lambda value, _: str(zlib.crc32(value)).encode(),
    "result": lambda _, __: _PATTERN.tobytes(),
}


def serve(system: str, port: int) -> tuple[Any, int]:
    """Returns a server and its port."""
    if system == "rrpc":
        server = rrpc.serve(Echo(), listen=f"tcp://127.0.0.1:{port}", workers=8, **_RRPC_ALIVE)
        return server, int(server.addresses[0].rpartition(":")[2])
    made = grpc.server(
        futures.ThreadPoolExecutor(8), options=[*_GRPC, *_GRPC_ALIVE, ("grpc.so_reuseport", 0)]
    )
    methods = {name: grpc.unary_unary_rpc_method_handler(do) for name, do in _HANDLERS.items()}
    made.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Echo", methods)])
    bound = made.add_insecure_port(f"127.0.0.1:{port}")
    made.start()
    return made, bound


class Blocking:
    """A client."""

    def __init__(self, system: str, port: int) -> None:
        if system == "rrpc":
            self._client: Any = rrpc.connect(f"tcp://127.0.0.1:{port}", connect_timeout=5.0, **_RRPC_ALIVE)
            self._calls: Any = lambda name, *a, timeout: self._client.call(
                f"Echo.{name}", *a, timeout=timeout
            )
        else:
            channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[*_GRPC, *_GRPC_ALIVE])
            self._calls = lambda name, *a, timeout: channel.unary_unary(f"/Echo/{name}")(
                *(a or (b"",)), timeout=timeout
            )
        self._grpc = system != "rrpc"

    def call(self, name: str, timeout: float | None) -> Any:
        return self._calls(name, *_arguments(name, self._grpc), timeout=timeout)


def _arguments(name: str, as_bytes: bool) -> tuple[Any, ...]:
    if name == "small":
        return (b"7",) if as_bytes else (7,)
    if name == "argument":
        return (_PATTERN.tobytes() if as_bytes else _PATTERN,)
    return ()


def right(name: str, found: Any) -> bool:
    """Whether a result is what it must be."""
    if name == "small":
        return int(found) == 7
    if name == "argument":
        return int(found) == SUM
    return zlib.crc32(found) == SUM


class Asyncio:
    """A client in an event loop of its own."""

    def __init__(self, system: str, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._system = system
        self._client: Any = self._in_loop(self._connect(system, port))

    def _in_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _connect(self, system: str, port: int) -> Any:
        if system == "rrpc":
            return await rrpc.aio.connect(f"tcp://127.0.0.1:{port}", connect_timeout=5.0, **_RRPC_ALIVE)
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[*_GRPC, *_GRPC_ALIVE])

    def call(self, name: str, timeout: float | None) -> Any:
        return self._in_loop(self._call(name, timeout))

    async def _call(self, name: str, timeout: float | None) -> Any:
        arguments = _arguments(name, self._system != "rrpc")
        if self._system == "rrpc":
            return await self._client.call(f"Echo.{name}", *arguments, timeout=timeout)
        return await self._client.unary_unary(f"/Echo/{name}")(*(arguments or (b"",)), timeout=timeout)


class Ucxx:
    """A client of a little protocol over ucxx's endpoints, which has no calls: a number there, and back after a nap."""

    def __init__(self, system: str, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._port = port
        self._endpoint: Any = None

    def call(self, name: str, timeout: float | None) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(self._call(), timeout), self._loop).result()

    def move(self, port: int) -> None:
        """The server is there now."""
        self._port = port

    async def _call(self) -> int:
        import ucxx

        endpoint, self._endpoint = self._endpoint, None  # one that failed isn't used again
        if endpoint is None:
            endpoint = await ucxx.create_endpoint("127.0.0.1", self._port)
        word = np.array([7])
        await endpoint.send(word)
        word[0] = 0
        await endpoint.recv(word)
        self._endpoint = endpoint
        return int(word[0])


def serve_ucxx(port: int, line: Line) -> None:
    """Serves until the line ends."""
    import ucxx

    async def echo(endpoint: Any) -> None:
        word = np.empty(1, np.int64)
        try:
            while True:
                await endpoint.recv(word)
                await asyncio.sleep(NAP)
                await endpoint.send(word)
        except ucxx.exceptions.UCXError:
            await endpoint.close()

    async def serve() -> None:
        listener = ucxx.create_listener(echo, port)
        line.send(port=listener.port)
        await asyncio.to_thread(line.receive_or_none)

    asyncio.run(serve())


def called(client: Any, name: str, timeout: float | None) -> dict[str, Any]:
    """One call: what it came to, and when."""
    said: dict[str, Any] = {"code": "OK", "text": ""}
    try:
        found = client.call(name, timeout)
        said["right"] = right(name, found)
    except (rrpc.RpcError, grpc.RpcError) as error:
        failed: Any = error  # grpc's stubs don't say that its errors are calls, too
        is_grpc = isinstance(error, grpc.RpcError)
        said["code"] = failed.code().name if is_grpc else failed.code.name
        said["text"] = str(failed.details() if is_grpc else failed)[:200]
    except TimeoutError:  # of asyncio.wait_for
        said.update(code="DEADLINE_EXCEEDED", text="TimeoutError")
    except Exception as error:  # of ucxx
        said.update(code="UNAVAILABLE", text=f"{type(error).__name__}: {error}")
    said["ended"] = time.monotonic()
    return said


def main() -> None:
    kind, system, style, descriptor, port = sys.argv[1:]
    line = Line(socket.socket(fileno=int(descriptor)))
    client: Any = None
    if system == "ucxx":
        os.environ.update(_UCX)
    if kind == "server" and system == "ucxx":
        serve_ucxx(int(port), line)
        os._exit(0)
    if kind == "server":
        kept, bound = serve(system, int(port))
        line.send(port=bound, kept=repr(kept))
    else:
        ends = {"ucxx": Ucxx}.get(system, Asyncio if style == "asyncio" else Blocking)
        client = ends(system, int(port))
        line.send(ready=True)
    while (said := line.receive_or_none()) is not None:
        if said["do"] == "call":
            line.send(**called(client, said["name"], said["timeout"]))
        elif said["do"] == "move":
            client.move(said["port"])
            line.send(moved=True)
        else:
            files = len(os.listdir("/proc/self/fd"))
            line.send(files=files)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
