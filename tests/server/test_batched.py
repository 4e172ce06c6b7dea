"""rrpc.batched: calls that wait are given to the handler together."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from lab import address_to_listen_on
from numpy.typing import NDArray
from processes import ServeFactory, eventually, patience
from two_versions import generate

import rrpc

Floats = NDArray[np.float32]


@dataclass
class Scored:
    sums: Floats
    names: list[str]


class _Model:
    """What the two styles share."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, ...]] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def _sum(self, rows: Floats) -> Floats:
        self.batches.append(rows.shape)
        sums: Floats = rows.sum(axis=tuple(range(1, rows.ndim)))
        return sums


@rrpc.service
class Model(_Model):
    @rrpc.method
    @rrpc.batched(max_batch=8)
    def sum(self, rows: Floats) -> Floats:
        assert self.go_on.wait(60)
        return self._sum(rows)

    @rrpc.method
    @rrpc.batched(max_batch=1000, max_wait=0.05)
    def scaled(self, rows: Floats, names: list[str], scale: float = 2.0) -> Scored:
        return Scored(self._sum(rows) * np.float32(scale), [f"{name}!" for name in names])

    @rrpc.method
    @rrpc.batched(max_batch=100, max_wait=60.0)
    def slow(self, rows: Floats) -> tuple[Floats, None]:
        return self._sum(rows), None

    @rrpc.method
    @rrpc.batched(max_wait=0.05)
    def fail(self, what: list[str]) -> list[int]:
        self.batches.append((len(what),))
        if "all" in what:
            raise rrpc.NotFound("nothing here")
        if "short" in what:
            return [1] * (len(what) - 1)
        if "scalar" in what:
            return 7  # type: ignore[return-value]
        if "bug" in what:
            raise RuntimeError("a bug")
        return [rrpc.NotFound(word) if word == "one" else len(word) for word in what]  # type: ignore[misc]

    @rrpc.method
    @rrpc.batched(over=["rows"])
    def among(self, rows: Floats, table: Floats) -> Floats:
        found: Floats = self._sum(rows) + table.sum()
        return found

    @rrpc.method
    def free(self) -> int:
        return 1


@rrpc.service(name="Model")
class AsyncModel(_Model):
    @rrpc.method
    @rrpc.batched(max_batch=8)
    async def sum(self, rows: Floats) -> Floats:
        while not self.go_on.is_set():
            await asyncio.sleep(0.001)
        return self._sum(rows)


CLIENTS = generate(Model)


@pytest.fixture(params=["shm", "tcp"])
def address(request: pytest.FixtureRequest) -> str:
    return address_to_listen_on(request.param)


@pytest.fixture(params=[Model, AsyncModel], ids=["plain", "async"])
def either(request: pytest.FixtureRequest, address: str) -> Iterator[tuple[Any, Any]]:
    """The service in one style or the other, and a client."""
    yield from _served(request.param(), address)


@pytest.fixture
def model(address: str) -> Iterator[tuple[Any, Any]]:
    yield from _served(Model(), address)


def _served(service: Any, address: str) -> Iterator[tuple[Any, Any]]:
    server = rrpc.serve(service, listen=address, workers=1)
    with server, CLIENTS.ModelClient(server.addresses[0], timeout=patience(30)) as client:
        yield service, client


def rows(value: float, count: int = 1, width: int = 4) -> Floats:
    return np.full((count, width), value, np.float32)


def held(service: Any, client: Any) -> Any:
    """A call that the handler holds, alone in its batch."""
    service.go_on.clear()
    first = client.sum.start(rows(0))
    eventually(lambda: rrpc.batch_sizes(service.sum) == {1: 1})
    return first


def let_go(service: Any, waiting: int) -> None:
    """Lets the handler go on once so many other calls wait for it."""

    def found() -> int:
        batchers = service.__dict__["__rrpc_batchers__"].values()
        groups = [list(calls) for batcher in batchers for calls in list(batcher._waiting.values())]
        return sum(not call.future.done() for calls in groups for call in calls)

    eventually(lambda: found() == waiting)
    service.go_on.set()


def test_calls_that_wait_go_together(either: tuple[Any, Any]) -> None:
    service, client = either
    first = held(service, client)
    others = [client.sum.start(rows(n)) for n in range(20)]
    let_go(service, 20)
    assert first.result().tolist() == [0]
    assert [other.result().tolist() for other in others] == [[4.0 * n] for n in range(20)]
    assert sum(shape[0] for shape in service.batches) == 21
    assert max(shape[0] for shape in service.batches) == 8
    assert sum(size * count for size, count in rrpc.batch_sizes(service.sum).items()) == 21


