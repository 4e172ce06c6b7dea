"""Traces of calls in asyncio, with streams, and of those made more than once."""

import asyncio
import contextvars
import threading
import time

import pytest
from lab import LabServer
from processes import eventually
from traced_service import Traced
from tracing_checks import assert_in_order, assert_nested, assert_no_gap, names
from two_versions import generate

import rrpc
import rrpc.aio
import rrpc.tracing


def test_in_asyncio(traced_servers: list[LabServer], transport: str) -> None:
    """At both ends; tasks inherit the trace, and what was begun before it doesn't have it."""
    first, second = (server.address(transport) for server in traced_servers[:2])

    async def calls() -> tuple[rrpc.tracing.Trace, int]:
        async with rrpc.aio.connect(first, timeout=20.0) as traced:
            before = asyncio.create_task(traced.call("Traced.nap", 0.1))
            await asyncio.sleep(0)
            with rrpc.trace() as trace:
                naps = [asyncio.create_task(traced.call("Traced.nap", 0.05)) for _ in range(5)]
                await asyncio.gather(*naps)
                asked = await traced.call("Traced.ask", second, 3)
                with pytest.raises(rrpc.NotFound):
                    await traced.call("Traced.fail")
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
        assert call.server.pid == traced_servers[0].pid
    assert_nested(trace.events())


def test_streams_in_asyncio(traced_servers: list[LabServer], transport: str) -> None:
    address = traced_servers[0].address(transport)
    kind = generate(Traced).AsyncTracedClient

    async def calls() -> rrpc.tracing.Trace:
        async with kind(address, timeout=20.0, stream_window_items=4) as client:
            with rrpc.trace() as trace:
                assert [item async for item in client.double_each([1, 2, 3] * 10)] == [2, 4, 6] * 10
                assert len([item async for item in client.count(50, 10)]) == 50
            return trace

    trace = asyncio.run(calls())
    doubled, given = trace.calls
    assert (doubled.items_sent, doubled.items_received) == (30, 30)
    assert (given.items_sent, given.items_received) == (0, 50)
    for call in trace.calls:
        assert_no_gap(call)
        assert call.server is not None
        assert {"encode", "handler"} <= set(names(call))


def test_streams(traced: rrpc.Client, traced_servers: list[LabServer], transport: str) -> None:
    addresses = [server.address(transport) for server in traced_servers]
    with rrpc.trace() as trace:
        assert len(list(rrpc.open_stream(traced, "Traced.count", 50, 10))) == 50
        with rrpc.open_stream(traced, "Traced.sum", sends=True, receives=False) as numbers:
            for number in range(20):
                numbers.send(number)
            assert numbers.finish() == 190
        assert list(rrpc.open_stream(traced, "Traced.ask_each", addresses)) == [2, 2, 2]
        with rrpc.open_stream(traced, "Traced.count", 100_000, 10) as left:
            next(left)
    given, taken, asked, dropped = trace.calls
    assert (given.items_sent, given.items_received) == (0, 50)
    assert (taken.items_sent, taken.items_received) == (20, 0)
    assert [child.method for child in asked.children] == ["Traced.add"] * 3
    assert (dropped.items_received, dropped.error) == (1, "CANCELLED")
    for call in (*trace.calls, *asked.children):
        assert_no_gap(call)
    for call in (given, taken, asked):
        assert {"encode", "handler"} <= set(names(call))
        assert call.server is not None
        assert call.server.pid == traced_servers[0].pid
    assert_nested(trace.events())
    assert "20 items sent, 0 received" in str(trace)


def test_waits_for_room_in_a_stream_are_counted(traced_servers: list[LabServer], transport: str) -> None:
    """The client takes nothing until the server has made more items than it may be ahead."""
    with rrpc.connect(traced_servers[0].address(transport), timeout=30.0, stream_window_items=4) as traced:
        with rrpc.trace() as trace:
            stream = rrpc.open_stream(traced, "Traced.count", 100, 10)
            eventually(lambda: traced.call("Traced.made") == 5)
            assert len(list(stream)) == 100
        given = trace.calls[0]
        assert (given.items_received, given.error) == (100, "")
        assert given.window_waits > 0


def test_waits_for_the_server_to_take_items_are_counted(traced: rrpc.Client) -> None:
    sums = []

    def send() -> None:
        with rrpc.open_stream(traced, "Traced.late_sum", sends=True, receives=False) as numbers:
            for _ in range(2000):
                numbers.send(1)
            sums.append(numbers.finish())

    with rrpc.trace() as trace:
        sender = threading.Thread(target=contextvars.copy_context().run, args=(send,))
        sender.start()
        eventually(lambda: trace.calls and trace.calls[0].window_waits == 1)
    traced.call("Traced.go")
    sender.join()
    assert sums == [2000]
    assert trace.calls[0].items_sent == 2000


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
    retry = rrpc.RetryPolicy(initial_backoff=0.1, jitter=0.0, budget=None)
    hedging = rrpc.HedgingPolicy(delay=0.2, max_attempts=3, codes=(), budget=None)
    kind = generate(Flaky).FlakyClient
    for options, pause in (({"retry": retry}, 0.0), ({"hedging": hedging}, 1.0)):
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
        assert waited >= 0.15  # at least 0.3, of which a part may have passed when the wait begins
        assert "(3 attempts)" in str(trace)


@rrpc.service
class Caller:
    @rrpc.method
    def name(self) -> str:
        return "the caller"


@rrpc.service
class Asking:
    @rrpc.method
    def ask(self) -> str:
        answer: str = rrpc.context().client().call("Caller.name")
        return answer


def test_calls_back_to_the_client() -> None:
    with (
        rrpc.serve(Asking(), listen="tcp://127.0.0.1:0") as server,
        rrpc.Server(Caller()).start() as own,
        rrpc.connect(server.addresses[0], serve=own, timeout=20.0) as client,
        rrpc.trace() as trace,
    ):
        assert client.call("Asking.ask") == "the caller"
    (call,) = trace.calls
    assert [child.method for child in call.children] == ["Caller.name"]
    for each in trace.all_calls():
        assert_no_gap(each)
        assert "handler" in names(each)


@rrpc.service
class Spoken:
    """Its reply's metadata leaves no room for more."""

    @rrpc.method
    def ask(self, address: str) -> int:
        rrpc.context().set_metadata({"long": "x" * 7000})
        with rrpc.connect(address, timeout=20.0) as client:
            given: int = client.call("Traced.add", 1)
        return given


@pytest.mark.parametrize("room", ["20", "6000"])
def test_a_reply_that_has_no_room_for_a_trace(traced_servers: list[LabServer], room: str) -> None:
    """However little of it a caller asks for."""
    with (
        rrpc.serve(Spoken(), listen="tcp://127.0.0.1:0") as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        future = client.start("Spoken.ask", traced_servers[0].address("tcp"), metadata={"rrpc-trace": room})
        assert future.result() == 2
