"""A service whose plain calls need no Python of rrpc's, and its generated client."""

from __future__ import annotations

import contextvars
import dataclasses
import os
import threading
from collections.abc import Iterator
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
        rrpc.context().wait_cancelled(seconds)


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