def test_64_callers(either: tuple[Any, Any]) -> None:
    service, client = either

    def call(n: int) -> list[float]:
        return [float(client.sum(rows(n + i))[0]) for i in range(20)]

    with ThreadPoolExecutor(64) as pool:
        for n, found in enumerate(pool.map(call, range(64))):
            assert found == [4.0 * (n + i) for i in range(20)]
    assert len(service.batches) < 64 * 20


def test_calls_of_several_rows(either: tuple[Any, Any]) -> None:
    service, client = either
    first = held(service, client)
    counts = [3, 5, 1, 20, 2, 0]
    others = [client.sum.start(rows(count, count)) for count in counts]
    let_go(service, 6)
    assert [other.result().tolist() for other in others] == [[4.0 * count] * count for count in counts]
    assert first.result().tolist() == [0]
    assert max(shape[0] for shape in service.batches) == 20  # more than max_batch: alone
    assert (8, 4) in service.batches


def test_other_shapes_go_apart(either: tuple[Any, Any]) -> None:
    service, client = either
    first = held(service, client)
    others = [client.sum.start(rows(1, width=width)) for width in (3, 4, 3, 4)]
    cube = client.sum.start(np.ones((2, 3, 4), np.float32))
    let_go(service, 5)
    assert [other.result().tolist() for other in others] == [[3.0], [4.0], [3.0], [4.0]]
    assert cube.result().tolist() == [12.0, 12.0]
    assert first.result().tolist() == [0]
    assert sorted(service.batches[1:]) == [(2, 3), (2, 3, 4), (2, 4)]


def test_batches_are_in_registered_memory(model: tuple[Any, Any]) -> None:
    service, client = model
    first = held(service, client)
    others = [client.sum.start(rows(n, width=10_000)) for n in range(4)]
    seen: list[Floats] = []
    whole: Callable[[Floats], Floats] = service._sum

    def note(found: Floats) -> Floats:
        seen.append(found)
        return whole(found)

    service._sum = note
    let_go(service, 4)
    assert [other.result().tolist() for other in others] == [[10_000.0 * n] for n in range(4)]
    first.result()
    (stacked,) = [found for found in seen if found.shape == (4, 10_000)]
    assert type(stacked.base).__name__ == "Block"


def test_all_that_a_batch_may_have(model: tuple[Any, Any]) -> None:
    _, client = model
    with ThreadPoolExecutor(16) as pool:
        wanted = [(n, float(n % 2)) for n in range(16)]
        found = list(pool.map(lambda each: client.scaled(rows(1), [f"n{each[0]}"], each[1]), wanted))
    for (n, scale), scored in zip(wanted, found, strict=True):
        assert scored.sums.tolist() == [4 * scale]
        assert scored.names == [f"n{n}!"]
    assert client.scaled(rows(1), ["default"]).sums.tolist() == [8.0]


def test_one_that_is_cancelled_leaves_the_batch(either: tuple[Any, Any]) -> None:
    service, client = either
    first = held(service, client)
    others = [client.sum.start(rows(n)) for n in range(5)]
    assert others[2].cancel()
    with pytest.raises(rrpc.DeadlineExceeded):
        client.sum(rows(7), timeout=0.05)
    let_go(service, 4)
    assert [others[n].result().tolist() for n in (0, 1, 3, 4)] == [[4.0 * n] for n in (0, 1, 3, 4)]
    assert first.result().tolist() == [0]
    assert service.batches[1:] == [(4, 4)]


def test_a_deadline_brings_the_batch_forward(model: tuple[Any, Any]) -> None:
    service, client = model
    assert client.slow(rows(1), timeout=patience(2))[0].tolist() == [4.0]
    assert service.batches == [(1, 4)]


@pytest.mark.parametrize(
    ("word", "error", "text"),
    [
        ("all", rrpc.NotFound, "nothing here"),
        ("short", rrpc.Internal, "the batch has 2 rows, and its result 1"),
        ("scalar", rrpc.Internal, "the batch gave int: it gives an array"),
        ("bug", rrpc.RemoteError, "a bug"),
    ],
)
def test_errors_go_to_all_callers(model: tuple[Any, Any], word: str, error: Any, text: str) -> None:
    service, client = model
    futures = [client.fail.start([each]) for each in (word, "other")]
    for future in futures:
        with pytest.raises(error, match=text):
            future.result()
    assert service.batches == [(2,)]
    assert client.fail(["word"]) == [4]


