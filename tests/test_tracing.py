"""rrpc.trace(): where the time of calls went, between real processes."""

import asyncio
import contextvars
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from lab import TRANSPORTS, LabServer, address_to_listen_on, freeze
from processes import ServeFactory, eventually, run_python
from rrpc_call import Run
from tracing_checks import assert_nested, assert_no_gap
from two_versions import generate

import rrpc
import rrpc.aio
import rrpc.tracing
from rrpc.tracing import TracedCall

MODULE = """
import asyncio, sys, threading, time, numpy as np, rrpc, rrpc.aio
from collections.abc import Iterator
from numpy.typing import NDArray

@rrpc.service
class Traced:
    items = 0
    started = threading.Event()

    @rrpc.method
    def add(self, a: int, b: int = 1) -> int:
        return a + b

    @rrpc.method
    def slow(self, seconds: float) -> None:
        time.sleep(seconds)

    @rrpc.method
    def take(self, rows: NDArray[np.float64]) -> int:
        return rows.nbytes

    @rrpc.method
    def make(self, count: int) -> NDArray[np.float64]:
        return np.ones(count)

    @rrpc.method
    def fail(self) -> None:
        raise rrpc.NotFound("nothing here")

    @rrpc.method
    def by_way_of(self, addresses: list[str], times: int) -> int:
        if not addresses:
            return 1
        with rrpc.connect(addresses[0], timeout=20.0) as client:
            return sum(client.call("Traced.by_way_of", addresses[1:], times) for _ in range(times))

    @rrpc.method
    async def nap(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @rrpc.method
    async def ask(self, address: str, times: int) -> int:
        async with rrpc.aio.connect(address, timeout=20.0) as client:
            return sum(await asyncio.gather(*(client.call("Traced.add", 0) for _ in range(times))))

    @rrpc.method
    def count(self, until: int, size: int) -> Iterator[NDArray[np.uint8]]:
        self.items = 0
        for _ in range(until):
            self.items += 1
            yield np.zeros(size, np.uint8)

    @rrpc.method
    def late_sum(self, numbers: Iterator[int]) -> int:
        assert self.started.wait(30)
        self.started.clear()
        return sum(numbers)

    @rrpc.method
    def go(self) -> None:
        self.started.set()

    @rrpc.method
    def made(self) -> int:
        return self.items

    @rrpc.method
    def sum(self, numbers: Iterator[int]) -> int:
        return sum(numbers)

    @rrpc.method
    def ask_each(self, addresses: list[str]) -> Iterator[int]:
        for address in addresses:
            with rrpc.connect(address, timeout=20.0) as client:
                yield client.call("Traced.add", 1)

    @rrpc.method
    def knows_tracing(self) -> bool:
        return "rrpc.tracing" in sys.modules
"""
CLIENT_BEGIN = ["channel", "encode", "registration", "credit wait", "send"]
SERVER = ["remote read", "queue", "GIL wait", "decode", "handler", "encode", "reply"]
CLIENT_END = ["remote read", "GIL wait", "decode", "channel"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LabServer]]:
    """Three, for calls by way of others."""
    folder = tmp_path_factory.mktemp("traced")
    numbers = itertools.count()
    factory = ServeFactory(
        folder, lambda scheme: address_to_listen_on(scheme, f"{folder.name}-{os.getpid()}-{next(numbers)}")
    )
    yield [LabServer(factory(MODULE, "Traced", listen=TRANSPORTS)) for _ in range(3)]
    factory.close()


@pytest.fixture
def client(servers: list[LabServer], transport: str) -> Iterator[rrpc.Client]:
    with rrpc.connect(servers[0].address(transport), timeout=30.0) as client:
        yield client


def names(call: TracedCall) -> list[str]:
    return [phase.name for phase in call.phases]


def assert_in_order(call: TracedCall) -> None:
    """Some phases may take no time, and then they aren't there."""
    expected = iter([*CLIENT_BEGIN, *SERVER, *CLIENT_END])
    assert all(name in expected for name in names(call)), names(call)
    sides = [phase.side for phase in call.phases]
    assert sides == sorted(sides, key=["client", "server", "client"].index) or set(sides) == {
        "client",
        "server",
    }


