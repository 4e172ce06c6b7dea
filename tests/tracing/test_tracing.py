"""rrpc.trace(): where the time of calls went, between real processes."""

import contextvars
import json
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from lab import TRANSPORTS, LabServer, freeze
from lab_service import Lab
from processes import ServeFactory, eventually, run_python
from rrpc_call import Run
from tracing_checks import TRACED, assert_in_order, assert_nested, assert_no_gap, names

import rrpc
import rrpc.aio
import rrpc.tracing
from rrpc._server.dispatch import Dispatch


def test_phases_add_up(traced: rrpc.Client, traced_servers: list[LabServer]) -> None:
    traced.call("Traced.add", 1)
    with rrpc.trace() as trace:
        began = time.monotonic_ns()
        assert traced.call("Traced.add", 1, b=2) == 3
        ended = time.monotonic_ns()
    (call,) = trace.calls
    assert_no_gap(call)
    assert_in_order(call)
    assert began <= call.begin_ns < call.end_ns <= ended
    assert {"encode", "handler", "reply", "decode"} <= set(names(call))
    assert (call.method, call.attempts, call.error, call.estimated) == ("Traced.add", 1, "", False)
    assert (call.client.pid, call.client.thread) == (threading.main_thread().native_id, "MainThread")
    assert call.server is not None
    assert (call.server.pid, call.server.host) == (traced_servers[0].pid, call.client.host)


def test_requests_take_time(traced: rrpc.Client) -> None:
    """Not each is seen to: a server that was looking already goes by the clock as it was before it looked."""
    with rrpc.trace() as trace:
        for _ in range(20):
            traced.call("Traced.add", 1)
    assert any("send" in names(call) for call in trace.calls)


def test_a_slow_handler(traced: rrpc.Client) -> None:
    with rrpc.trace() as trace:
        traced.call("Traced.slow", 0.2)
    (call,) = trace.calls
    assert call.phase_seconds("handler", "server") >= 0.2
    assert_no_gap(call)


def test_large_arrays_are_read(traced: rrpc.Client) -> None:
    rows = np.ones(8 << 20)
    with rrpc.trace() as trace:
        traced.call("Traced.take", rows)
        traced.call("Traced.make", len(rows))
        traced.call("Traced.add", 1)
    argument, result, small = trace.calls
    at_least = rows.nbytes / 200e9  # no machine copies faster
    assert argument.phase_seconds("remote read", "server") > at_least
    assert result.phase_seconds("remote read", "client") > at_least
    assert small.phase_seconds("remote read", "server") == 0
    for call in trace.calls:
        assert_no_gap(call)
        assert_in_order(call)


def test_a_full_queue(serve: ServeFactory, transport: str) -> None:
    served = serve(TRACED, "Traced", listen=transport, args=["--workers", "1"])
    with rrpc.connect(served.address, timeout=20.0) as traced, rrpc.trace() as trace:
        futures = [traced.start("Traced.slow", 0.15) for _ in range(3)]
        for future in futures:
            future.result()
    queues = [call.phase_seconds("queue") for call in trace.calls]
    assert queues[0] < queues[1] < queues[2]
    assert queues[2] > 0.15
    for call in trace.calls:
        assert_no_gap(call)
    assert_nested(trace.events())


def test_no_room_at_the_server(serve: ServeFactory, transport: str) -> None:
    """More requests than the server has receives for, while it is stopped."""
    served = serve(TRACED, "Traced", listen=transport)
    with rrpc.connect(served.address, timeout=20.0) as traced:
        freeze(served)
        with rrpc.trace() as trace:
            futures = [traced.start("Traced.add", number) for number in range(200)]
        stopped = time.monotonic()
        eventually(lambda: time.monotonic() > stopped + 0.1)
        served.resume()
        assert [future.result() for future in futures] == list(range(1, 201))
    waits = [call.phase_seconds("credit wait") for call in trace.calls]
    assert waits[0] < waits[-1]
    assert waits[-1] >= 0.1
    assert_nested(trace.events())


def test_hops_nest(
    traced: rrpc.Client, traced_servers: list[LabServer], transport: str, tmp_path: Path
) -> None:
    first, second, third = traced_servers
    with rrpc.trace() as trace:
        traced.call("Traced.by_way_of", [second.address(transport), third.address(transport)], 2)
    (call,) = trace.calls
    handler = next(phase for phase in call.phases if phase.name == "handler")
    assert [len(call.children), *(len(child.children) for child in call.children)] == [2, 2, 2]
    for child in call.children:
        assert handler.begin_ns <= child.begin_ns < child.end_ns <= handler.end_ns
        assert child.client == call.server
        assert child.server is not None
        assert child.server.pid == second.pid
        assert {grandchild.server.pid for grandchild in child.children if grandchild.server} == {third.pid}
    for each in trace.all_calls():
        assert_no_gap(each)
        assert_in_order(each)
    trace.save(tmp_path / "calls.json")
    written = json.loads((tmp_path / "calls.json").read_text())["traceEvents"]
    assert_nested(written)
    assert {event["pid"] for event in written} == {call.client.pid, first.pid, second.pid, third.pid}
    assert sum(event["ph"] == "X" and event["name"] == "handler" for event in written) == 7