def test_an_error_of_one_row_is_its_callers(model: tuple[Any, Any]) -> None:
    service, client = model
    futures = [client.fail.start([each]) for each in ("two", "one", "three")]
    assert futures[0].result() == [3]
    with pytest.raises(rrpc.NotFound, match="one"):
        futures[1].result()
    assert futures[2].result() == [5]
    assert service.batches == [(3,)]


def test_what_has_no_rows_is_refused_alone(model: tuple[Any, Any]) -> None:
    _, client = model
    fine = client.scaled.start(rows(1), ["a"])
    with pytest.raises(rrpc.InvalidArgument, match=r"differ in the length .* rows has 2, names has 1"):
        client.scaled(rows(1, 2), ["a"])
    with pytest.raises(rrpc.InvalidArgument, match="rows: the array has no axis"):
        client.sum(np.array(1.0, np.float32))
    assert fine.result().names == ["a!"]


def test_arguments_without_a_batch_axis(model: tuple[Any, Any]) -> None:
    _, client = model
    table = np.ones(3, np.float32)
    with ThreadPoolExecutor(8) as pool:
        assert [each.tolist() for each in pool.map(lambda n: client.among(rows(n), table), range(8))] == [
            [4.0 * n + 3] for n in range(8)
        ]


def test_draining_a_server_answers_what_waits(address: str) -> None:
    service = Model()
    server = rrpc.serve(service, listen=address)
    with CLIENTS.ModelClient(server.addresses[0], timeout=patience(30)) as client:
        first = held(service, client)
        others = [client.sum.start(rows(n)) for n in range(3)]
        eventually(lambda: server.stats()["calls_running"] == 4)
        stopping = threading.Thread(target=server.drain, args=(patience(30),))
        stopping.start()
        service.go_on.set()
        assert [other.result().tolist() for other in others] == [[4.0 * n] for n in range(3)]
        assert first.result().tolist() == [0]
        stopping.join()


def test_in_an_asyncio_server() -> None:
    async def use() -> None:
        service = Model()
        server = await rrpc.aio.serve(service, listen=address_to_listen_on("tcp"))
        async with server, CLIENTS.AsyncModelClient(server.addresses[0]) as client:
            found = await asyncio.gather(*(client.sum(rows(n)) for n in range(64)))
        assert [each.tolist() for each in found] == [[4.0 * n] for n in range(64)]
        assert len(service.batches) < 64

    asyncio.run(use())


SERVICE = """
import numpy as np
import rrpc
from numpy.typing import NDArray

@rrpc.service
class Double:
    @rrpc.method
    @rrpc.batched(max_batch=32, max_wait=0.01)
    def double(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return rows * len(rows)
"""


def test_by_rrpc_serve(serve: ServeFactory) -> None:
    with rrpc.connect(serve(SERVICE, "Double", module="double", listen="rrpc").address) as client:
        eventually(lambda: max(_rounds(client)) > 1, what="a batch of several")


def _rounds(client: rrpc.Client) -> list[float]:
    futures = [client.start("Double.double", rows(1)) for _ in range(16)]
    return [float(future.result()[0, 0]) for future in futures]


def _no_parameters(self: Any) -> int:
    return 1


def _yields(self: Any, rows: Floats) -> Iterator[int]:
    yield 1


def _fine(self: Any, rows: Floats) -> Floats:
    return rows


@pytest.mark.parametrize(
    ("arguments", "function", "error", "text"),
    [
        ({"max_batch": 0}, _fine, ValueError, "max_batch=0"),
        ({"max_wait": -1.0}, _fine, ValueError, "max_wait=-1.0 seconds at least 0"),
        ({"max_wait": float("nan")}, _fine, ValueError, "max_wait=nan"),
        ({"concurrency": 0}, _fine, ValueError, "concurrency=0"),
        (
            {"over": ["images"]},
            _fine,
            TypeError,
            r"_fine\(\): over=\['images'\] must name parameters of it: rows",
        ),
        ({"over": []}, _fine, TypeError, "must name parameters"),
        ({}, _no_parameters, TypeError, "a batch is of arguments"),
        ({}, _yields, TypeError, "streams aren't batched"),
        ({}, rrpc.method(lambda self, rows: rows), TypeError, "write @rrpc.method above @rrpc.batched"),
        ({}, 3, TypeError, "goes on a plain method"),
    ],
    ids=range(10),
)
def test_mistakes(arguments: Any, function: Callable[..., Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        rrpc.batched(**arguments)(function)
