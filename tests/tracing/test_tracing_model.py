"""What a trace is made of, without calls: the time line, the wire, the table, Chrome's events."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracing_checks import assert_nested, assert_no_gap

from rrpc.tracing import PHASES, Phase, Place, TracedCall
from rrpc.tracing.chrome import events
from rrpc.tracing.client_recorder import _Attempt
from rrpc.tracing.server_part import ServerPart, pack, unpack
from rrpc.tracing.show import as_table, as_text
from rrpc.tracing.timeline import chain, join

HERE = Place("host", 10, "caller", 11, "MainThread")
THERE = Place("host", 20, "server", 21, "worker")
ELSEWHERE = Place("other", 10, "server", 21, "worker")
SERVED = ["remote read", "queue", "GIL wait", "decode", "handler", "encode"]


def part(place: Place, begin: int, step: int = 10, children: list[TracedCall] | None = None) -> ServerPart:
    """Every phase takes ``step``."""
    ends = [(name, begin + step * number) for number, name in enumerate(SERVED, 1)]
    return ServerPart(place, begin, chain(begin, "server", ends), children or [])


def call(begin: int, served: ServerPart | None, replied: int, client: Place = HERE) -> TracedCall:
    """It encodes for 10, and decodes for 10."""
    made = TracedCall("S.m", client, begin, replied + 10, attempts=1)
    made.phases = [
        *chain(begin, "client", [("encode", begin + 10)]),
        *join(made, served, begin + 10, replied),
        *chain(replied, "client", [("decode", replied + 10)]),
    ]
    return made


# The time line


def test_phases_of_one_clock() -> None:
    made = call(1000, part(THERE, 1030), 1100)
    assert_no_gap(made)
    assert [phase.name for phase in made.phases] == ["encode", "send", *SERVED, "reply", "decode"]
    assert (made.estimated, made.server) == (False, THERE)
    assert made.phase_seconds("handler") == pytest.approx(10e-9)
    assert made.phase_seconds("encode") == pytest.approx(20e-9)
    assert made.phase_seconds("encode", "server") == pytest.approx(10e-9)
    with pytest.raises(ValueError, match="no phase 'hander'; there is channel, encode"):
        made.phase_seconds("hander")


@pytest.mark.parametrize(
    "there", [part(ELSEWHERE, 7_000_000), part(THERE, 7_000_000)], ids=["another host", "a clock of its own"]
)
def test_another_clock_is_put_into_the_middle(there: ServerPart) -> None:
    inner = call(7_000_045, part(THERE, 7_000_056, 0), 7_000_057, there.place)
    made = call(1000, replace(there, children=[inner]), 1110)
    assert_no_gap(made)
    assert made.estimated
    assert [made.phase_seconds(name) for name in ("send", "reply")] == pytest.approx([20e-9, 20e-9])
    (child,) = made.children
    assert child.begin_ns == 1000 + 10 + 20 + 45
    assert_no_gap(child)


@pytest.mark.parametrize(
    ("there", "sent"),
    [
        (part(ELSEWHERE, 7_000_000, 100), 1600),
        (part(ELSEWHERE, 1300, 100), 1600),
        (part(THERE, 7_000_000, 100), 1600),
        (part(THERE, 1300, 100), 1300),
        (part(ELSEWHERE, 7_000_000, 10), 1900),
        (part(ELSEWHERE, 7_000_000, 1000), 1000),
    ],
    ids=["another host", "whose clock is close", "a clock of its own", "the same", "a short one", "too fast"],
)
def test_a_stream_s_server_may_begin_before_its_client_goes_on(there: ServerPart, sent: int) -> None:
    made = TracedCall("S.m", HERE, 1000, 2200)
    attempt = _Attempt(begin_ns=1000, opened_ns=1900, end_ns=2200)
    made.phases = attempt.phases(made, there)
    assert_no_gap(made)
    step = there.phases[0].end_ns - there.phases[0].begin_ns
    served = [phase for phase in made.phases if phase.side == "server"]
    assert served[0].begin_ns >= sent
    if step < 1000:
        assert [phase.name for phase in served] == SERVED
        assert {phase.end_ns - phase.begin_ns for phase in served} == {step}
    assert made.phase_seconds("encode", "client") == pytest.approx((sent - 1000) * 1e-9)
    assert made.estimated == (sent != 1300)


def test_a_stream_s_server_may_have_read_its_clock_too_early() -> None:
    """Its phases from the first reading on that can be right are shown as they were."""
    made = TracedCall("S.m", HERE, 1000, 2200)
    attempt = _Attempt(begin_ns=1000, opened_ns=1900, end_ns=2200)
    made.phases = attempt.phases(made, part(THERE, 950, 100))
    assert_no_gap(made)
    assert [phase.name for phase in made.phases] == ["encode", *SERVED[1:], "stream"]
    assert made.phase_seconds("encode", "client") == pytest.approx(50e-9)
    assert made.phase_seconds("handler") == pytest.approx(100e-9)
    assert not made.estimated


def test_a_server_s_clock_that_runs_too_fast() -> None:
    """Its phases are pressed together, or clipped where the clock is known to be the same."""
    made = call(1000, part(ELSEWHERE, 5000, step=100), 1130)
    assert_no_gap(made)
    assert [phase.name for phase in made.phases] == ["encode", *SERVED, "decode"]
    assert {phase.end_ns - phase.begin_ns for phase in made.phases if phase.side == "server"} == {20}
    inner = call(5410, part(THERE, 5425, step=5), 5470, ELSEWHERE)
    made = call(1000, part(ELSEWHERE, 5000, step=100, children=[inner]), 1130)
    handler = next(phase for phase in made.phases if phase.name == "handler")
    (child,) = made.children
    assert handler.begin_ns <= child.begin_ns < child.end_ns <= handler.end_ns
    assert_no_gap(child)
    assert_no_gap(call(1000, part(ELSEWHERE, 5000), 1030))
    assert_no_gap(call(1000, part(THERE, 990), 1030))
    assert_no_gap(call(1000, None, 1100))
    assert call(1000, None, 1100).phase_seconds("away") == pytest.approx(90e-9)


# The wire


def test_what_the_server_says_arrives() -> None:
    inner = call(1040, part(ELSEWHERE, 5), 1060, THERE)
    inner.error, inner.items_sent, inner.window_waits = "NOT_FOUND", 7, 2
    said = unpack(pack(part(THERE, 1030, children=[inner]), 4000))
    assert said is not None
    assert (said.place, said.begin_ns) == (THERE, 1030)
    assert said.phases == part(THERE, 1030).phases
    assert vars(said.children[0]) == vars(inner)


def test_only_so_much_is_said() -> None:
    many = part(THERE, 1000, children=[call(1000 + n, part(THERE, 1011 + n), 1100 + n) for n in range(100)])
    packed = pack(many, 2000)
    assert 1500 < len(packed) <= 2000
    said = unpack(packed)
    assert said is not None
    assert len(said.children) + said.children_left_out == 100
    for none in (20, 1, 0, -5):
        assert pack(many, none) == b""


@given(
    st.binary()
    | st.recursive(st.integers(-(2**63), 2**64 - 1) | st.text() | st.none(), st.lists).map(msgpack.packb)
)
def test_whatever_a_server_says_does_no_harm(said: bytes) -> None:
    assert unpack(said) is None


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_does_no_harm(place: int, value: int) -> None:
    packed = bytearray(pack(part(THERE, 1030, children=[call(1040, part(ELSEWHERE, 5), 1060, THERE)]), 4000))
    packed[place % len(packed)] = value
    said = unpack(bytes(packed))
    if said is not None:
        made = call(1000, said, 1100)
        assert_no_gap(made)
        events([made])
        as_text([made])


def test_what_is_shown_has_no_control_characters() -> None:
    said = unpack(pack(part(replace(THERE, process="a\x1b[2Jb\n"), 1030), 4000))
    assert said is not None
    assert said.place.process == "a?[2Jb?"


# Chrome's events


def test_events_of_nested_calls() -> None:
    inner = call(1232, part(replace(THERE, pid=30), 1243, 1), 1260, THERE)
    outer = call(1000, part(THERE, 1030, 50, [inner]), 1400)
    shown = events([outer])
    assert_nested(shown)
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in shown
        if event["ph"] == "M"
    }
    assert names["process_name", 10, 0] == "caller"
    assert names["process_name", 20, 0] == "server"
    assert names["thread_name", 10, 11] == "MainThread"
    assert names["thread_name", 20, 21] == "worker"
    handler = next(event for event in shown if event["name"] == "handler")
    child = next(event for event in shown if event["ph"] == "X" and event["ts"] == 0.232)
    assert (child["name"], child["pid"], child["tid"]) == ("S.m", handler["pid"], handler["tid"])
    starts = {event["id"]: event for event in shown if event["ph"] == "s"}
    ends = {event["id"]: event for event in shown if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert all(starts[flow]["ts"] <= ends[flow]["ts"] and ends[flow]["bp"] == "e" for flow in starts)
    assert all(starts[flow]["pid"] != ends[flow]["pid"] for flow in starts)


def test_calls_at_once_have_rows_of_their_own() -> None:
    calls = [
        call(1000 + 7 * number, part(THERE, 1030 + 7 * number), 1100 + 7 * number) for number in range(5)
    ]
    shown = events(calls)
    assert_nested(shown)
    tids = {event["tid"] for event in shown if event["ph"] == "X" and event["pid"] == 10}
    assert len(tids) == 5
    assert 11 in tids
    names = {event["args"]["name"] for event in shown if event["name"] == "thread_name"}
    assert {"MainThread", "MainThread (5)", "worker (5)", "waiting calls (3)"} <= names


def test_a_process_of_another_host_is_another_process() -> None:
    shown = events([call(1000, part(ELSEWHERE, 1030), 1100)])
    assert_nested(shown)
    processes = {event["pid"]: event["args"]["name"] for event in shown if event["name"] == "process_name"}
    assert processes[10] == "caller"
    assert sorted(processes.values()) == ["caller", "server"]
    assert events([]) == []


moments = st.integers(0, 200)


@given(st.lists(st.tuples(moments, moments, st.sampled_from([THERE, ELSEWHERE]), moments), max_size=12))
def test_events_nest_whatever_the_calls(times: list[tuple[int, int, Place, int]]) -> None:
    calls = []
    for begin, length, place, inner in times:
        child = call(1000 + begin + inner, part(HERE, 1000 + inner, 3), 1100 + begin + inner + 30, place)
        replied = 1010 + begin + length
        calls.append(call(1000 + begin, part(place, 1010 + begin, length // 7, [child]), replied))
        assert_no_gap(calls[-1])
    assert_nested(events(calls))


# The table


def test_the_table() -> None:
    inner = call(1072, part(ELSEWHERE, 1083, 0), 1083, THERE)
    outer = call(1000, part(THERE, 1030, children=[inner]), 1100)
    outer.children_left_out, outer.error, outer.attempts = 3, "NOT_FOUND", 2
    lines = as_text([outer]).splitlines()
    assert lines[1].split() == ["S.m", "(NOT_FOUND,", "2", "attempts)", "0.1", "µs"]
    assert lines[2].split()[:7] == ["encode", "client", "0.0", "µs", "0.0", "µs", "9%"]
    assert [line.split()[0] for line in lines[2:9]] == [
        "encode",
        "send",
        "remote",
        "queue",
        "GIL",
        "decode",
        "handler",
    ]
    assert lines[12].startswith("    S.m (the server's clock is another one)")
    assert lines[-1] == "    ... and 3 calls more"
    table = as_table([outer])
    assert table.row_count == len(lines) - 1
    assert set(PHASES) >= {phase.name for phase in outer.phases}
    assert Phase("send", "client", 1, 2).seconds == pytest.approx(1e-9)
