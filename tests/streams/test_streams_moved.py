"""Streams whose first server refuses them, as one does that shuts down: they go to another, with what was sent."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import pytest
from aio import Run
from fleet import scheme
from flow import flow_rpc, nothing_left
from flow_service import Flow
from processes import eventually, patience

import rrpc
import rrpc._call.status
import rrpc._server.served_stream
import rrpc._server.worker

__all__ = ["scheme"]

WINDOW = 16
# A connection that refuses is not tried again within a test.
OPTIONS: dict[str, Any] = {"timeout": 30.0, "backoff": rrpc.Backoff(initial=600.0, maximum=600.0)}


class ShuttingDown(rrpc.Unavailable):
    """Goes out as what the core itself refuses calls with: nobody has answered."""


@pytest.fixture(autouse=True)
def _without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def status_of(method: str, error: BaseException, *rest: Any) -> Any:
        status = rrpc._call.status.status_of(method, error, *rest)
        return status._replace(facts=b"") if isinstance(error, ShuttingDown) else status

    for module in (rrpc._server.served_stream, rrpc._server.worker):
        monkeypatch.setattr(module, "status_of", status_of)


class Refuses(rrpc.ServerInterceptor):
    """No handler sees the calls with streams; they are refused, once the gate is open, as in a shutdown."""

    def __init__(self) -> None:
        self.seen = 0
        self.gate = threading.Event()

    def stream(self, call: Any) -> Generator[Any, Any, Any]:
        self.seen += 1
        assert self.gate.wait(patience(20))
        if self.seen:
            raise ShuttingDown("shutting down")
        return (yield call)


class Pair:
    """Two servers; the first refuses."""

    def __init__(self, addresses: list[str], refuses: Refuses) -> None:
        self.addresses = addresses
        self.refuses = refuses

    def refuse_soon(self) -> None:
        """In a moment, in which the caller comes to wait."""
        threading.Timer(0.02, self.refuses.gate.set).start()

    @contextmanager
    def client(self, **options: Any) -> Iterator[Any]:
        with flow_rpc.FlowClient(self.addresses, **OPTIONS, **options) as client:
            yield client
        assert self.refuses.seen == 1

    @asynccontextmanager
    async def async_client(self, **options: Any) -> AsyncIterator[Any]:
        async with flow_rpc.AsyncFlowClient(self.addresses, **OPTIONS, **options) as client:
            yield client
        assert self.refuses.seen == 1


@contextmanager
def pair_of(scheme: str, new_address: Callable[[str], str], **options: Any) -> Iterator[Pair]:
    refuses = Refuses()
    first, second = new_address(scheme), new_address(scheme)
    with (
        rrpc.serve(Flow(), listen=first, interceptors=[refuses], **options) as one,
        rrpc.serve(Flow(), listen=second, **options) as two,
    ):
        yield Pair([one.addresses[0], two.addresses[0]], refuses)
        refuses.gate.set()


@pytest.fixture
def pair(scheme: str, new_address: Callable[[str], str]) -> Iterator[Pair]:
    with pair_of(scheme, new_address, stream_window_items=WINDOW) as made:
        yield made


def blocks(count: int) -> Iterator[Any]:
    for i in range(count):
        yield np.full(100_000, i, np.uint8)


# Of each: the call, and what comes of it. The last two have more items than the window has room for.
USES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "items": (lambda flow: list(flow.count(100)), list(range(100))),
    "arrays": (lambda flow: sum(block.nbytes for block in flow.blocks(3, 100_000)), 300_000),
    "async handler": (lambda flow: list(flow.later(100)), list(range(100))),
    "no items": (lambda flow: list(flow.count(0)), []),
    "an error": (lambda flow: raised(lambda: list(flow.count(0, fail=True))), rrpc.NotFound),
    "sent": (lambda flow: flow.add(range(5)), 10),
    "sent arrays": (lambda flow: flow.weigh(blocks(5)), 500_000),
    "nothing sent": (lambda flow: flow.add([]), 0),
    "both ways": (lambda flow: list(flow.sums(range(5))), [0, 1, 3, 6, 10]),
    "no room": (lambda flow: flow.add(range(100)), 4950),
    "no room, both ways": (lambda flow: list(flow.sums([1] * 100)), list(range(1, 101))),
}


def raised(use: Callable[[], object]) -> type[BaseException] | None:
    try:
        use()
    except rrpc.RpcError as error:
        return type(error)
    return None


@pytest.mark.parametrize("use", USES)
def test_a_refused_stream_goes_to_another_server(pair: Pair, use: str) -> None:
    call, result = USES[use]
    pair.refuse_soon()
    with pair.client() as client:
        assert call(client) == result
        with nothing_left(client):
            assert call(client) == result
            gc.collect()


async def _sent_later(items: Any) -> AsyncIterator[Any]:
    for item in items:
        await asyncio.sleep(0)
        yield item


async def _list(stream: Any) -> list[Any]:
    return [item async for item in stream]


ASYNC_USES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "items": (lambda flow: _list(flow.count(100)), list(range(100))),
    "async handler": (lambda flow: _list(flow.later(100)), list(range(100))),
    "no items": (lambda flow: _list(flow.count(0)), []),
    "sent": (lambda flow: flow.add(range(5)), 10),
    "sent arrays": (lambda flow: flow.weigh(_sent_later(blocks(5))), 500_000),
    "nothing sent": (lambda flow: flow.add_later([]), 0),
    "both ways": (lambda flow: _list(flow.sums_later(_sent_later(range(5)))), [0, 1, 3, 6, 10]),
    "no room": (lambda flow: flow.add(range(100)), 4950),
    "no room, both ways": (lambda flow: _list(flow.sums(_sent_later([1] * 100))), list(range(1, 101))),
}


@pytest.mark.parametrize("use", ASYNC_USES)
def test_in_asyncio(in_loop: Run[None], pair: Pair, use: str) -> None:
    call, result = ASYNC_USES[use]

    async def main() -> None:
        pair.refuse_soon()
        async with pair.async_client() as client:
            assert await call(client) == result

    in_loop(main())


def test_items_sent_one_by_one(pair: Pair) -> None:
    with pair.client() as client, client.sums.open() as stream:
        for value in range(WINDOW):
            stream.send(value)
        pair.refuses.gate.set()
        eventually(stream._call.core.done)
        stream.send(WINDOW)  # goes with those before, to where nobody refuses
        assert next(stream) == 0
        stream.finish()
        assert list(stream)[-1] == sum(range(WINDOW + 1))


def test_items_sent_one_by_one_in_asyncio(in_loop: Run[None], pair: Pair) -> None:
    async def main() -> None:
        async with pair.async_client() as client, client.sums.open() as stream:
            for value in range(WINDOW):
                await stream.send(value)
            pair.refuses.gate.set()
            while not stream._call.opened.core.done():
                await asyncio.sleep(0.001)
            await stream.send(WINDOW)
            assert await stream.__anext__() == 0
            await stream.finish()
            assert (await _list(stream))[-1] == sum(range(WINDOW + 1))

    in_loop(main())


def test_done_finds_out(pair: Pair) -> None:
    """Whoever only asks whether it has ended has it go on, too."""
    with pair.client() as client:
        stream = client.add.open()
        stream.send(7)
        pair.refuses.gate.set()
        eventually(stream._call.core.done)
        assert not stream.done()
        eventually(lambda: client.counts() and not stream._call.core.done())
        assert stream.finish() == 7
        assert stream.done()


def test_done_finds_out_in_asyncio(in_loop: Run[None], pair: Pair) -> None:
    async def main() -> None:
        async with pair.async_client() as client:
            stream = client.add.open()
            await stream.send(7)
            pair.refuses.gate.set()
            while not stream._call.opened.core.done():
                await asyncio.sleep(0.001)
            assert not stream.done()
            while stream._call.opened.core.done():
                await asyncio.sleep(0.001)
            assert await stream.finish() == 7
            assert stream.done()

    in_loop(main())


class Notes(rrpc.ClientInterceptor):
    """Sends ten for each one, and notes what it sees."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def stream(self, call: Any) -> Generator[Any, Any, Any]:
        self.seen.append(call.method)
        call.map_sent(self._sent)
        call.on_end(self.seen.append)
        return (yield call)

    def _sent(self, item: int) -> int:
        self.seen.append(item)
        return item * 10


