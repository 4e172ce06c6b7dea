"""Handlers call their callers back, over the connection that these made."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab import TRANSPORTS, LabServer, address_to_listen_on, settles, transient
from numpy.typing import NDArray
from processes import ServeFactory, child_environment, eventually, patience

import rrpc
from rrpc.schema import fingerprint, service_of

SERVICE = """
import itertools

import numpy as np
import rrpc
from numpy.typing import NDArray

kept = {}
outcomes = []


class Progress(rrpc.UnaryMethod[int]):
    rpc_name = "Desk.progress"

    def __call__(self, step: int, rows: NDArray[np.float64], *, timeout: float | None = None) -> int:
        return self._call((step, rows), timeout)


class DeskClient(rrpc.Client):
    rpc_fingerprints = {"Desk": "FINGERPRINT"}
    progress = rrpc.stub(Progress)


@rrpc.service
class Work:
    @rrpc.method
    def steps(self, count: int, nbytes: int) -> list[int]:
        desk = rrpc.context().client(DeskClient)
        return [desk.progress(step, np.full(nbytes // 8, step, np.float64)) for step in range(count)]

    @rrpc.method
    def by_name(self, method: str, value: object) -> object:
        return rrpc.context().client().call(method, value)

    @rrpc.method
    def bounce(self, depth: int) -> int:
        '''Each end calls the other, so many times.'''
        return rrpc.context().client().call("Desk.bounce", depth - 1) + 1 if depth else 0

    @rrpc.method
    def gather(self, n: int, most: int) -> int:
        '''The sum of so many of the caller's items.'''
        with rrpc.open_stream(rrpc.context().client(), "Desk.count", n) as values:
            return sum(itertools.islice(values, most))

    @rrpc.method
    def pour(self, n: int) -> int:
        with rrpc.open_stream(rrpc.context().client(), "Desk.add", sends=True, receives=False) as values:
            for value in range(n):
                values.send(value)
            return values.finish()

    @rrpc.method
    def swap(self, blocks: int, nbytes: int) -> int:
        with rrpc.open_stream(rrpc.context().client(), "Desk.doubled", sends=True) as stream:
            total = 0
            for i in range(blocks):
                stream.send(np.full(nbytes, i, np.uint8))
                total += int(next(stream).sum())
            return total

    @rrpc.method
    def follow(self) -> None:
        '''To the end, which never comes by itself.'''
        try:
            for _ in rrpc.open_stream(rrpc.context().client(), "Desk.count", 1 << 40):
                pass
        except rrpc.RpcError as error:
            outcomes.append(type(error).__name__)
            raise

    @rrpc.method
    def followed(self) -> list[str]:
        '''How each follow() has ended.'''
        return outcomes

    @rrpc.method
    def usage(self) -> dict[str, int]:
        return rrpc.stats()

    @rrpc.method
    def keep(self, group: str) -> None:
        kept.setdefault(group, []).append(rrpc.context().client())

    @rrpc.method
    def tell(self, group: str, text: str) -> list[str]:
        '''What those say who asked to be told.'''
        return [call(client, text) for client in kept[group]]


def call(client, text):
    try:
        return client.call("Desk.heard", text, timeout=20.0)
    except rrpc.Unavailable as error:
        return f"Unavailable: {error}" if error.not_executed else "lost"
"""


@rrpc.service
class Desk:
    """What the client offers."""

    def __init__(self) -> None:
        self.client: Any = None
        self.steps: list[int] = []
        self.streams = 0
        self.heard_of: list[str] = []
        self.cancelled = threading.Event()
        self.began = threading.Event()

    @rrpc.method
    def progress(self, step: int, rows: NDArray[np.float64]) -> int:
        self.steps.append(step)
        return int(rows.sum())

    @rrpc.method
    def bounce(self, depth: int) -> int:
        return int(self.client.call("Work.bounce", depth - 1)) + 1 if depth else 0

    @rrpc.method
    def heard(self, text: str) -> str:
        self.heard_of.append(text)
        return f"heard {text}"

    @rrpc.method
    def count(self, n: int) -> Iterator[int]:
        self.streams += 1
        try:
            yield from range(n)
        finally:
            self.streams -= 1

    @rrpc.method
    def add(self, values: Iterator[int]) -> int:
        return sum(values)

    @rrpc.method
    def doubled(self, blocks: Iterator[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
        for block in blocks:
            yield block * 2

    @rrpc.method
    def refuse(self, value: Any) -> None:
        raise rrpc.PermissionDenied("not for you", details={"value": value})

    @rrpc.method
    def hold(self, value: Any) -> None:
        self.began.set()
        if rrpc.context().wait_cancelled(patience(30)):
            self.cancelled.set()


@pytest.fixture(scope="module")
def work_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    text = SERVICE.replace("FINGERPRINT", fingerprint(service_of(Desk)))
    folder = tmp_path_factory.mktemp("work")
    factory = ServeFactory(folder, address_to_listen_on)
    yield LabServer(factory(text, "Work", listen=TRANSPORTS, module="work_service", args=["--workers", "6"]))
    factory.close()


@pytest.fixture
def work(work_server: LabServer, transport: str) -> str:
    """The address of a server of SERVICE."""
    return work_server.address(transport)


@contextmanager
def _connected(address: str) -> Iterator[tuple[rrpc.Client, Desk]]:
    desk = Desk()
    with (
        rrpc.Server(desk, workers=6) as mine,
        rrpc.connect(address, serve=mine, timeout=patience(30)) as client,
    ):
        desk.client = client
        yield client, desk


@pytest.mark.parametrize("nbytes", [80, 800_000])
def test_a_handler_calls_back(work: str, nbytes: int) -> None:
    with _connected(work) as (client, desk):
        idle = transient(rrpc.stats())
        assert client.call("Work.steps", 3, nbytes) == [0, nbytes // 8, nbytes // 4]
        assert desk.steps == [0, 1, 2]
        assert client.call("Work.by_name", "Desk.heard", "a") == "heard a"
        settles(rrpc.stats, idle)


def test_streams_of_the_caller(work: str) -> None:
    with _connected(work) as (client, desk):
        idle, there = transient(rrpc.stats()), transient(client.call("Work.usage"))
        assert client.call("Work.gather", 5000, 5000) == 12_497_500
        assert client.call("Work.pour", 5000) == 12_497_500
        assert client.call("Work.swap", 20, 100_000) == 2 * 190 * 100_000 == 38_000_000
        assert client.call("Work.gather", 1 << 40, 10) == 45  # and leaves it
        eventually(lambda: desk.streams == 0)
        future = client.start("Work.follow")
        eventually(lambda: desk.streams == 1)
        future.cancel()  # goes there and back
        eventually(lambda: desk.streams == 0)
        settles(rrpc.stats, idle)
        settles(lambda: client.call("Work.usage"), there)


DYING = """
import sys, time
sys.path.insert(0, sys.argv[1])
import rrpc
from test_callbacks import Desk
with rrpc.Server(Desk()) as mine, rrpc.connect(sys.argv[2], serve=mine) as client:
    futures = [client.start("Work.follow") for _ in range(3)]
    while mine.stats()["calls_running"] < 3:
        time.sleep(0.005)
    print("followed", flush=True)
    futures[0].result()
"""


def test_a_caller_that_dies_amid_its_streams(work: str) -> None:
    with rrpc.connect(work, timeout=patience(30)) as watcher:
        ended, idle = watcher.call("Work.followed"), transient(watcher.call("Work.usage"))
        command = [sys.executable, "-c", DYING, str(Path(__file__).parent), work]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as dying:
            assert dying.stdout is not None
            assert dying.stdout.readline() == "followed\n"
            dying.kill()
        eventually(lambda: len(watcher.call("Work.followed")) >= len(ended) + 3)
        assert set(watcher.call("Work.followed")[len(ended) :]) <= {"Unavailable", "Cancelled"}
        settles(lambda: watcher.call("Work.usage"), idle)


def test_calls_nest(work: str) -> None:
    with _connected(work) as (client, _):
        assert client.call("Work.bounce", 7) == 7


def test_errors_come_back(work: str) -> None:
    with _connected(work) as (client, _):
        with pytest.raises(rrpc.PermissionDenied, match="not for you") as caught:
            client.call("Work.by_name", "Desk.refuse", 7)
        assert caught.value.details == {"value": 7}
        with pytest.raises(rrpc.Unimplemented, match="Desk has no method 'gone'"):
            client.call("Work.by_name", "Desk.gone", 7)


def test_a_cancel_goes_there_and_back(work: str) -> None:
    with _connected(work) as (client, desk):
        future = client.start("Work.by_name", "Desk.hold", 7)
        assert desk.began.wait(patience(20))
        assert future.cancel()
        assert desk.cancelled.wait(patience(20))


def test_a_caller_that_takes_no_calls(work: str) -> None:
    with (
        rrpc.connect(work, timeout=patience(30)) as client,
        pytest.raises(rrpc.FailedPrecondition, match="connected without serve="),
    ):
        client.call("Work.by_name", "Desk.heard", "a")


def test_the_client_may_be_kept(work: str, transport: str) -> None:
    """Calls to it reach those that are still there."""
    with rrpc.connect(work, timeout=patience(30)) as other:
        with _connected(work) as (client, desk), _connected(work) as (second, _):
            client.call("Work.keep", transport)
            second.call("Work.keep", transport)
            assert other.call("Work.tell", transport, "news") == ["heard news"] * 2
            assert desk.heard_of == ["news"]
        eventually(lambda: all("has gone" in told for told in other.call("Work.tell", transport, "more")))


def test_what_can_t_serve(work: str) -> None:
    for bad in (Desk(), rrpc.Server(Desk()), "tcp://127.0.0.1:1"):
        with pytest.raises(TypeError, match=r"serve= takes an rrpc\.Server that has been started"):
            rrpc.connect(work, serve=bad)
