"""Arrays that change while they are sent: rrpc.snapshot, and the mode that finds those which need it."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from lab import address_to_listen_on
from numpy.typing import NDArray
from processes import eventually, run, volume
from two_versions import generate

import rrpc

FLOATS = 1 << 18
Floats = NDArray[np.float32]


@rrpc.service
class Parameters:
    def __init__(self) -> None:
        self.weights = np.zeros(FLOATS, np.float32)
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def push(self) -> None:
        while not self.stop.is_set():
            with self.lock:
                self.weights += 1

    @rrpc.method
    def pull(self) -> Floats:
        with self.lock:
            return rrpc.snapshot(self.weights)

    @rrpc.method
    def pull_live(self) -> Floats:
        with self.lock:
            return self.weights

    @rrpc.method
    def pull_all(self, count: int) -> Iterator[Floats]:
        for _ in range(count):
            with self.lock:
                yield self.weights

    @rrpc.method
    def take(self, array: Floats, wait: bool) -> float:
        if wait:
            self.stop.wait(60)
        return float(array[0])

    @rrpc.method
    def sum(self, arrays: Iterator[Floats]) -> float:
        return float(sum(array[0] for array in arrays))


@rrpc.service
class Later:
    def __init__(self) -> None:
        self.weights = np.zeros(FLOATS, np.float32)

    @rrpc.method
    async def pull_live(self) -> Floats:
        return self.weights

    @rrpc.method
    async def pull_all(self, count: int) -> AsyncIterator[Floats]:
        for _ in range(count):
            yield self.weights


CLIENTS = generate(Parameters)


@pytest.fixture(params=["shm", "tcp"])
def address(request: pytest.FixtureRequest) -> str:
    return address_to_listen_on(request.param)


@pytest.fixture
def checked(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Arrays are checked; gives what was said of them."""
    caplog.set_level(logging.ERROR, "rrpc.arrays")
    rrpc.check_arrays()
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "rrpc.arrays"]
    rrpc.check_arrays(False)


@contextmanager
def pushed(service: Parameters, address: str) -> Iterator[str]:
    """Serves it while its weights change."""
    pusher = threading.Thread(target=service.push)
    with rrpc.serve(service, listen=address) as server:
        pusher.start()
        try:
            yield server.addresses[0]
        finally:
            service.stop.set()
            pusher.join()


def test_snapshots_are_whole(address: str, checked: Callable[[], list[str]]) -> None:
    with pushed(Parameters(), address) as served, rrpc.connect(served) as client:
        for _ in range(volume(200, 50)):
            weights = client.call("Parameters.pull")
            assert weights.min() == weights.max()
    assert checked() == []


def test_a_live_result_is_found(address: str, checked: Callable[[], list[str]]) -> None:
    before = rrpc.stats()["arrays_changed"]
    with pushed(Parameters(), address) as served, rrpc.connect(served) as client:
        eventually(lambda: client.call("Parameters.pull_live") is not None and bool(checked()))
    assert f"{FLOATS * 4} bytes that Parameters.pull_live() sent were changed" in checked()[0]
    assert rrpc.stats()["arrays_changed"] > before


def test_live_items_are_found(address: str, checked: Callable[[], list[str]]) -> None:
    with pushed(Parameters(), address) as served, CLIENTS.ParametersClient(served) as client:
        eventually(lambda: len(list(client.pull_all(5))) == 5 and bool(checked()))
    assert "that Parameters.pull_all() sent" in checked()[0]


@pytest.mark.parametrize("method", ["pull_live", "pull_all"])
def test_live_results_of_async_handlers_are_found(
    address: str, checked: Callable[[], list[str]], method: str
) -> None:
    service, ended = Later(), threading.Event()

    def change() -> None:
        while not ended.is_set():
            service.weights += 1

    changing = threading.Thread(target=change)
    with rrpc.serve(service, listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        changing.start()
        try:
            if method == "pull_live":
                eventually(lambda: client.call("Later.pull_live") is not None and bool(checked()))
            else:
                eventually(
                    lambda: len(list(rrpc.open_stream(client, "Later.pull_all", 5))) == 5 and bool(checked())
                )
        finally:
            ended.set()
            changing.join()
    assert f"that Later.{method}() sent" in checked()[0]


def test_a_live_argument_is_found_by_its_line(address: str, checked: Callable[[], list[str]]) -> None:
    service, array = Parameters(), np.ones(FLOATS, np.float32)
    with (
        rrpc.serve(service, listen=address) as server,
        CLIENTS.ParametersClient(server.addresses[0]) as client,
    ):
        future = client.take.start(array, True)
        array += 1
        service.stop.set()
        future.result()
    eventually(lambda: len(checked()) == 1)
    assert f"{__file__}:{_line_of('future = client.take.start(array, True)')} sent" in checked()[0]


def _line_of(text: str) -> int:
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.strip() == text)


def test_what_changes_after_the_call_is_no_matter(address: str, checked: Callable[[], list[str]]) -> None:
    """Blocking, by a future, in a stream, in asyncio."""
    array = np.ones(FLOATS, np.float32)

    async def later(to: str) -> None:
        async with CLIENTS.AsyncParametersClient(to) as client:
            for _ in range(20):
                await client.take(array, False)
                array[:] += 1

    with rrpc.serve(Parameters(), listen=address) as server:
        with CLIENTS.ParametersClient(server.addresses[0]) as client:
            for _ in range(20):
                client.take(array, False)
                array[:] += 1
                client.take.start(array, False).result()
                array[:] += 1
                client.sum([array] * 3)
                array[:] += 1
        asyncio.run(later(server.addresses[0]))
    assert checked() == []


def test_the_environment_turns_it_on() -> None:
    program = """
import numpy as np, rrpc
from numpy.typing import NDArray

@rrpc.service
class Live:
    @rrpc.method
    def take(self, array: NDArray[np.float32]) -> float:
        array_sent[0] += 1
        return 1.0

array_sent = np.ones(1 << 18, np.float32)
with rrpc.serve(Live(), listen="tcp://127.0.0.1:0") as server, rrpc.connect(server.addresses[0]) as client:
    client.call("Live.take", array_sent)
print(rrpc.stats()["arrays_changed"])
"""
    assert run("-c", program, RRPC_CHECK_ARRAYS="1").stdout == "1\n"
    assert run("-c", program, RRPC_CHECK_ARRAYS="0").stdout == "0\n"


@pytest.mark.parametrize(
    "live",
    [
        np.arange(24.0).reshape(2, 3, 4),
        np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
        np.arange(100)[::-3],
        np.array(7.5),
        np.zeros((0, 3)),
        np.array(["a", "bc"]),
        np.zeros(3, [("x", "i4"), ("y", "f8")]),
        [[1, 2], [3, 4]],
    ],
    ids=["C", "F", "strided", "scalar", "empty", "text", "fields", "list"],
)
def test_snapshots_are_as_their_originals(live: Any) -> None:
    copy, live = rrpc.snapshot(live), np.asarray(live)
    assert copy.shape == live.shape
    assert copy.dtype == live.dtype
    assert np.array_equal(copy, live)
    assert copy.flags.f_contiguous == live.flags.f_contiguous or not live.flags.forc
    assert copy.flags.writeable
    assert not np.shares_memory(copy, live)


def test_what_has_no_snapshot_is_refused() -> None:
    with pytest.raises(TypeError, match="dtype object has no fixed size"):
        rrpc.snapshot(np.array([None, {}]))
