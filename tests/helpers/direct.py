"""A service whose plain calls need no Python of rrpc's, and its generated client."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import pytest
from flow import generated
from numpy.typing import NDArray

import rrpc


@dataclasses.dataclass
class Point:
    x: float
    y: float


@rrpc.service
class Bench:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.kept: list[Any] = []
        self.peer = ""
        self.inherited = threading.Event()
        self.go_on = threading.Event()
        self.started = threading.Semaphore(0)
        self.given_up = threading.Semaphore(0)

    @rrpc.method
    def add(self, a: int, b: int = 2) -> int:
        """Adds two numbers."""
        return a + b

    @rrpc.method
    def move(self, point: Point, by: float, *, back: bool = False) -> Point:
        return Point(point.x - by if back else point.x + by, point.y)

    @rrpc.method
    def double(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values * 2

    @rrpc.method
    def rows(
        self, queries: Annotated[NDArray[np.float32], rrpc.Shape("n", 3)], k: int, *, wrong: bool = False
    ) -> Annotated[NDArray[np.int64], rrpc.Shape("n", "k")]:
        return np.zeros((len(queries) + wrong, k), np.int64)

    @rrpc.method
    def wrong(self) -> int:
        return "text"  # type: ignore[return-value]

    @rrpc.method
    def half(self, n: int) -> float:
        return n // 2

    @rrpc.method
    def fail(self, how: str) -> None:
        if how == "exit":
            raise SystemExit(3)
        if how == "not found":
            raise rrpc.NotFound("it is not here")
        raise LookupError("nowhere")

    @rrpc.method
    def look(self) -> str:
        context = rrpc.context()
        left = context.time_left()
        self.kept.append((context, contextvars.copy_context()))
        assert context is rrpc.context()
        return (
            f"{context.method} {left is not None and 5 < left <= 10} {dict(context.metadata)} {context.ended}"
        )

    @rrpc.method
    def tell(self, what: str) -> int:
        rrpc.context().set_metadata({"told": what})
        return 1

    @rrpc.method
    def call_again(self) -> None:
        """Calls itself, by a client of its own."""
        with bench_rpc.BenchClient(self.peer) as client:
            client.add(1)
            with pytest.raises(rrpc.DeadlineExceeded):
                client.slow(60.0)
            self.inherited.set()

    @rrpc.method
    def leave_a_thread(self) -> str:
        """Its thread asks for the context once ``go_on`` is set."""
        variables = contextvars.copy_context()
        asked = threading.Thread(target=variables.run, args=(self.ask,))
        self.kept.append(asked)
        asked.start()
        return rrpc.context().method

    def ask(self) -> None:
        self.go_on.wait(60)
        try:
            self.seen.append((rrpc.context().method, dict(rrpc.context().metadata)))
        except RuntimeError as error:
            self.seen.append(str(error))

    @rrpc.method
    def broken(self) -> Point:
        point = Point(1.0, 2.0)
        del point.x
        return point

    @rrpc.method
    def only(self, a: int, /) -> int:
        return a

    @rrpc.method
    def slow(self, seconds: float) -> None:
        self.started.release()
        if rrpc.context().wait_cancelled(seconds):
            self.given_up.release()


@contextlib.contextmanager
def python_runs() -> Iterator[set[str]]:
    """Gives the functions of rrpc that run meanwhile in this thread."""
    ran: set[str] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            ran.add(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    gc.collect()  # of earlier tests, whose objects' finalizers would run meanwhile
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield ran
    finally:
        sys.setprofile(before)


def python_run(work: Callable[[], Any]) -> set[str]:
    """Returns the functions of rrpc that ``work`` runs."""
    with python_runs() as ran:
        work()
    return ran


FOLDER = os.path.dirname(rrpc.__file__)
bench_rpc = generated(Bench, "bench_rpc")
ADDRESS = f"shm://rrpc-direct-{os.getpid()}"


@pytest.fixture(name="bench")
def bench_fixture() -> Bench:
    return Bench()


@pytest.fixture(name="client")
def client_fixture(bench: Bench) -> Iterator[Any]:
    with rrpc.Server(bench, listen=ADDRESS, workers=2) as server:
        bench.peer = server.addresses[0]
        with bench_rpc.BenchClient(server.addresses[0]) as client:
            yield client
