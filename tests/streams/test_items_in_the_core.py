"""Items that the core packs and reads by their plan: no Python of rrpc's runs for them, and users see no difference."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from flow import generated
from numpy.typing import NDArray
from processes import eventually

import rrpc
from rrpc._interface.compiled import PURE_PYTHON
from rrpc.interceptors import ClientInterceptor

pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="all items go through Python")
FOLDER = os.path.dirname(rrpc.__file__)
COUNT = 20_000
REFUSED = 2000


@dataclasses.dataclass
class Picky:
    number: int


@dataclasses.dataclass
class Row:
    number: int
    name: str


@rrpc.service
class Flow:
    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.permits = threading.Semaphore(0)

    @rrpc.method
    def rows(self, count: int) -> Iterator[Row]:
        for number in range(count):
            yield Row(number, "row")

    @rrpc.method
    def total(self, numbers: Iterator[int]) -> int:
        return sum(numbers)

    @rrpc.method
    def first(self, items: Iterator[bytes]) -> bytes:
        return next(items)

    @rrpc.method
    def echo(self, items: Iterator[float]) -> Iterator[float]:
        yield from items

    @rrpc.method
    def picky(self, count: int) -> Iterator[Picky]:
        yield from map(Picky, range(count))

    @rrpc.method
    def slow(self) -> Iterator[int]:
        """Gives an item for each permit, after more than a slice of time."""
        for number in range(100):
            self.permits.acquire(timeout=20.0)
            self.go_on.wait(0.006)
            yield number

    @rrpc.method
    def ping(self) -> None:
        """Does nothing."""

    @rrpc.method
    def burst(self, count: int) -> Iterator[int]:
        """Gives so many items at once, and the last when ``go_on`` is set."""
        yield from range(count)
        yield count if self.go_on.wait(20.0) else -1

    @rrpc.method
    def odd(self, what: str) -> Iterator[int]:
        """Gives items of which some aren't as declared, or fails in between."""
        yield 1
        yield np.int64(2)  # type: ignore[misc]
        if what == "wrong":
            yield "three"  # type: ignore[misc]
        if what == "fails":
            raise rrpc.NotFound("no third")
        yield 3

    @rrpc.method
    def arrays(self, count: int) -> Iterator[NDArray[np.float64]]:
        for number in range(count):
            yield np.full(4000 if number % 2 else 40, float(number))


flow_rpc = generated(Flow, "flow_items_rpc")


@pytest.fixture
def flow() -> Flow:
    return Flow()


@pytest.fixture
def client(flow: Flow, transport: str, new_address: Any) -> Iterator[Any]:
    with (
        rrpc.Server(flow, listen=new_address(transport), workers=2) as server,
        flow_rpc.FlowClient(server.addresses[0], timeout=30.0) as client,
    ):
        yield client


def numbers_of(rows: Any) -> list[int]:
    return [row.number for row in rows]


def test_no_python_packs_or_reads_an_item(client: Any) -> None:
    ran: Counter[str] = Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            ran[frame.f_code.co_name] += 1

    def most(kind: str) -> int:
        """How often one function ran whose name has this."""
        return max((count for name, count in ran.items() if kind in name), default=0)

    sys.setprofile(profile)
    try:
        assert numbers_of(client.rows(COUNT)) == list(range(COUNT))
        assert client.total(iter(range(COUNT))) == sum(range(COUNT))
        counted = most("code"), most("_read"), most("send")
        ran.clear()
        assert client.total(np.int64(number) for number in range(COUNT)) == sum(range(COUNT))
    finally:
        sys.setprofile(None)
    # Python packs the first 1024 that are sent: they are kept in case that the call is made again.
    assert max(counted) < COUNT // 10, counted
    assert most("encode") >= COUNT, "so it can see some"


def test_items_that_the_plan_leaves_to_python_keep_their_place(client: Any) -> None:
    assert list(client.odd("right")) == [1, 2, 3]
    assert client.total([1, np.int64(2), True, 3]) == 7
    assert list(client.echo([1.5, 2, np.float32(0.5), 4.5])) == [1.5, 2.0, 0.5, 4.5]


