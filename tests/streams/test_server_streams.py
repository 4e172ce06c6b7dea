"""Long-lived streams: the server's end as an object, flush, ends that are told, and who inherits a cancellation."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from lab import address_to_listen_on
from numpy.typing import NDArray
from processes import child_environment, eventually, patience
from two_versions import generate

import rrpc
from rrpc._interface import AnnotationError

Bytes = NDArray[np.uint8]


@rrpc.service
class Board:
    """Blocking handlers."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.ended = threading.Event()

    @rrpc.method
    def subscribe(self, topic: str, count: int, stream: rrpc.ServerStream[None, str]) -> None:
        for number in range(count):
            stream.send(f"{topic} {number}")
        self.streams.append(stream)
        stream.on_end(self.ended.set)  # last: tests look at the stream once it was called
        stream.detach()

    @rrpc.method
    def double(self, stream: rrpc.ServerStream[int, int]) -> None:
        for number in stream:
            stream.send(2 * number)

    @rrpc.method
    def link(self, stream: rrpc.ServerStream[Bytes, Bytes]) -> None:
        self.streams.append(stream)
        stream.detach()

    @rrpc.method
    def forget(self, stream: rrpc.ServerStream[None, int]) -> None:
        stream.detach()

    @rrpc.method
    def fail(self, stream: rrpc.ServerStream[None, int]) -> None:
        stream.send(1)
        raise rrpc.NotFound("no such board")

    @rrpc.method
    def refuse(self, stream: rrpc.ServerStream[None, int]) -> None:
        stream.send(1)
        assert stream.cancel(rrpc.NotFound("cancelled by hand"))
        assert not stream.finish()

    @rrpc.method
    def number(self) -> int:
        return len(self.streams)


