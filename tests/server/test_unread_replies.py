"""A client that leaves its replies unread has no more of its calls begun; one that reads them never notices."""

import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from lab import address_to_listen_on
from numpy.typing import NDArray
from processes import eventually
from raw_peer import CALL, CANCEL, CANCEL_ACK, DONE, REPLY, REPLY_HEAD, RawPeer, message, request

import rrpc

MIB = 1 << 20
UNREAD_MAX = 32  # results
CALLS = 60  # fewer than a ring has slots


@rrpc.service(name="Made")
class Blocking:
    """Counts what it begins."""

    def __init__(self) -> None:
        self.begun = 0
        self._lock = threading.Lock()

    @rrpc.method
    def make(self, nbytes: int) -> NDArray[np.uint8]:
        with self._lock:
            self.begun += 1
        return np.full(nbytes, 7, np.uint8)


@rrpc.service(name="Made")
class Coroutines:
    """The same, in an event loop."""

    def __init__(self) -> None:
        self.begun = 0

    @rrpc.method
    async def make(self, nbytes: int) -> NDArray[np.uint8]:
        self.begun += 1
        return np.full(nbytes, 7, np.uint8)


class Hoarder(RawPeer):
    """Asks for results, and reads the replies but not the results."""

    def __init__(self, server: rrpc.Server) -> None:
        super().__init__(server.addresses[0])
        self.asked = self.answered = self.acknowledged = 0

    def say(self, kind: int, body: bytes) -> None:
        self.send(message(kind, body, data=self.answered, control=self.acknowledged))

    def ask(self, nbytes: int, timeout: int = -1) -> None:
        self.asked += 1
        self.say(CALL, request(self.asked, "Made.make", nbytes, timeout=timeout))

    def tell(self, kind: int, *call_ids: int) -> None:
        self.say(kind, struct.pack(f"<{len(call_ids)}Q", *call_ids))

    def next(self) -> tuple[int, int, int]:
        """Kind, call and status of the next reply or acknowledgement."""
        while True:
            kind, body = self.read_message()
            if kind == REPLY:
                self.answered += 1
                call_id, status, *_ = REPLY_HEAD.unpack_from(body)
                return kind, call_id, status
            if kind == CANCEL_ACK:
                self.acknowledged += 1
                return kind, struct.unpack("<Q", body)[0], 0


@pytest.fixture(params=[Blocking, Coroutines])
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Any, rrpc.Server]]:
    service = request.param()
    with rrpc.serve(service, listen="tcp://127.0.0.1:0", workers=2, max_concurrency=4) as server:
        yield service, server


@pytest.fixture
def hoarder(made: tuple[Any, rrpc.Server]) -> Iterator[Hoarder]:
    """It has asked for more results than may stay unread, and read as many replies as come."""
    service, server = made
    waited = rrpc.stats()["reply_waits"]
    peer = Hoarder(server)
    for _ in range(CALLS):
        peer.ask(MIB // 8)
    for _ in range(UNREAD_MAX):
        assert peer.next()[2] == 0
    # Each was begun or has to wait: no worker is about to begin one.
    eventually(lambda: rrpc.stats()["reply_waits"] - waited == CALLS - service.begun)
    assert server.stats()["calls_waiting"] == CALLS - service.begun
    assert service.begun <= UNREAD_MAX + 4  # as many were taken already
    while peer.answered < service.begun:
        assert peer.next()[2] == 0
    yield peer
    peer.close()


def test_others_are_served(made: tuple[Any, rrpc.Server], hoarder: Hoarder) -> None:
    service, server = made
    begun = service.begun
    with rrpc.connect(server.addresses[0], timeout=60.0) as other:
        for _ in range(CALLS):
            assert other.call("Made.make", MIB).sum() == 7 * MIB
    assert service.begun == begun + CALLS


def test_calls_go_on_when_results_are_read(made: tuple[Any, rrpc.Server], hoarder: Hoarder) -> None:
    service, server = made
    read = list(range(1, hoarder.answered + 1))
    while read:
        hoarder.tell(DONE, *read)
        read = [hoarder.next()[1] for _ in range(min(UNREAD_MAX // 2, CALLS - hoarder.answered))]
    assert (hoarder.answered, service.begun) == (CALLS, CALLS)
    assert server.stats()["calls_waiting"] == 0


def test_what_waits_can_be_cancelled(made: tuple[Any, rrpc.Server], hoarder: Hoarder) -> None:
    service, server = made
    hoarder.tell(CANCEL, CALLS)
    assert hoarder.next() == (CANCEL_ACK, CALLS, 0)
    hoarder.ask(MIB // 8, timeout=1)
    assert hoarder.next() == (REPLY, CALLS + 1, rrpc.StatusCode.DEADLINE_EXCEEDED)
    assert server.stats()["calls_waiting"] == CALLS - 1 - service.begun


def test_what_waits_ends_with_its_connection(made: tuple[Any, rrpc.Server], hoarder: Hoarder) -> None:
    service, server = made
    begun = service.begun
    hoarder.close()
    eventually(lambda: server.stats()["calls_waiting"] == server.stats()["connections"] == 0)
    assert service.begun == begun


def test_a_server_stops_while_calls_wait(made: tuple[Any, rrpc.Server], hoarder: Hoarder) -> None:
    made[1].stop(0.1)
    assert hoarder.wait_for_end() == "the server was stopped"


@pytest.mark.parametrize("scheme", ["shm", "tcp"])
@pytest.mark.parametrize("nbytes", [100, MIB])
@pytest.mark.parametrize("kind", [Blocking, Coroutines])
def test_a_client_that_reads_gets_all(kind: type[Any], scheme: str, nbytes: int) -> None:
    """Many calls at a time, whose results take more together than may be exposed at once."""
    listen = address_to_listen_on(scheme)
    with (
        rrpc.serve(kind(), listen=listen, max_concurrency=4, exposed_bytes_max=16 * MIB) as server,
        rrpc.connect(server.addresses[0], timeout=120.0) as client,
    ):
        futures = [client.start("Made.make", nbytes) for _ in range(300)]
        assert all(future.result(120).nbytes == nbytes for future in futures)
