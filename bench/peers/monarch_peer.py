"""Monarch: an actor in another process of this host, called by its endpoints over Monarch's Unix sockets.

Runs as Monarch's documentation has processes on several hosts meet, with one host: the server is a worker, the
client attaches to it, spawns a process there and an actor in it. That process answers the calls. Arrays are
pickled into messages; Monarch's RDMA buffers need an adapter.
"""

import os
import tempfile
from collections import deque
from collections.abc import Callable
from typing import Any

from bench.peers.base import Connection, Floats, Mode, Peer, WarmArrays
from bench.peers.optional import load, missing_packages


def actor_class() -> Any:
    """Returns the actor's class, which can only be made where Monarch is."""
    monarch = load("monarch.actor")

    class BenchActor(monarch.Actor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._arrays = WarmArrays()

        @monarch.endpoint  # type: ignore[untyped-decorator]
        def echo(self, data: bytes) -> bytes:
            return data

        @monarch.endpoint  # type: ignore[untyped-decorator]
        def send(self, array: Floats) -> int:
            return array.nbytes

        @monarch.endpoint  # type: ignore[untyped-decorator]
        def fetch(self, nbytes: int) -> Floats:
            return self._arrays[nbytes]

        @monarch.endpoint  # type: ignore[untyped-decorator]
        def pid(self) -> int:
            return os.getpid()

    return BenchActor


class MonarchConnection(Connection):
    def __init__(self, address: str) -> None:
        hosts = load("monarch.actor").attach_to_workers(ca="trust_all_connections", workers=[address])
        self._actor = hosts.spawn_procs({"procs": 1}).spawn("bench", actor_class())
        self._echo = self._actor.echo.call_one
        self._pid = int(self._actor.pid.call_one().get())

    def server_pid(self) -> int | None:
        return self._pid

    def echo(self, data: bytes) -> bytes:
        answer: bytes = self._echo(data).get()
        return answer

    def pipeline(self, data: bytes, window: int, calls: int) -> None:
        in_flight: deque[Any] = deque()
        for _ in range(calls):
            if len(in_flight) == window:
                in_flight.popleft().get()
            in_flight.append(self._echo(data))
        for future in in_flight:
            future.get()

    def send(self, array: Floats) -> int:
        return int(self._actor.send.call_one(array).get())

    def fetch(self, nbytes: int) -> Floats:
        array: Floats = self._actor.fetch.call_one(nbytes).get()
        return array

    def close(self) -> None:
        """Leaves the actor's process to the worker, which ends with the benchmark's server."""


class MonarchPeer(Peer):
    many_connections = False

    def missing(self) -> str:
        return missing_packages("monarch")

    def serve(self, mode: Mode, ready: Callable[[str], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            address = f"ipc://{folder}/socket"
            worker = load("monarch.actor").start_worker_loop_forever(
                ca="trust_all_connections", address=address
            )
            ready(address)
            worker.get()

    def connect(self, address: str, mode: Mode) -> Connection:
        return MonarchConnection(address)