def longest(call: TracedCall) -> tuple[str, str]:
    phase = max(call.phases, key=lambda phase: phase.seconds)
    return phase.name, phase.side


def test_phases_add_up(client: rrpc.Client, servers: list[LabServer]) -> None:
    client.call("Traced.add", 1)
    with rrpc.trace() as trace:
        began = time.monotonic_ns()
        assert client.call("Traced.add", 1, b=2) == 3
        ended = time.monotonic_ns()
    (call,) = trace.calls
    assert_no_gap(call)
    assert_in_order(call)
    assert began <= call.begin_ns < call.end_ns <= ended
    assert {"encode", "send", "handler", "reply", "decode"} <= set(names(call))
    assert (call.method, call.attempts, call.error, call.estimated) == ("Traced.add", 1, "", False)
    assert (call.client.pid, call.client.thread) == (threading.main_thread().native_id, "MainThread")
    assert call.server is not None
    assert (call.server.pid, call.server.host) == (servers[0].pid, call.client.host)


def test_a_slow_handler(client: rrpc.Client) -> None:
    with rrpc.trace() as trace:
        client.call("Traced.slow", 0.2)
    (call,) = trace.calls
    assert call.phase_seconds("handler") >= 0.2
    assert longest(call) == ("handler", "server")
    assert_no_gap(call)


def test_large_arrays_are_read(client: rrpc.Client) -> None:
    rows = np.ones(8 << 20)
    with rrpc.trace() as trace:
        client.call("Traced.take", rows)
        client.call("Traced.make", len(rows))
        client.call("Traced.add", 1)
    argument, result, small = trace.calls
    at_least = rows.nbytes / 200e9  # no machine copies faster
    assert argument.phase_seconds("remote read", "server") > at_least
    assert result.phase_seconds("remote read", "client") > at_least
    assert small.phase_seconds("remote read", "server") == 0
    for call in trace.calls:
        assert_no_gap(call)
        assert_in_order(call)


def test_a_full_queue(serve: ServeFactory, transport: str) -> None:
    served = serve(MODULE, "Traced", listen=transport, args=["--workers", "1"])
    with rrpc.connect(served.address, timeout=20.0) as client, rrpc.trace() as trace:
        futures = [client.start("Traced.slow", 0.15) for _ in range(3)]
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
    served = serve(MODULE, "Traced", listen=transport)
    with rrpc.connect(served.address, timeout=20.0) as client:
        freeze(served)
        with rrpc.trace() as trace:
            futures = [client.start("Traced.add", number) for number in range(200)]
        stopped = time.monotonic()
        eventually(lambda: time.monotonic() > stopped + 0.1)
        served.resume()
        assert [future.result() for future in futures] == list(range(1, 201))
    waits = [call.phase_seconds("credit wait") for call in trace.calls]
    assert waits[0] < waits[-1]
    assert waits[-1] >= 0.1
    assert_nested(trace.events())


def test_hops_nest(client: rrpc.Client, servers: list[LabServer], transport: str, tmp_path: Path) -> None:
    first, second, third = servers
    with rrpc.trace() as trace:
        client.call("Traced.by_way_of", [second.address(transport), third.address(transport)], 2)
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


def test_in_asyncio(servers: list[LabServer], transport: str) -> None:
    """At both ends; tasks inherit the trace, and what was begun before it doesn't have it."""
    first, second = (server.address(transport) for server in servers[:2])

    async def calls() -> tuple[rrpc.tracing.Trace, int]:
        async with rrpc.aio.connect(first, timeout=20.0) as client:
            before = asyncio.create_task(client.call("Traced.nap", 0.1))
            await asyncio.sleep(0)
            with rrpc.trace() as trace:
                naps = [asyncio.create_task(client.call("Traced.nap", 0.05)) for _ in range(5)]
                await asyncio.gather(*naps)
                asked = await client.call("Traced.ask", second, 3)
                with pytest.raises(rrpc.NotFound):
                    await client.call("Traced.fail")
            await before
            return trace, asked

    trace, asked = asyncio.run(calls())
    assert asked == 3
    *naps, ask, failed = trace.calls
    assert [call.method for call in naps] == ["Traced.nap"] * 5
    assert len(ask.children) == 3
    assert failed.error == "NOT_FOUND"
    for call in trace.all_calls():
        assert_no_gap(call)
        assert_in_order(call)
    for call in naps:
        assert call.phase_seconds("handler") >= 0.05
        assert call.server is not None
        assert call.server.pid == servers[0].pid
    assert_nested(trace.events())


