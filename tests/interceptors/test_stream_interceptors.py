"""Interceptors around calls with streams, at both ends."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from processes import eventually

import rrpc
from rrpc.interceptors import ClientLogging, ClientToken, ServerLogging, ServerToken, Sleep

Steps = Generator[Any, Any, Any]
Serving = Callable[..., Any]


@rrpc.service
class Numbers:
    def __init__(self) -> None:
        self.begun: list[str] = []

    @rrpc.method
    def up_to(self, end: int, *, start: int = 0) -> Iterator[int]:
        self.begun.append("up_to")
        for number in range(start, end):
            if number == 13:
                raise rrpc.OutOfRange("not 13")
            yield number

    @rrpc.method
    def total(self, numbers: Iterator[int]) -> int:
        self.begun.append("total")
        return sum(numbers)

    @rrpc.method
    def first(self, numbers: Iterator[int]) -> int:
        for number in numbers:
            return number
        raise rrpc.NotFound("there is none")

    @rrpc.method
    def doubled(self, numbers: Iterator[int]) -> Iterator[int]:
        self.begun.append("doubled")
        for number in numbers:
            yield number * 2

    @rrpc.method
    def arrays(self, count: int) -> Iterator[NDArray[np.float64]]:
        for number in range(count):
            yield np.full(100_000, float(number))


class AsyncNumbers(Numbers):
    """The same with async handlers."""

    async def up_to(self, end: int, *, start: int = 0) -> AsyncIterator[int]:  # type: ignore[override]
        for number in super().up_to(end, start=start):
            await asyncio.sleep(0)
            yield number

    async def total(self, numbers: AsyncIterator[int]) -> int:  # type: ignore[override]
        self.begun.append("total")
        return sum([number async for number in numbers])

    async def first(self, numbers: AsyncIterator[int]) -> int:  # type: ignore[override]
        async for number in numbers:
            return number
        raise rrpc.NotFound("there is none")

    async def doubled(self, numbers: AsyncIterator[int]) -> AsyncIterator[int]:  # type: ignore[override]
        async for number in numbers:
            yield number * 2

    async def arrays(self, count: int) -> AsyncIterator[NDArray[np.float64]]:  # type: ignore[override]
        for values in super().arrays(count):
            yield values


class Hooked:
    """For either end: keeps what it saw, and replaces items."""

    def __init__(self, name: str = "", step: int = 0) -> None:
        self.name = name
        self.step = step
        self.facts: dict[str, Any] = {}
        self.items: dict[str, list[Any]] = {"sent": [], "received": []}
        self.ended: list[BaseException | None] = []

    def stream(self, call: Any) -> Steps:
        self.facts = {"method": call.method, "arguments": dict(call.arguments), "peer": call.peer}
        self.facts["metadata"] = dict(call.metadata)
        call.map_sent(lambda item: self._see("sent", item))
        call.map_received(lambda item: self._see("received", item))
        call.on_end(self.ended.append)
        return (yield call)

    def _see(self, way: str, item: Any) -> Any:
        self.items[way].append(item)
        return item + self.step


class AtClient(Hooked, rrpc.ClientInterceptor):
    pass


class AtServer(Hooked, rrpc.ServerInterceptor):
    pass


class Around(rrpc.ClientInterceptor):
    def __init__(self, stream: Callable[[Any], Steps]) -> None:
        self._stream = stream

    def stream(self, call: Any) -> Steps:
        return (yield from self._stream(call))


class AroundHandler(rrpc.ServerInterceptor):
    def __init__(self, stream: Callable[[Any], Steps]) -> None:
        self._stream = stream

    def stream(self, call: Any) -> Steps:
        return (yield from self._stream(call))


@pytest.fixture(params=[Numbers, AsyncNumbers])
def numbers(request: pytest.FixtureRequest) -> Serving:
    """Gives what gives a service and its client, out of the address and the interceptors of both ends."""

    @contextmanager
    def serving(address: str, client: Any = (), server: Any = ()) -> Iterator[tuple[Numbers, rrpc.Client]]:
        service = request.param()
        with (
            rrpc.serve(service, listen=address, interceptors=server) as served,
            rrpc.connect(served.addresses[0], timeout=30.0, interceptors=client) as connected,
        ):
            yield service, connected

    return serving


def test_items_of_the_server(numbers: Serving, address: str) -> None:
    here, there = AtClient(step=100), AtServer(step=10)
    with numbers(address, [here], [there]) as (_, client):
        assert list(rrpc.open_stream(client, "Numbers.up_to", 3, start=1)) == [111, 112]
        eventually(lambda: there.ended)
    assert here.items == {"sent": [], "received": [11, 12]}
    assert there.items == {"sent": [1, 2], "received": []}
    assert here.ended == there.ended == [None]
    assert there.facts["arguments"] == {"end": 3, "start": 1}
    assert here.facts["arguments"] == {0: 3, "start": 1}
    assert here.facts["method"] == there.facts["method"] == "Numbers.up_to"
    assert here.facts["peer"]
    assert there.facts["peer"]


def test_items_of_the_client(numbers: Serving, address: str) -> None:
    here, there = AtClient(step=100), AtServer(step=10)
    with numbers(address, [here], [there]) as (_, client):
        with rrpc.open_stream(client, "Numbers.total", sends=True, receives=False) as stream:
            for number in (1, 2):
                stream.send(number)
            assert stream.finish() == 223
        eventually(lambda: there.ended)
    assert here.items == {"sent": [1, 2], "received": []}
    assert there.items == {"sent": [], "received": [101, 102]}
    assert here.ended == there.ended == [None]


def test_items_of_both(numbers: Serving, address: str) -> None:
    here, there = AtClient(step=100), AtServer(step=10)
    with numbers(address, [here], [there]) as (_, client):
        with rrpc.open_stream(client, "Numbers.doubled", sends=True) as stream:
            stream.send(1)
            assert next(stream) == 2 * (1 + 100 + 10) + 10 + 100
            stream.finish()
            assert list(stream) == []
        eventually(lambda: there.ended)
    assert here.ended == there.ended == [None]


@pytest.mark.parametrize("end", ["client", "server"])
def test_the_first_is_the_outermost(numbers: Serving, address: str, end: str) -> None:
    """The outermost is next to the caller, and next to the wire at a server."""

    def appending(name: str) -> Any:
        def stream(call: Any) -> Steps:
            call.map_sent(lambda item: item * 10 + int(name))
            call.map_received(lambda item: item * 10 + int(name))
            return (yield call)

        return Around(stream) if end == "client" else AroundHandler(stream)

    around = [appending("1"), appending("2")]
    given: dict[str, Any] = {end: around}
    with numbers(address, **given) as (_, client):
        with rrpc.open_stream(client, "Numbers.total", sends=True, receives=False) as stream:
            stream.send(0)
            assert stream.finish() == 12
        assert list(rrpc.open_stream(client, "Numbers.up_to", 1)) == [21]


def test_how_streams_end(numbers: Serving, address: str) -> None:
    here, there = AtClient(), AtServer()
    with numbers(address, [here], [there]) as (_, client):
        with pytest.raises(rrpc.OutOfRange, match="not 13"):
            list(rrpc.open_stream(client, "Numbers.up_to", 20))
        eventually(lambda: there.ended)
        assert [type(error) for error in here.ended + there.ended] == [rrpc.OutOfRange, rrpc.OutOfRange]
        with rrpc.open_stream(client, "Numbers.up_to", 1 << 40, start=14) as stream:
            assert next(stream) == 14
        eventually(lambda: len(there.ended) == 2)
        assert [type(error) for error in (here.ended[1], there.ended[1])] == [rrpc.Cancelled, rrpc.Cancelled]


def test_a_server_that_stops_ends_parked_streams(numbers: Serving, address: str) -> None:
    there = AtServer()
    with numbers(address, server=[there]) as (_, client):
        stream = rrpc.open_stream(client, "Numbers.up_to", 1 << 40, start=14)
        assert next(stream) == 14
    eventually(lambda: len(there.ended) == 1)
    assert there.ended[0] is not None


def test_calls_that_dont_begin(numbers: Serving, address: str) -> None:
    def refuse(call: Any) -> Steps:
        if call.method == "Numbers.up_to":
            raise rrpc.ResourceExhausted("not today")
        return (yield call)

    here = AtClient()
    with numbers(address, [here], [AroundHandler(refuse)]) as (service, client):
        with pytest.raises(rrpc.ResourceExhausted, match="not today") as raised:
            list(rrpc.open_stream(client, "Numbers.up_to", 3))
        assert raised.value.not_executed
        assert [type(error) for error in here.ended] == [rrpc.ResourceExhausted]
        assert service.begun == []

    here = AtClient()
    with numbers(address, [here, Around(refuse)]) as (service, client):
        with pytest.raises(rrpc.ResourceExhausted, match="not today"):
            rrpc.open_stream(client, "Numbers.up_to", 3)
        assert [type(error) for error in here.ended] == [rrpc.ResourceExhausted]
        assert service.begun == []


def test_what_a_handler_raised_has_been_executed(numbers: Serving, address: str) -> None:
    with numbers(address, [AtClient()], [AtServer()]) as (_, client):
        stream = rrpc.open_stream(client, "Numbers.first", sends=True, receives=False)
        with pytest.raises(rrpc.NotFound, match="there is none") as raised:
            stream.finish()
        assert not raised.value.not_executed


def test_metadata_and_sleep(numbers: Serving, address: str) -> None:
    def add(call: Any) -> Steps:
        call.metadata["added"] = "yes"
        yield Sleep(0.001)
        return (yield call)

    def sleepy(call: Any) -> Steps:
        yield Sleep(0.001)
        return (yield call)

    there = AtServer()
    with numbers(address, [Around(add)], [there, AroundHandler(sleepy)]) as (_, client):
        assert list(rrpc.open_stream(client, "Numbers.up_to", 2, metadata={"mine": "too"})) == [0, 1]
    assert there.facts["metadata"] == {"mine": "too", "added": "yes"}


def test_a_server_may_answer_in_the_handlers_place(numbers: Serving, address: str) -> None:
    def answer(call: Any) -> Steps:
        if call.method == "Numbers.up_to":
            return iter([7, 8])
        if call.method == "Numbers.total":
            return 9
        return (yield call)

    with numbers(address, server=[AroundHandler(answer)]) as (service, client):
        assert list(rrpc.open_stream(client, "Numbers.up_to", 100)) == [7, 8]
        with rrpc.open_stream(client, "Numbers.total", sends=True, receives=False) as stream:
            assert stream.finish() == 9
    assert service.begun == []


def test_items_stay_as_declared(numbers: Serving, address: str) -> None:
    class Wrong(rrpc.ServerInterceptor):
        def stream(self, call: Any) -> Steps:
            call.map_sent(str)
            return (yield call)

    with (
        numbers(address, server=[Wrong()]) as (_, client),
        pytest.raises(rrpc.Internal, match="expected int, got str"),
    ):
        list(rrpc.open_stream(client, "Numbers.up_to", 3))


@pytest.mark.parametrize("end", ["client", "server"])
def test_an_error_of_a_hook_ends_the_stream(numbers: Serving, address: str, end: str) -> None:
    def fails(item: Any) -> Any:
        if item == 2:
            raise rrpc.DataLoss("two")
        return item

    def hooked(call: Any) -> Steps:
        call.map_sent(fails)
        call.map_received(fails)
        return (yield call)

    given: dict[str, Any] = {end: [Around(hooked) if end == "client" else AroundHandler(hooked)]}
    with numbers(address, **given) as (_, client), pytest.raises(rrpc.DataLoss, match="two"):
        list(rrpc.open_stream(client, "Numbers.up_to", 1 << 40, start=0))


def test_arrays_pass_through(numbers: Serving, address: str) -> None:
    here, there = AtClient(step=1), AtServer(step=10)
    with numbers(address, [here], [there]) as (_, client):
        for index, values in enumerate(rrpc.open_stream(client, "Numbers.arrays", 3)):
            assert (values == index + 11).all()


def test_faulty_ones(numbers: Serving, address: str) -> None:
    def three(call: Any) -> Steps:
        yield 3

    def twice(call: Any) -> Steps:
        yield call
        return (yield call)

    def other(call: Any) -> Steps:
        yield call
        return [1, 2]

    for client, server, error, text in (
        ([Around(three)], [], TypeError, r"stream\(\) in line \d+ yielded 3: an interceptor yields its call"),
        ([Around(other)], [], TypeError, r"an interceptor's stream\(\) returned list; it returns what"),
        ([], [AroundHandler(three)], rrpc.RemoteError, r"stream\(\) in line \d+ yielded 3"),
        ([], [AroundHandler(twice)], rrpc.RemoteError, "yielded the call a second time"),
    ):
        with numbers(address, client, server) as (_, connected), pytest.raises(error, match=text):
            list(rrpc.open_stream(connected, "Numbers.up_to", 3))


def test_calls_that_reach_no_handler_are_seen(numbers: Serving, address: str) -> None:
    """Whether such a method is there at all, and takes such arguments, is nothing that interceptors wait for."""
    seen: list[str] = []
    ended: list[BaseException | None] = []

    def look(call: Any) -> Steps:
        seen.append(call.method)
        call.on_end(ended.append)
        return (yield call)

    with numbers(address, server=[AroundHandler(look)]) as (service, client):
        with pytest.raises(rrpc.InvalidArgument, match="'end': expected int, got str") as raised:
            list(rrpc.open_stream(client, "Numbers.up_to", "x"))
        assert raised.value.not_executed
        for name, text in (
            ("Numbers.sell", "Numbers has no method 'sell'; it has"),
            ("Bank.sell", "there is no service 'Bank' here"),
            (
                "Numbers.total",
                r"has arguments and gives a stream: use .*'Numbers.total', sends=True, receives=False\)$",
            ),
            ("rrpc.Health.check", r"the call has .*: use client.call\('rrpc.Health.check', ...\)$"),
        ):
            with pytest.raises(rrpc.Unimplemented, match=text) as unknown:
                list(rrpc.open_stream(client, name))
            assert unknown.value.not_executed
        eventually(lambda: len(ended) == 5)
        assert service.begun == []
    assert seen == ["Numbers.up_to", "Numbers.sell", "Bank.sell", "Numbers.total", "rrpc.Health.check"]
    assert sorted(type(error).__name__ for error in ended) == ["InvalidArgument", *["Unimplemented"] * 4]


def test_unary_calls_arent_theirs(numbers: Serving, address: str) -> None:
    here, there = AtClient(), AtServer()
    with numbers(address, [here], [there]) as (_, client):
        client.call("rrpc.Health.check", "")
    assert here.facts == there.facts == {}


# Ready-made


def test_logging(numbers: Serving, address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rrpc.calls")
    with numbers(address, [ClientLogging()], [ServerLogging()]) as (_, client):
        with pytest.raises(rrpc.OutOfRange):
            list(rrpc.open_stream(client, "Numbers.up_to", 20, start=11))
        with rrpc.open_stream(client, "Numbers.total", sends=True, receives=False) as stream:
            stream.send(1)
            stream.finish()

        def records() -> list[Any]:
            return [record for record in caplog.records if record.name == "rrpc.calls"]

        eventually(lambda: len(records()) == 4)
    fields = sorted(
        (r.rpc_method, r.rpc_side, r.levelname, r.rpc_code, r.rpc_items_sent, r.rpc_items_received)
        for r in records()
    )
    assert fields == [
        ("Numbers.total", "client", "INFO", "OK", 1, 0),
        ("Numbers.total", "server", "INFO", "OK", 0, 1),
        ("Numbers.up_to", "client", "WARNING", "OUT_OF_RANGE", 0, 2),
        ("Numbers.up_to", "server", "WARNING", "OUT_OF_RANGE", 2, 0),
    ]
    assert all(record.rpc_peer for record in records())


def test_tokens(numbers: Serving, address: str) -> None:
    guard = ServerToken("right")
    with numbers(address, [ClientToken("right", allow_clear=True)], [guard]) as (_, client):
        assert list(rrpc.open_stream(client, "Numbers.up_to", 2)) == [0, 1]
    with numbers(address, [], [guard]) as (service, client):
        for name, arguments in (
            ("Numbers.up_to", [2]),
            ("Numbers.up_to", ["x"]),
            ("Numbers.up_to", []),
            ("Numbers.total", []),
            ("Numbers.sell", []),
            ("Bank.sell", []),
        ):
            with pytest.raises(rrpc.Unauthenticated) as raised:
                list(rrpc.open_stream(client, name, *arguments))
            assert raised.value.not_executed
        assert service.begun == []