def test_interceptors_see_one_call(pair: Pair) -> None:
    notes = Notes()
    with pair.client(interceptors=[notes]) as client:
        pair.refuse_soon()
        assert client.add([1, 2]) == 30
    assert notes.seen == ["Flow.add", 1, 2, None]


@contextmanager
def alone(scheme: str, new_address: Callable[[str], str], refuses: Refuses, **options: Any) -> Iterator[Any]:
    """A client of the one that refuses, which has no other."""
    with (
        rrpc.serve(Flow(), listen=new_address(scheme), interceptors=[refuses]) as server,
        flow_rpc.FlowClient(server.addresses[0], **{**OPTIONS, **options}) as client,
    ):
        yield client


def test_its_deadline_is_that_of_all_attempts(scheme: str, new_address: Callable[[str], str]) -> None:
    refuses = Refuses()
    refuses.gate.set()
    with alone(scheme, new_address, refuses, timeout=0.5, wait_for_ready=True) as client:
        with pytest.raises(rrpc.DeadlineExceeded, match="no connection within its timeout") as caught:
            list(client.count(3))
        assert caught.value.not_executed


def test_cancelled_while_there_is_no_other_server(scheme: str, new_address: Callable[[str], str]) -> None:
    refuses = Refuses()
    with alone(scheme, new_address, refuses, wait_for_ready=True) as client:
        stream = client.count(3)
        refuses.gate.set()

        def cancel() -> None:
            attempts: Any = stream._call.attempts
            eventually(lambda: attempts.under_way)
            stream.cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(rrpc.Cancelled):
            next(stream)
        canceller.join()
        assert stream.done()