def test_streams(client: rrpc.Client, servers: list[LabServer], transport: str) -> None:
    addresses = [server.address(transport) for server in servers]
    with rrpc.trace() as trace:
        assert len(list(rrpc.open_stream(client, "Traced.count", 50, 10))) == 50
        with rrpc.open_stream(client, "Traced.sum", sends=True, receives=False) as numbers:
            for number in range(20):
                numbers.send(number)
            assert numbers.finish() == 190
        assert list(rrpc.open_stream(client, "Traced.ask_each", addresses)) == [2, 2, 2]
        with rrpc.open_stream(client, "Traced.count", 1000, 10) as left:
            next(left)
    given, taken, asked, dropped = trace.calls
    assert (given.items_sent, given.items_received) == (0, 50)
    assert (taken.items_sent, taken.items_received) == (20, 0)
    assert [child.method for child in asked.children] == ["Traced.add"] * 3
    assert (dropped.items_received, dropped.error) == (1, "CANCELLED")
    for call in (*trace.calls, *asked.children):
        assert_no_gap(call)
    for call in (given, taken, asked):
        assert {"encode", "send", "handler"} <= set(names(call))
        assert call.server is not None
        assert call.server.pid == servers[0].pid
    assert_nested(trace.events())
    assert "20 items sent, 0 received" in str(trace)


def test_waits_for_room_in_a_stream_are_counted(servers: list[LabServer], transport: str) -> None:
    """The client takes nothing until the server has made more items than it may be ahead."""
    with rrpc.connect(servers[0].address(transport), timeout=30.0, stream_window_items=4) as client:
        with rrpc.trace() as trace:
            stream = rrpc.open_stream(client, "Traced.count", 100, 10)
            eventually(lambda: client.call("Traced.made") == 5)
            assert len(list(stream)) == 100
        given = trace.calls[0]
        assert (given.items_received, given.error) == (100, "")
        assert given.window_waits > 0


def test_waits_for_the_server_to_take_items_are_counted(client: rrpc.Client) -> None:
    sums = []

    def send() -> None:
        with rrpc.open_stream(client, "Traced.late_sum", sends=True, receives=False) as numbers:
            for _ in range(2000):
                numbers.send(1)
            sums.append(numbers.finish())

    with rrpc.trace() as trace:
        sender = threading.Thread(target=contextvars.copy_context().run, args=(send,))
        sender.start()
        eventually(lambda: trace.calls and trace.calls[0].window_waits == 1)
    client.call("Traced.go")
    sender.join()
    assert sums == [2000]
    assert trace.calls[0].items_sent == 2000


def test_nothing_is_collected_outside(client: rrpc.Client) -> None:
    with rrpc.trace() as trace:
        client.call("Traced.add", 1)
        with rrpc.trace() as inner:
            client.call("Traced.add", 2)
        client.call("Traced.add", 3)
    client.call("Traced.add", 4)
    assert (len(trace.calls), len(inner.calls)) == (3, 1)
    assert trace.calls[1] is inner.calls[0] or vars(trace.calls[1]) == vars(inner.calls[0])
    with pytest.raises(RuntimeError, match="make another one"), trace:
        pass
    client.call("Traced.add", 5)
    assert len(trace.calls) == 3


def test_threads_have_it_where_their_context_does(client: rrpc.Client) -> None:
    with rrpc.trace() as trace:
        plain = threading.Thread(target=client.call, args=("Traced.add", 1))
        copied = threading.Thread(
            target=contextvars.copy_context().run, args=(client.call, "Traced.add", 2), name="copied"
        )
        for thread in (plain, copied):
            thread.start()
            thread.join()
    assert [call.client.thread for call in trace.calls] == ["copied"]


