"""Arrays that follow their message over tcp, between two processes, as a tap between them sees the frames."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from faults.gate import CLIENT, SERVER, Gate
from faults.tcp_wire import TcpWire
from lab import TRANSPORTS, LabServer
from raw_peer import FRAME, SETUP

import rrpc

MIB = 1 << 20
NAMES = {"READ": "asked", "PUSH": "pushed"}


class Tap(Gate):
    """Counts what passes. The SETUP of those who know no PUSH is made to say so."""

    def __init__(self, old: tuple[str, ...]) -> None:
        super().__init__()
        self.old = old
        self.counts: dict[str, Counter[str]] = {CLIENT: Counter(), SERVER: Counter()}

    def passes(self, sender: str, name: str, message: bytes) -> bytes:
        if name in NAMES:
            self.counts[sender][NAMES[name]] += 1
        if name == "" and message[1] == SETUP and sender in self.old:
            *fields, _ = FRAME.unpack_from(message)
            message = FRAME.pack(*fields, 0) + message[FRAME.size :]
        return super().passes(sender, name, message)


@contextlib.contextmanager
def tapped(server: LabServer, *old: str) -> Iterator[tuple[rrpc.Client, Tap]]:
    tap = Tap(old)
    wire = TcpWire(tap, "")
    wire.target = server.address("tcp")
    with rrpc.connect(wire.address) as client:
        yield client, tap
    wire.close()


pytestmark = pytest.mark.skipif("tcp" not in TRANSPORTS, reason="of tcp alone")


@pytest.mark.parametrize("nbytes", [16_384, 100_001, MIB])
def test_arrays_come_unasked_both_ways(lab_server: LabServer, nbytes: int) -> None:
    sent = np.random.default_rng(5).integers(0, 256, nbytes, np.uint8)
    with tapped(lab_server) as (client, tap):
        for _ in range(5):
            assert np.array_equal(client.call("Lab.echo", sent), sent)
    assert tap.counts == {CLIENT: Counter(pushed=5), SERVER: Counter(pushed=5)}


def test_several_that_fit_come_and_the_others_are_asked_for(lab_server: LabServer) -> None:
    sent = [np.full(MIB // 3, i, np.uint8) for i in range(3)] + [np.full(MIB // 2, 7, np.uint8)]
    with tapped(lab_server) as (client, tap):
        back = client.call("Lab.echo", sent)
    assert all(np.array_equal(one, other) for one, other in zip(sent, back, strict=True))
    assert tap.counts == {CLIENT: Counter(pushed=3, asked=1), SERVER: Counter(pushed=3, asked=1)}


def test_a_body_longer_than_a_slot_comes_before_what_it_tells_of(lab_server: LabServer) -> None:
    value: list[Any] = [list(range(20_000)), np.full(50_000, 3, np.uint8)]
    with tapped(lab_server) as (client, tap):
        back = client.call("Lab.echo", value)
    assert back[0] == value[0]
    assert np.array_equal(back[1], value[1])
    assert tap.counts == {CLIENT: Counter(pushed=1, asked=1), SERVER: Counter(pushed=1, asked=1)}


@pytest.mark.parametrize("old", [CLIENT, SERVER])
def test_an_older_peer_is_pushed_nothing(lab_server: LabServer, old: str) -> None:
    sent = np.full(100_000, 3, np.uint8)
    with tapped(lab_server, old) as (client, tap):
        assert np.array_equal(client.call("Lab.echo", sent), sent)
    other = SERVER if old == CLIENT else CLIENT
    assert tap.counts == {old: Counter(pushed=1, asked=1), other: Counter()}