def test_without_another_server_it_fails(scheme: str, new_address: Callable[[str], str]) -> None:
    refuses = Refuses()
    refuses.gate.set()
    with alone(scheme, new_address, refuses) as client:
        uses: list[Callable[[], Any]] = [
            lambda: list(client.count(3)),
            lambda: client.add([1]),
            lambda: list(client.sums([1])),
        ]
        for use in uses:
            with pytest.raises(rrpc.Unavailable) as caught:
                use()
            assert caught.value.not_executed


def test_what_is_kept_is_bounded(scheme: str, new_address: Callable[[str], str]) -> None:
    """Where a server has a larger window than others, more is sent than is kept: the caller gets the error."""
    with pair_of(scheme, new_address, stream_window_items=5000) as pair:
        for size, kept in ((1024, True), (1025, False)):
            pair.refuses.seen = 0
            pair.refuses.gate.clear()
            with pair.client() as client:
                stream = client.add.open()
                for _ in range(size):
                    stream.send(1)
                pair.refuses.gate.set()
                if kept:
                    assert stream.finish() == size
                else:
                    with pytest.raises(rrpc.Unavailable, match="shutting down") as caught:
                        stream.finish()
                    assert caught.value.not_executed


def test_a_narrower_window(scheme: str, new_address: Callable[[str], str]) -> None:
    """What was sent doesn't fit: the caller is told, and that a handler may have begun."""
    with (
        pair_of(scheme, new_address) as pair,
        rrpc.serve(Flow(), listen=new_address(scheme), stream_window_items=WINDOW) as narrow,
    ):
        pair.addresses[1] = narrow.addresses[0]
        with pair.client() as client:
            client.hold()
            stream = client.add_slowly.open()
            for _ in range(2 * WINDOW):
                stream.send(1)
            pair.refuses.gate.set()
            with pytest.raises(rrpc.Unavailable, match="window has no room") as caught:
                stream.finish()
            assert not caught.value.not_executed
            client.go_on()


def test_nothing_is_kept_after_the_first_sign(scheme: str, new_address: Callable[[str], str]) -> None:
    with (
        rrpc.serve(Flow(), listen=new_address(scheme), stream_window_items=WINDOW) as server,
        flow_rpc.FlowClient(server.addresses[0], timeout=30.0) as client,
    ):
        with client.sums.open() as stream:
            stream.send(1)
            assert stream._call.attempts.kept is not None
            assert next(stream) == 1
            assert stream._call.attempts.kept is None
        with client.add_slowly.open() as values:
            client.hold()
            for value in range(WINDOW):
                values.send(value)
            timer = threading.Timer(0.01, client.go_on)
            timer.start()
            values.send(WINDOW)
            values.send(WINDOW + 1)
            timer.join()
            assert values._call.attempts.kept is None
