"""Streams of frames: lists of buffers without a look at each, which land in memory of the user's."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from processes import eventually, patience
from two_versions import generate

import rrpc
from rrpc._interface.stream_items import Items
from rrpc.codec import BULK_BYTES, decode, decode_frames, encode_frames

Frames = list[memoryview]
Row = NDArray[np.float32]
LARGE = 100_000


class Memory:
    """An allocator that knows what it gave."""

    def __init__(self, make: Callable[[int], Any] = bytearray) -> None:
        self.given: list[Any] = []
        self._make = make

    def __call__(self, nbytes: int) -> Any:
        self.given.append(self._make(nbytes))
        return self.given[-1]

    def addresses(self) -> list[int]:
        return [address_of(buffer) for buffer in self.given]


def address_of(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


@rrpc.service
class Links:
    """Blocking handlers."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.landed: list[int] = []
        self.waits = threading.Event()
        self.go = threading.Event()

    @rrpc.method
    def link(self, stream: rrpc.ServerStream[Frames, Frames]) -> None:
        stream.land_in(self.memory)
        for frames in stream:
            self.landed += [address_of(frame) for frame in frames if len(frame) >= BULK_BYTES]
            stream.send(frames)

    @rrpc.method
    def rows(self, count: int) -> Iterator[Row]:
        for number in range(count):
            yield np.full(LARGE // 4, number, np.float32)

    @rrpc.method
    def late(self, stream: rrpc.ServerStream[Frames, int]) -> None:
        self.waits.set()
        assert self.go.wait(patience(20))
        stream.land_in(self.memory)
        for frames in stream:
            stream.send(address_of(frames[0]))

    @rrpc.method
    def first(self, stream: rrpc.ServerStream[int, Frames]) -> None:
        """Answers one item and ends, whatever else its client has to send."""
        stream.send([memoryview(bytes([next(stream)]) * LARGE)])

    @rrpc.method
    def broken(self, stream: rrpc.ServerStream[Frames, int]) -> None:
        stream.land_in(lambda nbytes: bytearray(nbytes - 1))
        for frames in stream:
            stream.send(len(frames))


@rrpc.service(name="Links")
class AsyncLinks(Links):
    """The same as coroutines."""

    @rrpc.method
    async def link(self, stream: rrpc.aio.ServerStream[Frames, Frames]) -> None:  # type: ignore[override]
        stream.land_in(self.memory)
        async for frames in stream:
            self.landed += [address_of(frame) for frame in frames if len(frame) >= BULK_BYTES]
            await stream.send(frames)

    @rrpc.method
    async def late(self, stream: rrpc.aio.ServerStream[Frames, int]) -> None:  # type: ignore[override]
        self.waits.set()
        await asyncio.to_thread(self.go.wait, patience(20))
        stream.land_in(self.memory)
        async for frames in stream:
            await stream.send(address_of(frames[0]))

    @rrpc.method
    async def first(self, stream: rrpc.aio.ServerStream[int, Frames]) -> None:  # type: ignore[override]
        await stream.send([memoryview(bytes([await anext(stream)]) * LARGE)])

    @rrpc.method
    async def broken(self, stream: rrpc.aio.ServerStream[Frames, int]) -> None:  # type: ignore[override]
        stream.land_in(lambda nbytes: bytearray(nbytes - 1))
        async for frames in stream:
            await stream.send(len(frames))


CLIENTS = generate(Links)
Served = tuple[Any, rrpc.Server, Any]


@pytest.fixture
def address(transport: str, new_address: Callable[[str], str]) -> str:
    return new_address(transport)


@pytest.fixture(params=[Links, AsyncLinks], ids=["blocking", "asyncio"])
def served(request: pytest.FixtureRequest, address: str) -> Iterator[Served]:
    service = request.param()
    server = rrpc.serve(service, listen=address)
    with server, CLIENTS.LinksClient(server.addresses[0], timeout=patience(20)) as client:
        yield service, server, client
        eventually(lambda: at_rest(server))


def at_rest(server: rrpc.Server) -> bool:
    stats = server.stats()
    return bool(stats["calls_running"] == 0 and rrpc.stats()["exposures_live"] == 0)


def message(number: int) -> list[Any]:
    """Frames of all kinds, small and large."""
    return [
        b"head %d" % number,
        bytearray(b"x" * 300),
        np.full(LARGE, number % 256, np.uint8),
        memoryview(b""),
        np.arange(LARGE // 8, dtype=np.float64) + number,
        bytes(BULK_BYTES),
    ]


def same(frames: Any, sent: Any) -> bool:
    return [bytes(frame) for frame in frames] == [bytes(buffer) for buffer in sent]


def test_frames_go_both_ways_and_land_in_memory_of_ours(served: Served) -> None:
    service, _, client = served
    memory = Memory(lambda nbytes: np.empty(nbytes, np.uint8))
    with client.link.open() as link:
        link.land_in(memory)
        landed: list[int] = []
        for number in range(20):
            sent = message(number)
            link.send(sent)
            frames = next(link)
            assert same(frames, sent)
            assert not any(frame.readonly for frame in frames)
            landed += [address_of(frame) for frame in frames if len(frame) >= BULK_BYTES]
        link.finish()
        assert list(link) == []
    assert landed == memory.addresses()
    assert service.landed == service.memory.addresses()
    assert len(landed) == len(service.landed) == 60


def test_many_are_under_way(served: Served) -> None:
    _, _, client = served
    memory = Memory()
    messages = [message(number) for number in range(40)]
    with client.link.open() as link:
        link.land_in(memory)
        sender = threading.Thread(target=lambda: [link.send(each) for each in messages])
        sender.start()
        assert all(same(next(link), each) for each in messages)
        sender.join()
    assert len(memory.given) == 120


def test_out_of_coroutines(served: Served) -> None:
    _, server, _ = served

    async def exchange() -> None:
        async with CLIENTS.AsyncLinksClient(server.addresses[0], timeout=patience(20)) as client:
            for _ in range(2):  # the first isn't connected when it begins
                memory = Memory()
                async with client.link.open() as link:
                    link.land_in(memory)
                    for number in range(5):
                        await link.send(message(number))
                        frames = await anext(link)
                        assert same(frames, message(number))
                    assert len(memory.given) == 15
                    assert address_of(frames[2]) == memory.addresses()[-3]

    asyncio.run(exchange())


def test_arrays_land_in_the_rows_of_a_batch(served: Served) -> None:
    batch = np.zeros((8, LARGE // 4), np.float32)
    rows = iter(batch)
    stream = served[2].rows(8)
    stream.land_in(lambda nbytes: next(rows).view(np.uint8))
    for number, row in enumerate(stream):
        assert np.shares_memory(row, batch[number])
    assert batch[:, -1].tolist() == list(range(8))


def test_what_came_before_lands_there_too(served: Served) -> None:
    service, _, client = served
    with client.late.open() as link:
        for number in range(5):
            link.send([np.full(LARGE, number, np.uint8)])
        assert service.waits.wait(patience(20))
        service.go.set()
        landed = [next(link) for _ in range(5)]
    assert landed == service.memory.addresses()
    assert [bytes(given[:1]) for given in service.memory.given] == [bytes([number]) for number in range(5)]


def test_an_allocator_that_fails_ends_its_call_alone(served: Served) -> None:
    _, server, client = served

    def fail(nbytes: int) -> Any:
        raise MemoryError("no more of it")

    for allocate, error, text in [
        (fail, MemoryError, "no more of it"),
        (
            lambda nbytes: bytearray(nbytes + 1),
            rrpc.InvalidArgument,
            rf"allocate\({LARGE}\) gave {LARGE + 1} bytes",
        ),
        (bytes, BufferError, "not writable|read-only|not writeable"),
        (lambda nbytes: "text", TypeError, "bytes-like"),
    ]:
        stream = client.rows(2)
        stream.land_in(allocate)
        with pytest.raises(error, match=text):
            next(stream)
        eventually(lambda: at_rest(server))
    assert next(iter(client.rows(1)))[0] == 0


def test_a_servers_allocator_that_fails_is_an_error_of_its_handler(served: Served) -> None:
    with served[2].broken.open() as link:
        link.send([bytes(LARGE)])
        with pytest.raises(
            rrpc.RpcError, match=rf"allocate\({LARGE}\) gave {LARGE - 1} bytes|InvalidArgument"
        ):
            next(link)


def test_a_reply_before_its_items_have_landed_stops_the_senders_iterable_alone(served: Served) -> None:
    landing, answered, closed = threading.Event(), threading.Event(), threading.Event()

    def values() -> Iterator[int]:
        try:
            assert landing.wait(patience(20))
            yield 7
            assert answered.wait(patience(20))
            yield 8  # which can't be sent any more
        finally:
            closed.set()

    stream = served[2].first(values())
    stream.land_in(bytearray)
    landing.set()
    eventually(stream._call.core.answered)
    assert not stream._call.core.done()
    answered.set()
    assert closed.wait(patience(20))
    [[frame]] = stream
    assert bytes(frame) == bytes([7]) * LARGE


def test_a_reply_before_its_items_have_landed_stops_a_coroutines_iterable_alone(served: Served) -> None:
    _, server, _ = served

    async def exchange() -> None:
        landing, answered, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def values() -> AsyncIterator[int]:
            try:
                await landing.wait()
                yield 7
                await answered.wait()
                yield 8
            finally:
                closed.set()

        async with CLIENTS.AsyncLinksClient(server.addresses[0], timeout=patience(20)) as client:
            stream = client.first(values())
            stream.land_in(bytearray)
            landing.set()
            core = (await stream._call.get()).core
            while not core.answered():
                await asyncio.sleep(0.001)
            assert not core.done()
            answered.set()
            await closed.wait()
            [[frame]] = [frames async for frames in stream]
            assert bytes(frame) == bytes([7]) * LARGE

    asyncio.run(asyncio.wait_for(exchange(), patience(20)))


def test_a_call_that_ends_before_its_memory_is_given(served: Served) -> None:
    _, server, client = served
    stream = client.rows(100)
    stream.land_in(bytearray)
    stream.close()
    eventually(lambda: at_rest(server))
    stream = client.rows(100, timeout=patience(0.5))
    stream.land_in(bytearray)
    ended = threading.Event()
    stream.on_end(ended.set)
    assert ended.wait(patience(20))
    eventually(lambda: at_rest(server))


@pytest.mark.parametrize("service", [Links, AsyncLinks], ids=["blocking", "asyncio"])
def test_a_lost_server_ends_the_wait_for_memory(service: Any, address: str) -> None:
    with (
        rrpc.serve(service(), listen=address) as server,
        CLIENTS.LinksClient(server.addresses[0], timeout=patience(20)) as client,
    ):
        stream = client.rows(100)
        stream.land_in(bytearray)
        next(stream)
        server.stop(patience(20))
        with pytest.raises(rrpc.RpcError):
            list(stream)
        eventually(lambda: rrpc.stats()["exposures_live"] == 0)


FRAMES = st.lists(
    st.sampled_from([0, 1, 200, 253, 254, 1000, BULK_BYTES - 1, BULK_BYTES]).map(bytearray), max_size=40
)


@given(FRAMES)
def test_frames_are_packed_as_the_codec_packs_them(frames: list[bytearray]) -> None:
    payload, buffers = encode_frames(frames)
    views = [memoryview(frame) for frame in frames]
    generic, others = Items("m", "", list[memoryview] | None, None).encode(views)
    blocks = [memoryview(bytearray(buffer)) for buffer in buffers or ()] or None
    assert decode(payload, blocks) == decode(generic, blocks) == views
    assert decode_frames(payload, blocks) == views
    assert len(buffers or ()) == len(others or ())


@given(FRAMES, st.integers(0, 1 << 16), st.integers(0, 255))
def test_a_damaged_payload_is_read_as_the_codec_reads_it(frames: list[bytearray], at: int, byte: int) -> None:
    payload, buffers = encode_frames(frames)
    blocks = [memoryview(bytearray(buffer)) for buffer in buffers or ()] or None
    damaged = bytearray(payload)
    damaged[at % len(payload)] = byte
    for data in (bytes(damaged), payload[: at % len(payload)]):
        found = decode_frames(data, blocks)
        if found is not None:
            assert found == decode(data, blocks)


@pytest.mark.parametrize("wrong", [["text"], [1], [np.zeros((4, 4))[:, 1]], "text", [object()]])
def test_what_is_no_frame_is_named(served: Served, wrong: Any) -> None:
    with served[2].link.open() as link, pytest.raises(rrpc.InvalidArgument, match="an item of 'stream'"):
        link.send(wrong)
