"""iceoryx2, its pattern request-response: slices of bytes in shared memory, which both ends poll for.

Payloads are loaned slices that grow by powers of two, as in iceoryx2's example of dynamic data; its receivers
poll, as in its examples and its benchmark of this pattern. An array is written into a loaned slice, and read
there by the other end: one copy, at the sender. There are no names and no errors besides.
"""

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.peers.base import Connection, Floats, Mode, Peer, WarmArrays
from bench.peers.optional import load, missing_packages

ACTIVE_REQUESTS_MAX = 128


def write(loaned: Any, data: Any, nbytes: int) -> Any:
    """Fills a loaned slice from a buffer of as many bytes; returns it ready to be sent."""
    ctypes.memmove(loaned.payload().as_ptr(), data, nbytes)
    return loaned.assume_init()


def floats(message: Any) -> Floats:
    """Returns the payload of a request or response, which lives as long as the array does."""
    payload = message.payload()
    memory = (ctypes.c_uint8 * payload.len()).from_address(payload.as_ptr())
    memory.owner = message
    return np.frombuffer(memory, np.float32)


def number(message: Any) -> int:
    return int.from_bytes(message.payload().as_memory_view(), "little")


class Iceoryx2Connection(Connection):
    def __init__(self, name: str) -> None:
        self._node, service = open_service(name)
        strategy = load("iceoryx2").AllocationStrategy.PowerOfTwo
        self._client = service.client_builder().allocation_strategy(strategy).create()

    def _start(self, data: Any, nbytes: int) -> Any:
        return write(self._client.loan_slice_uninit(nbytes), data, nbytes).send()

    @staticmethod
    def _finish(pending: Any) -> Any:
        receive = pending.receive
        while (response := receive()) is None:
            pass
        return response

    def echo(self, data: bytes) -> bytes:
        response = self._finish(self._start(data, len(data)))
        answer: bytes = response.payload().as_memory_view().tobytes()
        return answer

    def pipeline(self, data: bytes, window: int, calls: int) -> None:
        in_flight: deque[Any] = deque()
        for _ in range(calls):
            if len(in_flight) == window:
                self._finish(in_flight.popleft())
            in_flight.append(self._start(data, len(data)))
        while in_flight:
            self._finish(in_flight.popleft())

    def send(self, array: Floats) -> int:
        return number(self._finish(self._start(array.ctypes.data, array.nbytes)))

    def fetch(self, nbytes: int) -> Floats:
        return floats(self._finish(self._start(nbytes.to_bytes(8, "little"), 8)))

    def close(self) -> None:
        del self._client, self._node


class Iceoryx2Peer(Peer):
    many_connections = False

    def missing(self) -> str:
        return missing_packages("iceoryx2")

    def serve(self, mode: Mode, ready: Callable[[str], None]) -> None:
        stopped: list[int] = []  # a node that is killed leaves its shared memory behind
        signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
        name = f"rrpc-bench/{os.getpid()}"
        _node, service = open_service(name)
        strategy = load("iceoryx2").AllocationStrategy.PowerOfTwo
        server = service.server_builder().allocation_strategy(strategy).create()
        ready(name)
        answer, receive = answers(mode), server.receive
        while not stopped:
            if (request := receive()) is not None:
                answer(request)
                del request

    def connect(self, address: str, mode: Mode) -> Connection:
        return Iceoryx2Connection(address)


def open_service(name: str) -> tuple[Any, Any]:
    """Returns a node, which must outlive what is made of the service, and the service."""
    iox2 = load("iceoryx2")
    iox2.set_log_level_from_env_or(iox2.LogLevel.Error)
    builder = iox2.NodeBuilder.new().signal_handling_mode(iox2.SignalHandlingMode.Disabled)
    node = builder.create(iox2.ServiceType.Ipc)
    payload = iox2.Slice[ctypes.c_uint8]
    service = node.service_builder(iox2.ServiceName.new(name)).request_response(payload, payload)
    return node, service.max_active_requests_per_client(ACTIVE_REQUESTS_MAX).open_or_create()


def answers(mode: Mode) -> Callable[[Any], None]:
    """Returns the handler of a mode, which answers one request."""
    arrays = WarmArrays()

    def echo(request: Any) -> None:
        data = request.payload()
        write(request.loan_slice_uninit(data.len()), data.as_ptr(), data.len()).send()

    def send(request: Any) -> None:
        nbytes = floats(request).nbytes
        write(request.loan_slice_uninit(8), nbytes.to_bytes(8, "little"), 8).send()

    def fetch(request: Any) -> None:
        array = arrays[number(request)]
        write(request.loan_slice_uninit(array.nbytes), array.ctypes.data, array.nbytes).send()

    handlers: dict[Mode, Callable[[Any], None]] = {"echo": echo, "send": send, "fetch": fetch}
    return handlers[mode]