@rrpc.service(name="Board")
class AsyncBoard:
    """The same as coroutines."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.ended = threading.Event()

    @rrpc.method
    async def subscribe(self, topic: str, count: int, stream: rrpc.aio.ServerStream[None, str]) -> None:
        for number in range(count):
            await stream.send(f"{topic} {number}")
        self.streams.append(stream)
        stream.on_end(self.ended.set)  # last: tests look at the stream once it was called
        stream.detach()

    @rrpc.method
    async def double(self, stream: rrpc.aio.ServerStream[int, int]) -> None:
        async for number in stream:
            await stream.send(2 * number)

    @rrpc.method
    async def link(self, stream: rrpc.aio.ServerStream[Bytes, Bytes]) -> None:
        self.streams.append(stream)
        stream.detach()

    @rrpc.method
    async def forget(self, stream: rrpc.aio.ServerStream[None, int]) -> None:
        stream.detach()

    @rrpc.method
    async def fail(self, stream: rrpc.aio.ServerStream[None, int]) -> None:
        await stream.send(1)
        raise rrpc.NotFound("no such board")

    @rrpc.method
    async def refuse(self, stream: rrpc.aio.ServerStream[None, int]) -> None:
        await stream.send(1)
        assert stream.cancel(rrpc.NotFound("cancelled by hand"))
        assert not stream.finish()

    @rrpc.method
    async def number(self) -> int:
        return len(self.streams)


CLIENTS = generate(Board)
Served = tuple[Any, rrpc.Server, Any]


@pytest.fixture(params=["shm", "tcp"])
def address(request: pytest.FixtureRequest) -> str:
    return address_to_listen_on(request.param)


@pytest.fixture(params=[Board, AsyncBoard], ids=["blocking", "asyncio"])
def served(request: pytest.FixtureRequest, address: str) -> Iterator[Served]:
    """The service, its server with one worker, and a client."""
    service = request.param()
    server = rrpc.serve(service, listen=address, workers=1)
    with server, CLIENTS.BoardClient(server.addresses[0], timeout=patience(20)) as client:
        yield service, server, client


def at_rest(server: rrpc.Server) -> Callable[[], bool]:
    return lambda: server.stats()["calls_running"] == 0


def test_items_go_both_ways(served: Served) -> None:
    _, server, client = served
    assert list(client.double(range(2000))) == [2 * number for number in range(2000)]
    eventually(at_rest(server))


def test_a_detached_stream_is_sent_to_from_anywhere(served: Served) -> None:
    service, server, client = served
    with client.subscribe("news", 3) as first, client.subscribe("sport", 0) as second:
        eventually(lambda: client.number() == 2)  # which one worker serves: the streams hold none
        for stream in service.streams:
            assert stream.try_send("all")
            assert not stream.done()
        assert [next(first) for _ in range(4)] == ["news 0", "news 1", "news 2", "all"]
        assert next(second) == "all"
        assert server.stats()["calls_running"] == 2
        assert all(stream.finish() for stream in service.streams)
        assert not any(stream.finish() for stream in service.streams)
        assert list(first) == list(second) == []
    assert service.ended.wait(patience(20))
    with pytest.raises(rrpc.RpcError):
        service.streams[0].try_send("late")
    assert service.streams[0].done()
    eventually(at_rest(server))


def test_the_server_hears_of_the_clients_end(served: Served) -> None:
    service, server, client = served
    stream = client.subscribe("news", 1)
    assert next(stream) == "news 0"
    assert not service.ended.is_set()
    stream.close()
    assert service.ended.wait(patience(20))
    eventually(lambda: bool(service.streams[0].done()))
    eventually(at_rest(server))


def test_a_deadline_ends_a_detached_stream(served: Served) -> None:
    service, server, client = served
    with pytest.raises(rrpc.DeadlineExceeded):
        list(client.subscribe("news", 1, timeout=0.3))
    assert service.ended.wait(patience(20))
    eventually(at_rest(server))


def test_a_detached_stream_that_nobody_keeps_is_cancelled(served: Served) -> None:
    _, server, client = served
    with pytest.raises(rrpc.Cancelled, match="the server dropped the stream"):
        list(client.forget())
    eventually(at_rest(server))


@pytest.mark.parametrize(("method", "text"), [("fail", "no such board"), ("refuse", "cancelled by hand")])
def test_errors_come_after_the_items(served: Served, method: str, text: str) -> None:
    stream = getattr(served[2], method)()
    assert next(stream) == 1
    with pytest.raises(rrpc.NotFound, match=text):
        next(stream)
    eventually(at_rest(served[1]))


def test_stopping_a_server_ends_detached_streams(served: Served) -> None:
    service, server, client = served
    stream = client.subscribe("news", 1)
    assert next(stream) == "news 0"
    server.stop(0.0)
    with pytest.raises(rrpc.RpcError):
        list(stream)
    assert service.ended.wait(patience(20))
    assert service.streams[0].done()


def test_half_close_is_seen_without_reading(served: Served) -> None:
    service, _, client = served
    with client.link.open() as stream:
        stream.send(np.zeros(10, np.uint8))
        eventually(lambda: len(service.streams) == 1)
        assert not service.streams[0].peer_finished()
        stream.finish()
        eventually(service.streams[0].peer_finished)
        assert not stream.peer_finished()
        service.streams[0].finish()
        eventually(stream.peer_finished)
        assert stream.wait_closed(patience(20))


def test_addresses(served: Served, address: str) -> None:
    service, _, client = served
    with client.link.open() as stream:
        eventually(lambda: len(service.streams) == 1)
        there = service.streams[0]
        if address.startswith("tcp"):
            assert f"tcp://{there.local_address}" == address
            assert stream.local_address == there.peer_address
            assert stream.peer_address == there.local_address
        else:
            own = f"pid {os.getpid()} uid {os.geteuid()}"
            for shown in (there.local_address, there.peer_address, stream.local_address, stream.peer_address):
                assert shown.startswith(own)


def test_flush_of_the_server(address: str) -> None:
    service = Board()
    server = rrpc.serve(service, listen=address)
    with server, CLIENTS.BoardClient(server.addresses[0]) as client, client.link.open() as stream:
        eventually(lambda: len(service.streams) == 1)
        array = np.ones(1 << 20, np.uint8)
        service.streams[0].send(array)
        service.streams[0].send(array[:10])
        service.streams[0].flush(patience(20))
        array[:] = 2
        assert next(stream).min() == next(stream).max() == 1


@pytest.mark.parametrize("nbytes", [10, 1 << 20])
def test_flush_lets_arrays_change(served: Served, nbytes: int) -> None:
    service, _, client = served
    array = np.ones(nbytes, np.uint8)
    with client.link.open() as stream:
        stream.flush(patience(20))  # nothing was sent
        for _ in range(3):
            stream.send(array)
            stream.flush(patience(20))
            stream.flush(patience(20))
            array += 1
        stream.finish()
        stream.flush(patience(20))
        eventually(lambda: len(service.streams) == 1)
        assert taken(service.streams[0]) == [1, 2, 3]


def taken(stream: Any) -> list[int]:
    """The first byte of each of its items, from this thread."""
    if isinstance(stream, rrpc.ServerStream):
        return [int(item[0]) for item in stream]
    core, found = stream._core, []  # an asyncio stream's items are its loop's
    while batch := core.receive(10, patience(20)):
        found += [int(stream._call._decode(*item)[0]) for item in batch]
    return found


def test_flush_fails_as_the_call_does(served: Served) -> None:
    _, server, client = served
    stream = client.link.open()
    stream.send(np.zeros(10, np.uint8))
    server.stop(0.0)

    def go_on() -> None:
        for _ in range(1000):
            stream.send(np.zeros(1 << 20, np.uint8))
            stream.flush(patience(20))

    with pytest.raises(rrpc.RpcError):
        go_on()


LEAVES = """
import os, sys
import numpy as np
sys.path.insert(0, {tests!r})
from test_server_streams import CLIENTS
client = CLIENTS.BoardClient({address!r})
stream = client.link.open()
stream.send(np.full(64 << 20, 7, np.uint8))
stream.finish()
os._exit(0 if stream.wait_closed(60) else 1)
"""


def test_a_process_that_waits_for_the_end_loses_nothing(address: str) -> None:
    service = Board()
    with rrpc.serve(service, listen=address) as server:
        program = LEAVES.format(tests=os.path.dirname(__file__), address=server.addresses[0])
        with subprocess.Popen([sys.executable, "-c", program], env=child_environment()) as leaving:
            eventually(lambda: len(service.streams) == 1)
            assert [item.min() for item in service.streams[0]] == [7]
            assert leaving.poll() is None
            service.streams[0].finish()
            assert leaving.wait(patience(60)) == 0


def test_the_asyncio_client_has_the_same(served: Served) -> None:
    service, server, _ = served

    async def use() -> None:
        async with CLIENTS.AsyncBoardClient(server.addresses[0]) as client:
            ended = asyncio.Event()
            async with client.link.open() as stream:
                stream.on_end(ended.set)
                array = np.ones(1 << 20, np.uint8)
                await stream.send(array)
                await stream.flush()
                array += 1
                await stream.finish()
                await asyncio.to_thread(eventually, lambda: len(service.streams) == 1)
                await asyncio.to_thread(eventually, service.streams[0].peer_finished)
                assert stream.local_address
                assert stream.peer_address
                assert not stream.peer_finished()
                closing = asyncio.ensure_future(stream.wait_closed())
                assert taken(service.streams[0]) == [1]
                service.streams[0].finish()
                await asyncio.wait_for(closing, patience(20))
                await asyncio.wait_for(ended.wait(), patience(20))
                assert stream.peer_finished()
            items = client.double(iter([1, 2, 3]))
            assert [item async for item in items] == [2, 4, 6]

    asyncio.run(use())


def test_an_asyncio_streams_methods_await() -> None:
    async def use(server: rrpc.aio.Server, service: AsyncBoard) -> None:
        client = CLIENTS.AsyncBoardClient(server.addresses[0])
        async with server, client, client.link.open() as stream:
            await stream.send(np.zeros(10, np.uint8))
            await stream.flush()
            await asyncio.to_thread(eventually, lambda: len(service.streams) == 1)
            there = service.streams[0]
            assert (await anext(there)).tolist() == [0] * 10
            array = np.ones(1 << 20, np.uint8)
            await there.send(array)
            await there.flush()
            array[:] = 2
            assert (await anext(stream)).max() == 1
            closing = asyncio.ensure_future(there.wait_closed())
            stream.cancel()
            await asyncio.wait_for(closing, patience(20))
            assert there.done()

    async def serve() -> None:
        service = AsyncBoard()
        await use(await rrpc.aio.serve(service, listen=address_to_listen_on("tcp")), service)

    asyncio.run(serve())


# What is refused when a method is decorated.


def _without_items(self: Any, stream: rrpc.ServerStream) -> None: ...  # type: ignore[type-arg]
def _with_result(self: Any, stream: rrpc.ServerStream[None, int]) -> int:
    return 1


def _two(self: Any, one: rrpc.ServerStream[None, int], two: rrpc.ServerStream[None, int]) -> None: ...
def _awaits(self: Any, stream: rrpc.aio.ServerStream[None, int]) -> None: ...
async def _blocks(self: Any, stream: rrpc.ServerStream[None, int]) -> None: ...
def _takes_more(self: Any, topic: str, stream: rrpc.ServerStream[int, int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_without_items, r"write ServerStream\[S, T\]"),
        (_with_result, "write -> None"),
        (_two, "a call has one server stream"),
        (_awaits, r"an async def takes rrpc\.aio\.ServerStream"),
        (_blocks, r"an async def takes rrpc\.aio\.ServerStream"),
        (_takes_more, "a method that takes a stream takes nothing else"),
    ],
)
def test_mistakes(function: Callable[..., Any], text: str) -> None:
    with pytest.raises((AnnotationError, TypeError), match=text):
        rrpc.service(type("Wrong", (), {"go": rrpc.method(function)}))