@pytest.mark.parametrize("what", ["wrong", "fails"])
def test_items_before_a_fault_come_first(client: Any, what: str) -> None:
    stream = client.odd(what)
    assert [next(stream), next(stream)] == [1, 2]
    error, text = (
        (rrpc.Internal, "an item of the result isn't as declared")
        if what == "wrong"
        else (
            rrpc.NotFound,
            "no third",
        )
    )
    with pytest.raises(error, match=text):
        next(stream)


def test_a_fault_among_the_items_sent(client: Any) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="an item of 'numbers' isn't as declared"):
        client.total([1, 2, "three"])

    def failing() -> Iterator[int]:
        yield 1
        raise LookupError("no second")

    with pytest.raises(LookupError, match="no second"):
        client.total(failing())
    assert client.total([1, 2]) == 3


def test_endless_items_without_a_frame_let_others_run(client: Any) -> None:
    ticks, stop = itertools.count(), threading.Event()
    seen = [0]

    def tick() -> None:
        while not stop.is_set():
            seen[0] = next(ticks)

    other = threading.Thread(target=tick)
    other.start()
    try:
        assert client.first(itertools.repeat(b"again")) == b"again"
        before = seen[0]
        eventually(lambda: seen[0] > before)
    finally:
        stop.set()
        other.join()


def test_buffers_and_small_arrays_by_turns(client: Any) -> None:
    found = list(client.arrays(9))
    assert [array.size for array in found] == [40, 4000] * 4 + [40]
    for number, array in enumerate(found):
        assert (array == number).all()
        assert array.flags.writeable


@pytest.mark.parametrize("count", [1, 31, 32, 33, 63, 64, 500, 5000])
def test_no_item_waits_for_one_that_stays_away(client: Any, flow: Flow, count: int) -> None:
    """Items that follow each other share system calls, which must not keep the last of them back."""
    stream = client.burst(count)
    assert [next(stream) for _ in range(count)] == list(range(count))
    flow.go_on.set()
    assert list(stream) == [count]


@pytest.mark.parametrize("count", [32, 33, 2000])
def test_no_sent_item_waits_for_one_that_stays_away(client: Any, count: int) -> None:
    echoed = threading.Event()

    def items() -> Iterator[float]:
        yield from map(float, range(count))
        yield 1.0 if echoed.wait(20.0) else -1.0

    stream = client.echo(items())
    assert [next(stream) for _ in range(count)] == list(range(count))
    echoed.set()
    assert list(stream) == [1.0]


def test_items_before_one_that_its_class_refuses_come_first(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = flow_rpc.Picky.__init__

    def refuse(self: Any, number: int) -> None:
        if number == REFUSED:
            raise LookupError("not this one")
        make(self, number)

    monkeypatch.setattr(flow_rpc.Picky, "__init__", refuse)
    stream = client.picky(REFUSED + 50)
    assert [next(stream).number for _ in range(REFUSED)] == list(range(REFUSED))
    with pytest.raises(LookupError, match="not this one"):
        next(stream)


def test_a_slow_stream_leaves_its_worker_to_others(flow: Flow, transport: str, new_address: Any) -> None:
    with (
        rrpc.Server(flow, listen=new_address(transport), workers=1) as server,
        flow_rpc.FlowClient(server.addresses[0], timeout=30.0) as client,
    ):
        stream = client.slow()
        flow.permits.release()
        assert next(stream) == 0
        ping = client.ping.start()
        for _ in range(10):
            flow.permits.release()
            next(stream)
            with suppress(TimeoutError):
                ping.result(0.1)
                break
        assert ping.done(), "the stream has its worker for as long as it likes"
        stream.close()
        flow.permits.release(100)


class Doubling(ClientInterceptor):
    def stream(self, call: Any) -> Any:
        call.map_sent(lambda item: item * 2)
        call.map_received(lambda item: item + 1)
        return (yield call)


def test_interceptors_see_each_item(client: Any) -> None:
    watched = client.with_options(interceptors=[Doubling()])
    assert list(watched.echo(iter([1.0, 2.0, 3.0]))) == [3.0, 5.0, 7.0]
    assert watched.total([1, 2, 3]) == 12
