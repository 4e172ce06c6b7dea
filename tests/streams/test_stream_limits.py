"""Streams whose other end is slow, stopped, killed or simply many."""

import gc
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flow import FLOW, flow_rpc, held, nothing_left
from flow_service import Flow
from lab import LabServer
from processes import (
    HELPERS,
    Served,
    ServeFactory,
    child_environment,
    cpu_seconds,
    eventually,
    patience,
    volume,
)

import rrpc
from rrpc._server.dispatch import Dispatch
from rrpc._server.served_stream import PARKED, ServedStreams
from rrpc._server.worker import Worker

WINDOW = 16
IN_HANDS = 2  # an item that was taken, and one that waits for room


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(FLOW, "Flow", listen=transport, module="flow_service", args=["--workers", "4"])


@pytest.fixture
def narrow(flow_address: str) -> Iterator[Any]:
    """A client with a small window."""
    options = {"stream_window_items": WINDOW, "stream_window_bytes": 256 << 10}
    with flow_rpc.FlowClient(flow_address, timeout=patience(30), **options) as client:
        client.hold()
        yield client


def stays(count: Any, most: int) -> None:
    """A count that came to rest and isn't above ``most``; it is looked at while other calls go on."""
    last = -1
    for _ in range(200):
        last = count()
        assert last <= most
    assert last == count()


def test_a_producer_is_ahead_by_the_window_of_items(narrow: Any) -> None:
    before = narrow.counts()["given"]
    with nothing_left(narrow), narrow.count(1 << 40) as stream:
        assert next(stream) == 0
        eventually(lambda: narrow.counts()["given"] - before >= WINDOW)
        stays(lambda: narrow.counts()["given"] - before, 1 + WINDOW + IN_HANDS)
        assert [next(stream) for _ in range(100)] == list(range(1, 101))


@pytest.mark.parametrize("method", ["swallow", "swallow_later"])
def test_waiting_for_room_takes_no_processor_time(flow_server: LabServer, narrow: Any, method: str) -> None:
    """Nor where the client's own items have come to their end."""
    narrow.go_on()
    with nothing_left(narrow), getattr(narrow, method).open() as stream:
        for _ in range(8 * WINDOW):
            stream.send(1)
        stream.finish()
        assert next(stream) == 0
        before = cpu_seconds(flow_server.pid)
        time.sleep(1)
        assert cpu_seconds(flow_server.pid) - before < 0.5
        assert list(stream) == list(range(1, 8 * WINDOW))


def test_a_producer_is_ahead_by_the_window_of_bytes(narrow: Any) -> None:
    before = narrow.counts()["given"]
    with nothing_left(narrow), narrow.blocks(1 << 40, 64 << 10) as stream:
        next(stream)
        stays(lambda: narrow.counts()["given"] - before, 1 + 4 + IN_HANDS)
        for i in range(1, 50):
            assert next(stream)[0] == i


def test_an_item_larger_than_the_window_goes_alone(narrow: Any) -> None:
    assert [block.nbytes for block in narrow.blocks(3, 1 << 20)] == [1 << 20] * 3


def test_a_caller_is_ahead_of_a_slow_handler_by_the_window(address: str) -> None:
    sent: list[int] = []

    def values() -> Iterator[int]:
        for value in range(100):
            yield value
            sent.append(value)

    with (
        rrpc.serve(Flow(), listen=address, stream_window_items=WINDOW) as server,
        flow_rpc.FlowClient(server.addresses[0], timeout=30.0) as client,
    ):
        client.hold()
        before = client.counts()["taken"]
        totals: list[int] = []
        caller = threading.Thread(target=lambda: totals.append(client.add_slowly(values())))
        caller.start()
        eventually(lambda: client.counts()["taken"] > before)
        eventually(lambda: len(sent) >= WINDOW)
        stays(lambda: client.counts() and len(sent), 1 + WINDOW + IN_HANDS)
        client.go_on()
        caller.join(patience(10))
        assert totals == [4950]


def test_slow_streams_leave_the_workers_to_others(narrow: Any) -> None:
    """There are four workers: sixteen streams whose clients take nothing don't hold them."""
    with nothing_left(narrow):
        streams = [narrow.count(1000) for _ in range(16)]
        assert [next(stream) for stream in streams] == [0] * 16
        assert narrow.add([1, 2]) == 3
        assert [sum(stream) for stream in streams] == [499_500] * 16


def test_a_stream_that_never_waits_gives_others_their_turn(address: str) -> None:
    """The one worker goes from the stream, whose client takes whatever comes, to the call that ends it."""
    window = 1 << 20
    options = {"stream_window_items": window, "stream_window_bytes": 1 << 30}
    with (
        rrpc.serve(Flow(), listen=address, workers=1) as server,
        flow_rpc.FlowClient(server.addresses[0], timeout=60.0, **options) as client,
    ):
        client.hold()
        stream = client.until_told()
        assert next(stream) == 0
        client.go_on()
        assert sum(1 for _ in stream) < window - 1  # else it had the worker until there was no room