def test_nothing_is_collected_outside(traced: rrpc.Client) -> None:
    with rrpc.trace() as trace:
        traced.call("Traced.add", 1)
        with rrpc.trace() as inner:
            traced.call("Traced.add", 2)
        traced.call("Traced.add", 3)
    traced.call("Traced.add", 4)
    assert (len(trace.calls), len(inner.calls)) == (3, 1)
    assert trace.calls[1] is inner.calls[0] or vars(trace.calls[1]) == vars(inner.calls[0])
    with pytest.raises(RuntimeError, match="make another one"), trace:
        pass
    traced.call("Traced.add", 5)
    assert len(trace.calls) == 3


def test_threads_have_it_where_their_context_does(traced: rrpc.Client) -> None:
    with rrpc.trace() as trace:
        plain = threading.Thread(target=traced.call, args=("Traced.add", 1))
        copied = threading.Thread(
            target=contextvars.copy_context().run, args=(traced.call, "Traced.add", 2), name="copied"
        )
        for thread in (plain, copied):
            thread.start()
            thread.join()
    assert [call.client.thread for call in trace.calls] == ["copied"]


def test_calls_that_fail(traced: rrpc.Client) -> None:
    with rrpc.trace() as trace:
        with pytest.raises(rrpc.NotFound):
            traced.call("Traced.fail")
        with pytest.raises(rrpc.Unimplemented):
            traced.call("Traced.nothing")
        with pytest.raises(rrpc.DeadlineExceeded):
            traced.call("Traced.slow", 1.0, timeout=0.05)
        with pytest.raises(rrpc.InvalidArgument):
            traced.call("Traced.add", object())
    failed, unknown, late, refused = trace.calls
    assert [call.error for call in trace.calls] == [
        "NOT_FOUND",
        "UNIMPLEMENTED",
        "DEADLINE_EXCEEDED",
        "INVALID_ARGUMENT",
    ]
    assert "handler" in names(failed)
    assert unknown.seconds > 0
    assert late.phase_seconds("away") > 0
    assert late.server is None
    assert refused.server is None
    for call in trace.calls:
        assert_no_gap(call)


def test_there_is_room_for_so_many_calls(traced_servers: list[LabServer]) -> None:
    first, second = (server.address(TRANSPORTS[0]) for server in traced_servers[:2])
    with rrpc.connect(first, timeout=30.0) as traced, rrpc.trace() as trace:
        assert traced.call("Traced.by_way_of", [second], 300) == 300
    (call,) = trace.calls
    assert len(call.children) + call.children_left_out == 300
    assert len(call.children) > 20
    assert f"... and {call.children_left_out} calls more" in str(trace)


@pytest.mark.parametrize(("at_server", "at_client"), [(150, 8192), (8192, 100), (30, 8192)])
def test_a_trace_has_room_in_the_metadata_or_goes_without(at_server: int, at_client: int) -> None:
    with (
        rrpc.serve(Lab(), listen="tcp://127.0.0.1:0", metadata_bytes_max=at_server) as server,
        rrpc.connect(server.addresses[0], timeout=20.0, metadata_bytes_max=at_client) as client,
        rrpc.trace() as trace,
    ):
        assert client.call("Lab.add", 1, 2) == 3
    (call,) = trace.calls
    assert ("handler" in names(call)) == (at_server == 150)
    assert_no_gap(call)


def test_a_server_that_is_not_asked_knows_nothing_of_it(serve: ServeFactory) -> None:
    with rrpc.connect(serve(TRACED, "Traced").address, timeout=30.0) as traced:
        assert traced.call("Traced.knows_tracing", metadata={"other": "x"}) is False
        with rrpc.trace():
            assert traced.call("Traced.knows_tracing") is True


def test_it_is_imported_when_it_is_used() -> None:
    code = "import sys, rrpc; print('rrpc.tracing' in sys.modules)\nwith rrpc.trace(): pass\n"
    code += "print('rrpc.tracing' in sys.modules, 'rich' in sys.modules, 'json' in sys.modules)"
    assert run_python(code).stdout.split() == ["False", "True", "False", "False"]


def test_the_import_is_no_wait_for_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server imports it for the first call that is traced, and has read the clock before."""
    read: list[int] = []

    class Imported(ModuleType):
        def __getattr__(self, name: str) -> Any:
            read.append(time.monotonic_ns())
            return lambda context, stamps, reached_ns, bytes_max: reached_ns

    monkeypatch.setitem(sys.modules, "rrpc.tracing.server_recorder", Imported("rrpc.tracing.server_recorder"))
    assert Dispatch([Lab()]).trace(None, None) <= read[0]


def test_rrpc_call_shows_it(rrpc_call: Run, tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    status, out, err = rrpc_call("Kinds.plain", "a=5", "--trace", str(file))
    assert (status, json.loads(out)) == (0, [5, 0.5, False, "d", None])
    assert err.splitlines()[1].split()[0] == "Kinds.plain"
    # "send" too, unless the server began before the client's thread was done with sending.
    assert {line.split()[0] for line in err.splitlines()[2:]} >= {"encode", "handler", "reply"}
    assert_nested(json.loads(file.read_text())["traceEvents"])
    status, out, err = rrpc_call("Kinds.missing", "swim", "--trace")
    assert (status, out) == (1, "")
    assert "Kinds.missing (NOT_FOUND)" in err
    assert err.endswith("rrpc-call: NOT_FOUND: there is no track 'swim'\n")
    assert rrpc_call.bad("--trace", "Kinds.plain", "Kinds.plain", "a=5").startswith(
        "--trace Kinds.plain: FILE"
    )
    status, out, err = rrpc_call("Kinds.plain", "a=5", "--trace", f"{tmp_path}/none/calls.json")
    assert (status, json.loads(out)[0]) == (0, 5)
    assert err.endswith("calls.json: No such file or directory\n")
