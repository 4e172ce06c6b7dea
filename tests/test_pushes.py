"""Arrays that follow their message over tcp, between two processes, as a tap between them sees the frames."""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from lab import TRANSPORTS, LabServer
from raw_peer import FRAME, GOODBYE, PUSH, READ_REQUEST, SETUP, WRITE_ACK

import rrpc

MIB = 1 << 20
NAMES = {READ_REQUEST: "asked", PUSH: "pushed"}


class Tap:
    """Passes one connection's frames on, and counts them; those who know no PUSH are as it says."""

    def __init__(self, target: str, old: frozenset[str]) -> None:
        host, _, port = target.partition("://")[2].rpartition(":")
        self.where, self.old = (host, int(port)), old
        self.counts: dict[str, Counter[str]] = {"client": Counter(), "server": Counter()}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self) -> None:
        client, _ = self.listener.accept()
        server = socket.create_connection(self.where)
        for side, source, to in (("client", client, server), ("server", server, client)):
            self.threads.append(threading.Thread(target=self._pass, args=(side, source, to), daemon=True))
            self.threads[-1].start()

    def _pass(self, side: str, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as frames:
            while head := frames.read(FRAME.size):
                *first, kind, detail, rkey, address, length, tag = FRAME.unpack(head)
                if kind in NAMES:
                    self.counts[side][NAMES[kind]] += 1
                if kind == SETUP and side in self.old:
                    tag = 0
                payload = b"" if kind in (READ_REQUEST, WRITE_ACK) else frames.read(length)
                to.sendall(FRAME.pack(*first, kind, detail, rkey, address, length, tag) + payload)
                if kind == GOODBYE:
                    break
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for thread in self.threads:
            thread.join(10)
        self.listener.close()


@contextlib.contextmanager
def tapped(server: LabServer, *old: str) -> Iterator[tuple[rrpc.Client, Tap]]:
    tap = Tap(server.address("tcp"), frozenset(old))
    with rrpc.connect(tap.address) as client:
        yield client, tap
    tap.close()


pytestmark = pytest.mark.skipif("tcp" not in TRANSPORTS, reason="of tcp alone")


@pytest.mark.parametrize("nbytes", [16_384, 100_001, MIB])
def test_arrays_come_unasked_both_ways(lab_server: LabServer, nbytes: int) -> None:
    sent = np.random.default_rng(5).integers(0, 256, nbytes, np.uint8)
    with tapped(lab_server) as (client, tap):
        for _ in range(5):
            assert np.array_equal(client.call("Lab.echo", sent), sent)
    assert tap.counts == {"client": Counter(pushed=5), "server": Counter(pushed=5)}


def test_several_that_fit_come_and_the_others_are_asked_for(lab_server: LabServer) -> None:
    sent = [np.full(MIB // 3, i, np.uint8) for i in range(3)] + [np.full(MIB // 2, 7, np.uint8)]
    with tapped(lab_server) as (client, tap):
        back = client.call("Lab.echo", sent)
    assert all(np.array_equal(one, other) for one, other in zip(sent, back, strict=True))
    assert tap.counts == {"client": Counter(pushed=3, asked=1), "server": Counter(pushed=3, asked=1)}


def test_a_body_longer_than_a_slot_comes_before_what_it_tells_of(lab_server: LabServer) -> None:
    value: list[Any] = [list(range(20_000)), np.full(50_000, 3, np.uint8)]
    with tapped(lab_server) as (client, tap):
        back = client.call("Lab.echo", value)
    assert back[0] == value[0]
    assert np.array_equal(back[1], value[1])
    assert tap.counts == {"client": Counter(pushed=1, asked=1), "server": Counter(pushed=1, asked=1)}


@pytest.mark.parametrize("old", ["client", "server"])
def test_an_older_peer_is_pushed_nothing(lab_server: LabServer, old: str) -> None:
    sent = np.full(100_000, 3, np.uint8)
    with tapped(lab_server, old) as (client, tap):
        assert np.array_equal(client.call("Lab.echo", sent), sent)
    other = "server" if old == "client" else "client"
    assert tap.counts == {old: Counter(pushed=1, asked=1), other: Counter()}