def test_a_server_that_is_killed(served: Served) -> None:
    with flow_rpc.FlowClient(served.address, timeout=30.0) as client:
        stream, blocks = client.count(1 << 40), client.blocks(1 << 40, 1 << 20)
        values = client.add.open()
        next(stream)
        next(blocks)
        values.send(1)
        served.kill()
        for use in (lambda: list(stream), lambda: list(blocks), values.finish):
            with pytest.raises(rrpc.Unavailable):
                use()


CLIENT = """
import sys, numpy as np
sys.path.insert(0, {folder!r})
from flow import flow_rpc
client = flow_rpc.FlowClient(sys.argv[1])
streams = [client.count(1 << 40), client.blocks(1 << 40, 1 << 20)]
for stream in streams:
    next(stream)
values, blocks = client.add.open(), client.weigh.open()
values.send(1)
blocks.send(np.zeros(1 << 20, np.uint8))
print("under way", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_that_is_killed(served: Served, end: signal.Signals) -> None:
    with flow_rpc.FlowClient(served.address, timeout=30.0) as client, nothing_left(client):
        code = CLIENT.format(folder=str(HELPERS))
        child = subprocess.Popen(
            [sys.executable, "-c", code, served.address],
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == "under way\n"
            eventually(lambda: held(client)["streams"] == 2)
            child.send_signal(end)
            child.wait(patience(10))


def test_a_server_that_stops_closes_what_is_parked(address: str) -> None:
    closed = threading.Event()

    @rrpc.service
    class Endless:
        @rrpc.method
        def count(self) -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.set()

    with rrpc.serve(Endless(), listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        stream = rrpc.open_stream(client, "Endless.count")
        assert next(stream) == 1
        eventually(lambda: not server.running())
        assert not closed.is_set()
        server.stop()
        assert closed.wait(patience(5))
        with pytest.raises(rrpc.Unavailable):
            list(stream)


def test_a_parked_stream_that_another_worker_has_closed() -> None:
    """One worker has closed all that is parked, as the server has stopped, while another was given a stream of it."""
    given = [SimpleNamespace(handle=7, method=b"Flow.count", kind=PARKED), None]
    core: Any = SimpleNamespace(
        next=lambda timeout, builtin: given.pop(0), reply_next=None, stopped=lambda: not given
    )
    dispatch = Dispatch([Flow()])
    streams = ServedStreams(core, dispatch, False)
    streams.close()
    Worker(core, dispatch, False, streams).run()
    assert not given


@pytest.mark.slow
def test_a_thousand_streams(served: Served) -> None:
    """On four workers, with consumers that are quick, slow, stopped, and that end in the middle."""
    many, each = volume(1000, 100), 200
    with (
        flow_rpc.FlowClient(served.address, timeout=120.0, stream_window_items=WINDOW) as client,
        nothing_left(client),
    ):
        streams = [client.count(each) for _ in range(many)]
        for stream in streams:
            assert next(stream) == 0
        stopped, dying, slow, quick = (streams[i::4] for i in range(4))
        for stream in dying:
            next(stream)
            stream.cancel()
        for _ in range(10):
            for stream in slow:
                next(stream)
        for stream in quick:
            assert sum(stream) == sum(range(each))
        for stream in slow:
            assert len(list(stream)) == each - 11
        assert client.add([1]) == 1
        del stream, streams, stopped
        gc.collect()


def block(i: int, size: int = 8) -> Any:
    return np.full(size, i % 251, np.uint8)


def send(stream: Any, items: Iterator[Any]) -> None:
    for item in items:
        stream.send(item)
    stream.finish()


# Calls, and what is done with each.
KINDS: list[tuple[Any, Any]] = [
    (lambda flow, n: flow.count(5 * n), list),
    (lambda flow, n: flow.blocks(20, n), list),
    (lambda flow, n: flow.blocks(20, 1000 * n), list),
    (lambda flow, n: flow.sums(range(n)), list),
    (lambda flow, n: flow.add.open(), lambda stream: send(stream, iter(range(300)))),
    (lambda flow, n: flow.sums.open(), lambda stream: send(stream, iter(range(300)))),
    (lambda flow, n: flow.weigh.open(), lambda stream: send(stream, map(block, range(100)))),
    (lambda flow, n: flow.weigh.open(), lambda stream: send(stream, (block(i, 100_000) for i in range(9)))),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("hasty_threads")
def test_cancelled_at_random_moments(served: Served, seed: int) -> None:
    chance = random.Random(seed)
    with flow_rpc.FlowClient(served.address, timeout=60.0) as client, nothing_left(client):
        for _ in range(volume(200, 20)):
            begin, use = chance.choice(KINDS)
            stream = begin(client, chance.randrange(1, 1000))
            timer = threading.Timer(chance.random() * 0.004, stream.cancel)
            timer.start()
            with suppress(rrpc.Cancelled):
                use(stream)
            timer.join()
            stream.close()
        del stream, timer
        gc.collect()