@rrpc.service
class Flaky:
    """Its method fails, or takes its time, twice; then it gives how often it was called."""

    calls = 0

    @rrpc.method(idempotent=True)
    def at_last(self, pause: float) -> int:
        self.calls += 1
        if self.calls <= 2:
            time.sleep(pause)
            raise rrpc.Unavailable("not yet")
        return self.calls


def test_attempts() -> None:
    retry = rrpc.RetryPolicy(initial_backoff=0.03, jitter=0.0, budget=None)
    hedging = rrpc.HedgingPolicy(delay=0.02, max_attempts=3, codes=(), budget=None)
    kind = generate(Flaky).FlakyClient
    for options, pause in (({"retry": retry}, 0.0), ({"hedging": hedging}, 0.5)):
        with (
            rrpc.serve(Flaky(), listen="tcp://127.0.0.1:0") as server,
            kind(server.addresses[0], timeout=20.0, **options) as client,
            rrpc.trace() as trace,
        ):
            assert client.at_last(pause) == 3
        (call,) = trace.calls
        assert (call.attempts, call.error) == (3, "")
        assert_no_gap(call)
        assert_nested(trace.events())
        waited = call.phase_seconds("channel" if pause == 0 else "away")
        assert waited >= 0.04
        assert "(3 attempts)" in str(trace)


def test_calls_that_fail(client: rrpc.Client) -> None:
    with rrpc.trace() as trace:
        with pytest.raises(rrpc.NotFound):
            client.call("Traced.fail")
        with pytest.raises(rrpc.Unimplemented):
            client.call("Traced.nothing")
        with pytest.raises(rrpc.DeadlineExceeded):
            client.call("Traced.slow", 1.0, timeout=0.05)
        with pytest.raises(rrpc.InvalidArgument):
            client.call("Traced.add", object())
    failed, unknown, late, refused = trace.calls
    assert [call.error for call in trace.calls] == [
        "NOT_FOUND",
        "UNIMPLEMENTED",
        "DEADLINE_EXCEEDED",
        "INVALID_ARGUMENT",
    ]
    assert "handler" in names(failed)
    assert unknown.seconds > 0
    assert longest(late) == ("away", "client")
    assert refused.server is None
    for call in trace.calls:
        assert_no_gap(call)


def test_there_is_room_for_so_many_calls(servers: list[LabServer]) -> None:
    first, second = (server.address(TRANSPORTS[0]) for server in servers[:2])
    with rrpc.connect(first, timeout=30.0) as client, rrpc.trace() as trace:
        assert client.call("Traced.by_way_of", [second], 300) == 300
    (call,) = trace.calls
    assert len(call.children) + call.children_left_out == 300
    assert len(call.children) > 20
    assert f"... and {call.children_left_out} calls more" in str(trace)


@pytest.mark.parametrize(("at_server", "at_client"), [(150, 8192), (8192, 100), (30, 8192)])
def test_a_trace_has_room_in_the_metadata_or_goes_without(at_server: int, at_client: int) -> None:
    from lab_service import Lab

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
    with rrpc.connect(serve(MODULE, "Traced").address, timeout=30.0) as client:
        assert client.call("Traced.knows_tracing", metadata={"other": "x"}) is False
        with rrpc.trace():
            assert client.call("Traced.knows_tracing") is True


def test_it_is_imported_when_it_is_used() -> None:
    code = "import sys, rrpc; print('rrpc.tracing' in sys.modules)\nwith rrpc.trace(): pass\n"
    code += "print('rrpc.tracing' in sys.modules, 'rich' in sys.modules, 'json' in sys.modules)"
    assert run_python(code).stdout.split() == ["False", "True", "False", "False"]


def test_rrpc_call_shows_it(rrpc_call: Run, tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    status, out, err = rrpc_call("Kinds.plain", "a=5", "--trace", str(file))
    assert (status, json.loads(out)) == (0, [5, 0.5, False, "d", None])
    assert err.splitlines()[1].split()[0] == "Kinds.plain"
    assert {line.split()[0] for line in err.splitlines()[2:]} >= {"encode", "send", "handler", "reply"}
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
