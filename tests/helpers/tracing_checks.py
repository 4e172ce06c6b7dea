"""Servers whose calls are traced, and what holds for every trace."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import TRANSPORTS, LabServer, address_to_listen_on
from processes import ServeFactory

import rrpc
from rrpc.tracing import TracedCall

TRACED = (Path(__file__).parent / "traced_service.py").read_text()
CLIENT_BEGIN = ["channel", "encode", "registration", "credit wait", "send"]
SERVER = ["remote read", "queue", "GIL wait", "decode", "handler", "encode", "reply"]
CLIENT_END = ["remote read", "GIL wait", "decode", "channel"]


@pytest.fixture(scope="session")
def traced_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LabServer]]:
    """Three, for calls by way of others."""
    folder = tmp_path_factory.mktemp("traced")
    factory = ServeFactory(folder, address_to_listen_on)
    yield [LabServer(factory(TRACED, "Traced", listen=TRANSPORTS)) for _ in range(3)]
    factory.close()


@pytest.fixture
def traced(traced_servers: list[LabServer], transport: str) -> Iterator[rrpc.Client]:
    """A client of the first of them, once for each transport."""
    with rrpc.connect(traced_servers[0].address(transport), timeout=30.0) as client:
        yield client


def names(call: TracedCall) -> list[str]:
    return [phase.name for phase in call.phases]


def assert_in_order(call: TracedCall) -> None:
    """Some phases may take no time, and then they aren't there."""
    expected = iter([*CLIENT_BEGIN, *SERVER, *CLIENT_END])
    assert all(name in expected for name in names(call)), names(call)
    sides = [side for side, _ in itertools.groupby(phase.side for phase in call.phases)]
    assert sides in (["client", "server", "client"], ["client"]), sides


def assert_no_gap(traced: TracedCall) -> None:
    assert traced.phases[0].begin_ns == traced.begin_ns
    assert traced.phases[-1].end_ns == traced.end_ns
    for one, next_one in itertools.pairwise(traced.phases):
        assert one.end_ns == next_one.begin_ns
    assert sum(phase.seconds for phase in traced.phases) == pytest.approx(traced.seconds, abs=1e-9)


def rows(shown: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    slices = [event for event in shown if event["ph"] == "X"]
    for key in {(event["pid"], event["tid"]) for event in slices}:
        yield [event for event in slices if (event["pid"], event["tid"]) == key]


def assert_nested(shown: list[dict[str, Any]]) -> None:
    """On each row, every slice is inside of another or beside it; the outer one comes first."""
    for row in rows(shown):
        open_until: list[float] = []
        for event in sorted(row, key=lambda event: event["ts"]):  # stable
            end = round(event["ts"] + event["dur"], 3)
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            assert not open_until or end <= open_until[-1], event
            open_until.append(end)
