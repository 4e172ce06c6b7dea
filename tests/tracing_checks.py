"""What holds for every trace."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from rrpc.tracing import TracedCall


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
