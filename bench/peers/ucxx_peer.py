"""ucxx, over shared memory: tagged messages between two of its core's endpoints, progressed by polling.

Runs as the backend "ucxx-core" of ucxx's own benchmark does in its progress mode "polling": whoever waits for a
request drives the worker, and landing memory is used again. ucxx moves messages; names, errors and deadlines
are left to its users, so these calls have none. A message's receiver must know its length: lengths go ahead of
arrays as numbers, and of all echoes once.
"""

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.peers.base import Connection, Floats, Mode, Peer, WarmArrays
from bench.peers.optional import load, missing_packages

TRANSPORTS = "tcp,sm"  # connections are made over TCP; messages then take shared memory
RECEIVES_POSTED = 8
TO_SERVER, TO_CLIENT = 1, 0
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Link:
    """One endpoint and the worker that progresses it."""

    def __init__(self, worker: Any, endpoint: Any, sends: int, receives: int) -> None:
        tag = load("ucxx._lib.libucxx").UCXXTag
        self._wrap = load("ucxx._lib.arr").Array
        self._endpoint = endpoint
        self._progress = worker.progress
        self._sends, self._receives = tag(sends), tag(receives)
        self._landing = np.zeros(0, np.uint8)

    def post_send(self, data: Any) -> Any:
        """Sends a buffer, which must stay as it is until the returned request is complete."""
        return self._endpoint.tag_send(self._wrap(data), tag=self._sends)

    def post_receive(self, landing: Any) -> Any:
        return self._endpoint.tag_recv(self._wrap(landing), tag=self._receives)

    def wait(self, request: Any) -> None:
        while not request.completed:
            self._progress()
        request.check_error()

    def send(self, data: Any) -> None:
        self.wait(self.post_send(data))

    def receive(self, nbytes: int) -> Bytes:
        """Returns the next message in memory that the next call overwrites."""
        if self._landing.size < nbytes:
            self._landing = np.ones(nbytes, np.uint8)
        landing = self._landing[:nbytes]
        self.wait(self.post_receive(landing))
        return landing

    def send_number(self, number: int) -> None:
        self.send(np.array([number], np.int64))

    def receive_number(self) -> int:
        number = np.zeros(1, np.int64)
        self.wait(self.post_receive(number))
        return int(number[0])

    def close(self) -> None:
        self._endpoint.close_blocking()


class UcxxConnection(Connection):
    def __init__(self, link: Link) -> None:
        self._link = link
        self._echo_bytes = 0

    def _announce(self, nbytes: int) -> None:
        assert self._echo_bytes == 0, "all echoes of a connection have one length"
        self._link.send_number(nbytes)
        self._echo_bytes = nbytes

    def echo(self, data: bytes) -> bytes:
        link = self._link
        if len(data) != self._echo_bytes:
            self._announce(len(data))
        sent = link.post_send(data)
        answer = link.receive(len(data)).tobytes()
        link.wait(sent)
        return answer

    def pipeline(self, data: bytes, window: int, calls: int) -> None:
        link = self._link
        if len(data) != self._echo_bytes:
            self._announce(len(data))
        in_flight: deque[tuple[Any, Any]] = deque()
        landings = [np.zeros(len(data), np.uint8) for _ in range(window)]
        for number in range(calls):
            if len(in_flight) == window:
                self._finish(*in_flight.popleft())
            in_flight.append((link.post_receive(landings[number % window]), link.post_send(data)))
        for requests in in_flight:
            self._finish(*requests)

    def _finish(self, received: Any, sent: Any) -> None:
        self._link.wait(received)
        self._link.wait(sent)

    def send(self, array: Floats) -> int:
        self._link.send_number(array.nbytes)
        sent = self._link.post_send(array)
        answer = self._link.receive_number()
        self._link.wait(sent)
        return answer

    def fetch(self, nbytes: int) -> Floats:
        self._link.send_number(nbytes)
        return self._link.receive(nbytes).view(np.float32)

    def close(self) -> None:
        self._link.close()


class UcxxPeer(Peer):
    many_connections = False

    def missing(self) -> str:
        return missing_packages("ucxx")

    def serve(self, mode: Mode, ready: Callable[[str], None]) -> None:
        ucx, worker = new_worker()
        endpoints: list[Any] = []

        def accept(request: int) -> None:
            endpoints.append(
                listener.create_endpoint_from_conn_request(request, endpoint_error_handling=True)
            )

        listener = ucx.UCXListener.create(worker=worker, port=0, cb_func=accept)
        ready(str(listener.port))
        while not endpoints:
            worker.progress()
        SERVE[mode](Link(worker, endpoints[0], TO_CLIENT, TO_SERVER))

    def connect(self, address: str, mode: Mode) -> Connection:
        ucx, worker = new_worker()
        endpoint = ucx.UCXEndpoint.create(worker, "127.0.0.1", int(address), endpoint_error_handling=True)
        return UcxxConnection(Link(worker, endpoint, TO_SERVER, TO_CLIENT))


def new_worker() -> tuple[Any, Any]:
    """Returns the module of ucxx's core, and a worker that its users progress."""
    os.environ.setdefault(
        "UCX_WARN_UNUSED_ENV_VARS", "n"
    )  # a warning on stdout about a variable of ucxx's own
    ucx = load("ucxx._lib.libucxx")
    context = ucx.UCXContext({"TLS": TRANSPORTS}, feature_flags=(ucx.Feature.TAG,))
    return ucx, ucx.UCXWorker(context)


def serve_echo(link: Link) -> None:
    """Answers in the order of arrival; a few receives stand ready, and ucxx keeps what comes before others do."""
    nbytes = link.receive_number()
    landings = [np.zeros(nbytes, np.uint8) for _ in range(RECEIVES_POSTED)]
    posted = deque((landing, link.post_receive(landing)) for landing in landings)
    while True:
        landing, received = posted.popleft()
        link.wait(received)
        link.send(landing)
        posted.append((landing, link.post_receive(landing)))


def serve_send(link: Link) -> None:
    while True:
        array = link.receive(link.receive_number()).view(np.float32)
        link.send_number(array.nbytes)


def serve_fetch(link: Link) -> None:
    arrays = WarmArrays()
    while True:
        link.send(arrays[link.receive_number()])


SERVE: dict[Mode, Callable[[Link], None]] = {"echo": serve_echo, "send": serve_send, "fetch": serve_fetch}
