"""Calls of every type that are given up at whatever moment, over a connection that stays: after each round of them both
ends hold what they held before. Those of blocking clients without calls back are in test_cancellation and
test_stream_limits."""

import asyncio
import concurrent.futures
import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aio import Run
from busy_service import Busy
from flow import flow_rpc
from flow_service import Flow
from lab import transient
from lives import ASYNCIO, BLOCKING, ENDLESS, KINDS, OPTIONS, WORKERS, Life, drawn, maternity
from processes import eventually, patience

import rrpc
from rrpc.std import StatsClient

__all__ = ["maternity"]

AT_A_TIME = 10
ROUNDS = 3
MOMENTS_S = 0.03  # within which calls are cancelled; some end before


class Both:
    """Watches both ends, over a connection of its own."""

    def __init__(self, address: str, own: Any) -> None:
        self._client = flow_rpc.FlowClient(address, timeout=patience(30))
        self._stats = StatsClient(address, timeout=patience(30))
        self._own = own

    def held(self) -> dict[str, int]:
        gc.collect()  # a cancelled coroutine's traceback keeps what it had
        there, here = self._client.counts(), Flow().counts()
        held = {"streams there": there["begun"] - there["closed"], "streams": here["begun"] - here["closed"]}
        held["calls there"] = self._stats.process().calls_running
        held["calls"] = self._own.stats()["calls_running"]
        for name, count in transient(self._client.call("Busy.usage")).items():
            held[f"{name} there"] = count
        return held | transient(rrpc.stats())

    @contextmanager
    def nothing_left(self, seed: int) -> Iterator[None]:
        before = self.held()
        yield
        left: dict[str, int] = {}

        def settled() -> bool:
            left.update(self.held())
            return left == before

        try:
            eventually(settled)
        except AssertionError:
            raise AssertionError(f"round {seed} left {left}, not {before}") from None

    def close(self) -> None:
        self._client.close()
        self._stats.close()


def _rounds(outcomes: Counter[str], count: int) -> Iterator[tuple[int, float]]:
    """Seeds, and within how many seconds calls are cancelled: on a busy machine more, until some end before."""
    moments_s = MOMENTS_S
    for seed in range(count + 6):
        if seed >= count:
            if len(outcomes) > 1:
                return
            moments_s *= 2
        yield seed, moments_s


async def _some_given_up(client: Any, kind: str, chance: random.Random, moments_s: float) -> Counter[str]:
    async def one(action: Callable[[Any], Any]) -> None:
        await action(client)

    calls = [
        asyncio.ensure_future(one(drawn(ASYNCIO[kind] + ENDLESS[kind], chance))) for _ in range(AT_A_TIME)
    ]
    for call in calls:
        asyncio.get_running_loop().call_later(chance.uniform(0, moments_s), call.cancel)
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), patience(30))
    return Counter(_outcome(how) for how in ended)


def _outcome(how: BaseException | None) -> str:
    if isinstance(how, (asyncio.CancelledError, rrpc.Cancelled)):
        return "given up"
    return "done" if how is None else repr(how)


def _both_ways(outcomes: Counter[str]) -> None:
    assert set(outcomes) == {"given up", "done"}, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_cancelled_at_any_moment(
    maternity: Callable[..., Life], address: str, kind: str, in_loop: Run[Any]
) -> None:
    """The loop has no task more in the end, either."""
    outcomes: Counter[str] = Counter()

    async def main() -> None:
        tasks = asyncio.all_tasks()
        server = maternity("asyncio", address, "server")
        async with (
            rrpc.aio.serve(Busy(), Flow(), listen=(), workers=WORKERS) as own,
            flow_rpc.AsyncFlowClient(server.address, serve=own, **OPTIONS) as client,
        ):
            both = await asyncio.to_thread(Both, server.address, own)
            for seed, moments_s in _rounds(outcomes, ROUNDS):
                watch = both.nothing_left(seed)
                await asyncio.to_thread(watch.__enter__)
                outcomes.update(await _some_given_up(client, kind, random.Random(seed), moments_s))
                await asyncio.to_thread(watch.__exit__, None, None, None)
            both.close()
        server.kill()
        assert asyncio.all_tasks() == tasks

    in_loop(main())
    _both_ways(outcomes)


@pytest.mark.slow
def test_calls_back_given_up_at_any_moment(maternity: Callable[..., Life], address: str) -> None:
    outcomes: Counter[str] = Counter()
    server = maternity("blocking", address, "server")
    with (
        rrpc.Server(Busy(), Flow(), workers=WORKERS) as own,
        flow_rpc.FlowClient(server.address, serve=own, **OPTIONS) as client,
    ):
        both = Both(server.address, own)
        actions = BLOCKING["callbacks"] + ENDLESS["callbacks"]
        starting = SimpleNamespace(call=client.start)
        for seed, moments_s in _rounds(outcomes, 2 * ROUNDS):
            chance = random.Random(seed)
            with both.nothing_left(seed):
                calls = [drawn(actions, chance)(starting) for _ in range(AT_A_TIME)]
                for call in calls:
                    concurrent.futures.wait([call], timeout=chance.expovariate(AT_A_TIME / moments_s))
                    call.cancel()
                outcomes.update(_outcome(call.exception(patience(30))) for call in calls)
                del call, calls
        both.close()
    server.kill()
    _both_ways(outcomes)
