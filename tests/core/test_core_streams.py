"""Streams of the core, between two processes."""

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from core_server import serving
from hand_loop import Collected, HandLoop
from lab import settles, transient
from processes import eventually

import rrpc
from rrpc import _core
from rrpc._options import merged

CLIENT, SERVER, BOTH = 2, 4, 6
Connect = Callable[..., _core.Client]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of one core_server.py, by transport."""
    with serving() as (addresses, _):
        yield addresses


@pytest.fixture
def connect(addresses: dict[str, str], transport: str) -> Iterator[Connect]:
    clients: list[_core.Client] = []

    def make(**options: Any) -> _core.Client:
        clients.append(_core.Client(addresses[transport], merged(options), 20.0))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def everything(stream: _core.Stream) -> list[bytes]:
    got: list[bytes] = []
    while items := stream.receive(50):
        got += [payload for payload, _ in items]
    return got


def fill(stream: _core.Stream, timeout: float) -> None:
    while True:
        stream.send(b"x" * 1000, timeout=timeout)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def view(block: Any) -> bytes:
    return bytes(memoryview(block))


def test_items_of_the_server(connect: Connect) -> None:
    stream = connect().open(b"count", b"5000", None, 30.0, b"", SERVER)
    assert everything(stream) == numbers(5000)
    assert stream.initial_metadata() == b"first 5000"
    assert stream.result() == (b"all", None)
    assert stream.done()
    assert stream.metadata() == b"last"
    assert stream.receive() == []
    assert stream.try_receive() == []


def test_items_of_the_client(connect: Connect) -> None:
    stream = connect().open(b"sum", b"", None, 30.0, b"", CLIENT)
    for item in numbers(5000):
        stream.send(item)
    stream.finish()
    assert stream.result() == (b"%d" % sum(range(5000)), None)
    assert stream.initial_metadata() is None


def test_buffers_go_with_items_and_are_let_go(connect: Connect) -> None:
    before = transient(_core.stats())
    stream = connect().open(b"echo_items", b"", None, 30.0, b"", BOTH)
    for i in range(50):
        stream.send(b"%d" % i, [bytes([i]) * 200_000, b"small"])
        [(payload, blocks)] = stream.receive()
        assert payload == b"%d" % i
        assert blocks is not None
        assert [view(block) for block in blocks] == [bytes([i]) * 200_000, b"small"]
    long = b"long " * 50_000
    stream.send(long)
    assert stream.receive() == [(long, None)]
    stream.finish()
    assert stream.receive() == []
    assert stream.result() == (b"", None)
    blocks = None
    settles(_core.stats, before)


def test_items_before_an_error_come_first(connect: Connect) -> None:
    stream = connect().open(b"then_fail", b"", None, 30.0, b"", SERVER)
    assert [stream.receive(), stream.receive()] == [[(b"one", None)], [(b"two", None)]]
    with pytest.raises(rrpc.NotFound, match="no third"):
        stream.receive()
    with pytest.raises(rrpc.NotFound, match="no third") as caught:
        stream.result()
    assert not caught.value.not_executed


def test_a_slow_consumer_stops_the_producer_not_the_connection(connect: Connect) -> None:
    client = connect(stream_window_items=5)
    parked = int(client.call(b"parked", b"", None, None, 30.0)[0])
    streams = [client.open(b"produce", b"100", None, 60.0, b"", SERVER) for _ in range(30)]
    eventually(lambda: int(client.call(b"parked", b"", None, None, 30.0)[0]) == parked + 30)
    streams[0].cancel()
    for stream in streams[1:]:
        assert everything(stream) == numbers(100)
        stream.result()
    eventually(lambda: int(client.call(b"parked", b"", None, None, 30.0)[0]) == parked)


def test_no_room_and_nothing_to_take(connect: Connect) -> None:
    stream = connect().open(b"echo_items", b"", None, 60.0, b"", BOTH)
    assert stream.try_receive() is None
    with pytest.raises(TimeoutError, match="no item came in time"):
        stream.receive(timeout=0.01)
    with pytest.raises(TimeoutError, match="made no room"):
        fill(stream, timeout=0.2)  # both windows: the server doesn't take what it can't send back
    assert stream.done() is False
    assert stream.receive() == [(b"x" * 1000, None)]
    stream.cancel()


def test_an_early_reply_ends_the_clients_items(connect: Connect) -> None:
    stream = connect().open(b"sum", b"enough", None, 30.0, b"", CLIENT)
    stream.send(b"7")
    assert stream.result() == (b"7", None)
    with pytest.raises(rrpc.FailedPrecondition, match="the call has ended"):
        stream.send(b"8")


@pytest.mark.parametrize("how", ["cancel", "drop", "deadline"])
def test_what_is_given_up_leaves_nothing_behind(connect: Connect, how: str) -> None:
    client = connect()
    before = transient(_core.stats())
    stream = client.open(b"count", b"1000000 b", None, 1.0 if how == "deadline" else 30.0, b"", SERVER)
    assert len(stream.receive(2)) > 0
    if how == "cancel":
        stream.cancel()
        with pytest.raises(rrpc.Cancelled):
            stream.receive()
    elif how == "deadline":
        with pytest.raises(rrpc.DeadlineExceeded):
            everything(stream)
    del stream
    gc.collect()
    settles(_core.stats, before)
    eventually(lambda: client.calls_in_flight() == 0)


def test_a_cancel_wakes_who_waits(connect: Connect) -> None:
    stream = connect().open(b"echo_items", b"", None, 30.0, b"", BOTH)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            stream.receive()
        except rrpc.RpcError as error:
            ended.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    stream.cancel()
    waiter.join()
    assert [type(error) for error in ended] == [rrpc.Cancelled]


def test_a_loop_is_told_once(connect: Connect) -> None:
    stream = connect().open(b"echo_items", b"", None, 30.0, b"", BOTH)
    loop, news, end = HandLoop(), Collected(), Collected()
    for i in range(20):
        assert stream.try_receive() is None
        stream.notify(loop.driver, news, _core.Awaited.ITEMS)
        stream.send(b"%d" % i)
        loop.go_on_until(lambda: len(news) > i)  # noqa: B023
        loop.round()
        assert news == [(None, None)] * (i + 1)
        assert stream.try_receive() == [(b"%d" % i, None)]
    assert stream.try_receive() is None
    stream.notify(loop.driver, end, _core.Awaited.END)
    stream.cancel()
    loop.go_on_until(lambda: end == [(None, None)])
    loop.driver.close()


def test_wrong_use(connect: Connect) -> None:
    client = connect()
    with pytest.raises(rrpc.InvalidArgument, match="kind 3"):
        client.open(b"count", b"1", None, None, b"", 3)
    stream = client.open(b"count", b"1", None, None, b"", SERVER)
    with pytest.raises(rrpc.FailedPrecondition, match="no items to send"):
        stream.send(b"x")
    with pytest.raises(rrpc.FailedPrecondition, match="only a server's"):
        stream.park()
    stream = client.open(b"sum", b"", None, None, b"", CLIENT)
    stream.finish()
    with pytest.raises(rrpc.FailedPrecondition, match=r"were finished|has ended"):
        stream.send(b"1")
    with pytest.raises(rrpc.InvalidArgument, match="stream_window_items can be from 1"):
        _core.Client("tcp://127.0.0.1:1", merged({"stream_window_items": 0}), 1.0)
