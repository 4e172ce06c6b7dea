"""Streams of every kind through generated clients, over every transport."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flow import flow_rpc, nothing_left
from processes import eventually, patience

import rrpc


def test_a_stream_of_results(flow: Any) -> None:
    assert list(flow.count(5)) == [0, 1, 2, 3, 4]
    assert list(flow.count(0)) == []
    assert list(flow.count(1000)) == list(range(1000))
    rows = list(flow.rows(3, name="x"))
    assert rows == [flow_rpc.Row(i, "x", i / 2) for i in range(3)]


def test_a_stream_of_arguments(flow: Any) -> None:
    assert flow.add(range(1000)) == 499_500
    assert flow.add([]) == 0
    assert flow.add(i * i for i in range(4)) == 14


def test_items_sent_one_by_one(flow: Any) -> None:
    with flow.add.open() as values:
        for value in (1, 2, 3):
            values.send(value)
        assert values.finish() == 6


def test_streams_both_ways(flow: Any) -> None:
    assert list(flow.sums([1, 2, 3])) == [1, 3, 6]
    with flow.sums.open() as stream:
        for value, total in ((1, 1), (2, 3), (3, 6)):
            stream.send(value)
            assert next(stream) == total
        stream.finish()
        assert list(stream) == []


def test_requests_that_wait_for_answers(flow: Any) -> None:
    """The iterable is gone through beside the answers."""
    answered: list[int] = []
    seen = threading.Semaphore(1)

    def values() -> Iterator[int]:
        for value in range(20):
            assert seen.acquire(timeout=patience(10))
            assert len(answered) == value
            yield value

    for total in flow.sums(values()):
        answered.append(total)
        seen.release()
    assert answered == [sum(range(i + 1)) for i in range(20)]


def test_items_come_at_once(flow: Any) -> None:
    """A producer that pauses has its items out: the last waits here for what this end does about the others."""
    stream = flow.waits(100)
    assert [next(stream) for _ in range(99)] == list(range(99))
    flow.go_on()
    assert list(stream) == [99]


def test_arrays_are_passed_by_descriptor(flow: Any) -> None:
    with nothing_left(flow):
        for i, block in enumerate(flow.blocks(5, 300_000)):
            assert block.shape == (300_000,)
            assert (block == i).all()
            block[0] = 7  # they are the receiver's own
        del block
        blocks = (np.full(200_000, i, np.uint8) for i in range(5))
        assert flow.weigh(blocks) == 1_000_000


def test_no_more_copies_than_of_unary_calls(flow: Any) -> None:
    count, size = 4, 1 << 20
    names = ("bytes_copied", "packs", "unpacks")

    def counts() -> dict[str, int]:
        here, there = rrpc.stats(), flow.usage()
        return {name: here[name] + there[name] for name in (*names, "bytes_read")}

    list(flow.blocks(1, size))
    before = counts()
    for block in flow.blocks(count, size):
        assert block.nbytes == size
    after = counts()
    assert after["bytes_read"] - before["bytes_read"] == count * size
    assert {name: after[name] - before[name] for name in names if after[name] - before[name] >= size} == {}


def test_an_error_comes_after_the_items(flow: Any) -> None:
    stream = flow.count(3, fail=True)
    assert [next(stream), next(stream), next(stream)] == [0, 1, 2]
    with pytest.raises(rrpc.NotFound, match="no more") as caught:
        next(stream)
    assert caught.value.details == {"n": 3}


def test_an_error_before_any_item(flow: Any) -> None:
    with pytest.raises(rrpc.FailedPrecondition, match="not today"):
        list(flow.refuse(range(5)))
    with pytest.raises(rrpc.InvalidArgument, match=r"Flow\.count\(\): argument 'n'"):
        flow.count("five")


def test_an_item_that_is_not_as_declared(flow: Any) -> None:
    stream = flow.wrong()
    assert next(stream) == 1
    with pytest.raises(rrpc.Internal, match="an item of the result isn't as declared: expected int, got str"):
        next(stream)
    with pytest.raises(rrpc.InvalidArgument, match="an item of 'values' isn't as declared"):
        flow.add([1, "two"])
    with pytest.raises(rrpc.InvalidArgument, match="an item of 'values' isn't as declared"):
        list(flow.sums([1, "two"]))
    assert flow.add([1]) == 1


def test_what_the_callers_own_iterable_raises(flow: Any) -> None:
    closed: list[int] = []

    def values() -> Iterator[int]:
        try:
            yield 1
            raise KeyError("mine")
        finally:
            closed.append(1)

    with nothing_left(flow):
        with pytest.raises(KeyError, match="mine"):
            flow.add(values())
        with pytest.raises(KeyError, match="mine"):
            list(flow.sums(values()))
        assert closed == [1, 1]


def test_a_handler_that_ends_before_its_items(flow: Any) -> None:
    def endless() -> Iterator[int]:
        value = 41
        while True:
            value += 1
            yield value

    def endless_blocks() -> Iterator[Any]:
        while True:
            yield np.zeros(100_000, np.uint8)

    with nothing_left(flow):
        assert flow.first(endless()) == 42
        with pytest.raises(rrpc.FailedPrecondition):
            list(flow.refuse(endless()))
        assert flow.first_block(endless_blocks()) == 100_000
        gc.collect()


@pytest.mark.parametrize("how", ["break", "close", "with", "drop", "cancel", "never"])
def test_leaving_a_stream_early_ends_it(flow: Any, how: str) -> None:
    with nothing_left(flow):
        stream = flow.count(1 << 40)
        if how == "break":
            for value in stream:
                if value == 3:
                    break
            stream.close()
        elif how == "with":
            with stream:
                next(stream)
        elif how == "drop":
            next(stream)
            del stream
        elif how == "never":
            eventually(lambda: flow.counts()["begun"] > flow.counts()["closed"])
            del stream
        else:
            next(stream)
            getattr(stream, how)()
        gc.collect()


def test_a_loop_over_a_stream_that_has_no_name(flow: Any) -> None:
    with nothing_left(flow):
        for value in flow.count(1 << 40):
            if value == 3:
                break


def test_cancelled_while_it_waits(flow: Any) -> None:
    stream = flow.waits(2)
    assert next(stream) == 0
    timer = threading.Timer(0.05, stream.cancel)
    timer.start()
    with pytest.raises(rrpc.Cancelled):
        next(stream)
    timer.join()
    flow.go_on()


def test_a_deadline(flow: Any) -> None:
    with pytest.raises(rrpc.DeadlineExceeded):
        for _ in flow.waits(2, timeout=0.1):
            pass
    flow.go_on()


def test_misuse_is_named(flow: Any) -> None:
    stream = flow.count(2)
    assert list(stream) == [0, 1]
    with pytest.raises(RuntimeError, match="has ended, its items are given once; call the method again"):
        list(stream)
    stream = flow.count(5)
    stream.close()
    for use in (iter, next):
        with pytest.raises(RuntimeError, match="the stream is closed"):
            use(stream)
    values = flow.add.open()
    values.send(1)
    assert values.finish() == 1
    with pytest.raises(RuntimeError, match=r"send\(\) after finish\(\)"):
        values.send(2)
    with pytest.raises(RuntimeError, match=r"finish\(\) for the second time"):
        values.finish()
    values = flow.add.open()
    values.close()
    with pytest.raises(RuntimeError, match=r"send\(\) after close\(\)"):
        values.send(2)
    with pytest.raises(rrpc.InvalidArgument, match="takes an iterable of items, not int"):
        flow.add(5)


def test_a_loop_goes_on_where_the_last_was_left(flow: Any) -> None:
    stream = flow.count(5)
    for value in stream:
        if value == 1:
            break
    assert list(stream) == [2, 3, 4]


def test_the_handlers_context_is_its_own_throughout(flow: Any) -> None:
    assert list(flow.whoever()) == ["Flow.whoever"] * 3


def test_unary_and_stream_calls_take_the_others_for_none(flow: Any) -> None:
    for name in ("count", "later"):
        text = rf"Flow\.{name}\(\) takes arguments and gives a stream"
        with pytest.raises(rrpc.Unimplemented, match=text) as raised:
            flow.call(f"Flow.{name}", 5)
        assert raised.value.not_executed


def test_metadata_at_both_ends(flow: Any) -> None:
    stream = flow.badges(metadata={"badge": "blue"})
    assert next(stream) == "blue"
    assert stream.initial_metadata() == {"room": "7"}
    assert list(stream) == []
    assert stream.metadata() == {"left": "at noon"}
    stream = flow.badges(fail=True, metadata={"badge": "blue"})
    with pytest.raises(rrpc.Aborted) as caught:
        list(stream)
    assert caught.value.metadata == {"left": "at noon"}


@rrpc.service
class Meeting:
    def __init__(self) -> None:
        self.both = threading.Barrier(2)

    @rrpc.method
    def hold(self, values: Iterator[int]) -> int:
        return sum(values)

    @rrpc.method
    def meet(self) -> None:
        self.both.wait(patience(5))


def test_a_handler_that_waits_for_items_leaves_calls_to_workers_that_are_idle(address: str) -> None:
    """It takes in what arrives on its connection, and two workers have to be told of two calls."""
    with (
        rrpc.serve(Meeting(), listen=address, workers=3) as server,
        rrpc.connect(server.addresses[0], timeout=patience(20)) as client,
        rrpc.open_stream(client, "Meeting.hold", sends=True, receives=False) as held,
    ):
        for round in range(12):
            held.send(round)
            time.sleep(0.05)  # until the workers sleep; before that the test would show less, not fail
            for call in [client.start("Meeting.meet") for _ in range(2)]:
                call.result()
        assert held.finish() == sum(range(12))
