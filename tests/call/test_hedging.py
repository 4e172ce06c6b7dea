"""Hedging: calling again before there is an answer."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counted_service import CountedClient
from fleet import Fleet, fleet, nursery, scheme, wait_until_gone
from numpy.typing import NDArray
from processes import eventually, patience

import rrpc
from rrpc import HedgingPolicy
from rrpc._call.retry import PUSH_BACK
from rrpc._channel.timers import Timer

__all__ = ["fleet", "nursery", "scheme"]

Use = Callable[..., Any]


@pytest.fixture(params=["call", "future"])
def use(request: pytest.FixtureRequest) -> Use:
    """Calls a method in either style."""
    if request.param == "call":
        return lambda method, *args, **options: method(*args, **options)
    return lambda method, *args, **options: method.start(*args, **options).result(patience(60))


def test_hedging_takes_the_first_answer(fleet: Fleet, scheme: str, use: Use) -> None:
    servers = fleet.members(2, scheme)
    servers[0].told("slow")
    hedging = HedgingPolicy(delay=0.02, budget=None)
    addresses = [server.address for server in servers]
    with CountedClient(addresses, policy="round_robin", hedging=hedging) as client:
        eventually(lambda: [e["state"] for e in client.info()["channel"]["addresses"]] == ["ready"] * 2)
        for i in range(6):
            assert use(client.often, f"key{i}", timeout=patience(20)) == "server1"
        slow = [f"key{i}" for i in range(6) if fleet.ran(f"key{i}", "server0")]
        assert slow
        # The attempts that lost were cancelled: their handlers, which wait for that, have ended.
        servers[0].drain()
        wait_until_gone(servers[0].pid)


def test_hedging_is_for_idempotent_methods(fleet: Fleet, use: Use) -> None:
    (server,) = fleet.members(1, "shm")
    server.told("slow")
    hedging = HedgingPolicy(delay=0.01, max_attempts=3, budget=None)
    with CountedClient(server.address, hedging=hedging) as client:
        with pytest.raises(rrpc.DeadlineExceeded):
            use(client.once, "once", timeout=1.0)
        with pytest.raises(rrpc.DeadlineExceeded):
            use(client.often, "often", timeout=1.0)
        assert fleet.runs().count("once") == 1
        eventually(lambda: fleet.runs().count("often") == 3)


def test_hedging_goes_on_at_once_after_a_failure(fleet: Fleet, scheme: str, use: Use) -> None:
    (server,) = fleet.members(1, scheme)
    hedging = HedgingPolicy(delay=60.0, max_attempts=3, budget=None)
    with CountedClient(server.address, hedging=hedging) as client:
        start = time.monotonic()
        assert use(client.moody, "twice", 2, 14) == "server0"
        with pytest.raises(rrpc.Unavailable, match="in a mood"):
            use(client.moody, "always", 99, 14)
        with pytest.raises(rrpc.Aborted):
            use(client.moody, "other-code", 1, 10)
        assert time.monotonic() - start < patience(20)
        assert [fleet.runs().count(key) for key in ("twice", "always", "other-code")] == [3, 3, 1]


@rrpc.service
class Filling:
    def __init__(self) -> None:
        self.runs = 0
        self.seconds = 0.3
        self.hedged = threading.Event()

    @rrpc.method(idempotent=True)
    def fill(self) -> NDArray[np.float64]:
        self.runs += 1
        if self.runs == 3:
            self.hedged.set()
        self.hedged.wait(self.seconds)
        return np.full(100_000, float(self.runs))


class _Fill(rrpc.UnaryMethod[NDArray[np.float64]]):
    rpc_name = "Filling.fill"
    rpc_idempotent = True

    def __call__(self, *, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        return self._call((), 30.0, None, out)

    def start(self, *, out: NDArray[np.float64] | None = None) -> rrpc.Future[NDArray[np.float64]]:
        return self._start((), 30.0, None, out)


class _FillingClient(rrpc.Client):
    fill = rrpc.stub(_Fill)


def test_what_is_written_into_the_callers_memory_is_hedged_by_nothing(address: str, use: Use) -> None:
    service = Filling()
    hedging = HedgingPolicy(delay=0.01, budget=None)
    with (
        rrpc.serve(service, listen=address, workers=4) as server,
        _FillingClient(server.addresses[0], hedging=hedging) as client,
    ):
        out = np.zeros(100_000)
        assert use(client.fill, out=out) is out
        assert service.runs == 1
        assert set(out) == {1.0}
        service.seconds = patience(20.0)
        use(client.fill)
        assert service.runs == 3


@rrpc.service
class Pushing:
    """Says with its first errors when to call again."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.runs: list[float] = []

    @rrpc.method(idempotent=True)
    def run(self) -> int:
        self.runs.append(time.monotonic())
        if len(self.runs) > len(self.errors):
            return len(self.runs)
        rrpc.context().set_metadata({PUSH_BACK: self.errors[len(self.runs) - 1]})
        raise rrpc.Unavailable("not now")


class _Run(rrpc.UnaryMethod[int]):
    rpc_name = "Pushing.run"
    rpc_idempotent = True

    def __call__(self, *, timeout: float | None = 30.0) -> int:
        return self._call((), timeout)

    def start(self, *, timeout: float | None = 30.0) -> rrpc.Future[int]:
        return self._start((), timeout)


class _PushingClient(rrpc.Client):
    run = rrpc.stub(_Run)


def test_hedging_waits_as_long_as_the_server_says(address: str, use: Use) -> None:
    service = Pushing()
    hedging = HedgingPolicy(delay=60.0, max_attempts=3, budget=None)
    with (
        rrpc.serve(service, listen=address, workers=4) as server,
        _PushingClient(server.addresses[0], hedging=hedging) as client,
    ):
        service.errors = ["80", "40"]
        assert use(client.run) == 3
        first, second, third = service.runs
        assert second - first >= 0.08
        assert third - second >= 0.04
        # Not at all; more often than it may be made; later than it may take.
        for errors, timeout, runs in ((["-1"], 30.0, 1), (["1"] * 9, 30.0, 3), (["40000"], 30.0, 1)):
            service.errors, service.runs = errors, []
            with pytest.raises(rrpc.Unavailable, match="not now"):
                use(client.run, timeout=timeout)
            assert len(service.runs) == runs


def test_a_failure_while_the_time_of_the_next_attempt_comes(
    fleet: Fleet, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer has just fired, and its thread hasn't begun the attempt yet."""

    def fired(seconds: float, do: Callable[[], object]) -> Timer:
        timer = Timer(do)
        timer.cancel()
        return timer

    monkeypatch.setattr("rrpc._client.hedging.after", fired)
    (server,) = fleet.members(1, "shm")
    hedging = HedgingPolicy(delay=0.01, max_attempts=3, budget=None)
    with CountedClient(server.address, hedging=hedging) as client:
        assert use(client.moody, "twice", 2, 14) == "server0"


def test_a_budget_that_ends_hedging_is_named(fleet: Fleet, use: Use) -> None:
    (server,) = fleet.members(1, "shm")
    server.told("fail")
    hedging = HedgingPolicy(delay=60.0, max_attempts=3, budget=rrpc.RetryBudget(tokens=1))
    with (
        CountedClient(server.address, hedging=hedging) as client,
        pytest.raises(rrpc.Unavailable, match=r"told to fail; .* 0 of the 1 tokens of its retry budget"),
    ):
        use(client.often, "x")
    assert fleet.runs() == ["x"]
