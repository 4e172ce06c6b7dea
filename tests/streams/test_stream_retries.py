"""Streams under a retry policy: made again while nothing has come of them, where the method is idempotent."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from flow import generated
from numpy.typing import NDArray
from processes import patience

import rrpc
from rrpc import RetryBudget, RetryPolicy, StatusCode
from rrpc._call.retry import PUSH_BACK
from rrpc.errors import unsent
from rrpc.interceptors import Retry

QUICK: dict[str, Any] = {"max_attempts": 4, "initial_backoff": 0.001, "max_backoff": 0.01}


@rrpc.service
class Moody:
    """Each call fails as long as there is an error for it."""

    def __init__(self) -> None:
        self.errors: list[rrpc.RpcError] = []
        self.calls = 0
        self.push_back = ""

    def _begin(self) -> None:
        self.calls += 1
        if self.errors:
            if self.push_back:
                rrpc.context().set_metadata({PUSH_BACK: self.push_back})
            raise self.errors.pop()

    @rrpc.method(idempotent=True)
    def count(self, n: int) -> Iterator[int]:
        self._begin()
        yield from range(n)

    @rrpc.method
    def count_once(self, n: int) -> Iterator[int]:
        self._begin()
        yield from range(n)

    @rrpc.method(idempotent=True)
    def breaks(self, n: int) -> Iterator[int]:
        """After n items."""
        self.calls += 1
        yield from range(n)
        raise rrpc.Unavailable("broken off")

    @rrpc.method(idempotent=True)
    def greets(self) -> Iterator[int]:
        self.calls += 1
        rrpc.context().send_initial_metadata({"room": "7"})
        if self.calls:
            raise rrpc.Unavailable("after the greeting")
        yield 1

    @rrpc.method(idempotent=True)
    def total(self, values: Iterator[int]) -> int:
        """Takes the items before it fails."""
        found = sum(values)
        self._begin()
        return found

    @rrpc.method(idempotent=True)
    def weigh(self, blocks: Iterator[NDArray[np.uint8]]) -> int:
        self._begin()
        return sum(block.nbytes for block in blocks)

    @rrpc.method(idempotent=True)
    def doubled(self, values: Iterator[int]) -> Iterator[int]:
        self._begin()
        for value in values:
            yield 2 * value


moody_rpc = generated(Moody, "moody_rpc")


class Served:
    def __init__(self, service: Moody, address: str) -> None:
        self.service = service
        self.address = address

    def fail(self, times: int, error: Callable[[str], rrpc.RpcError] = rrpc.Unavailable) -> None:
        """The next calls."""
        self.service.calls = 0
        self.service.errors = [error("not now") for _ in range(times)]

    @contextmanager
    def client(self, **options: Any) -> Iterator[Any]:
        options = {"retry": RetryPolicy(**QUICK, budget=None), **options}
        with moody_rpc.MoodyClient(self.address, timeout=patience(20), **options) as client:
            yield client


@pytest.fixture
def served(address: str) -> Iterator[Served]:
    service = Moody()
    with rrpc.serve(service, listen=address) as server:
        yield Served(service, server.addresses[0])


def blocks(count: int) -> Iterator[Any]:
    for i in range(count):
        yield np.full(100_000, i, np.uint8)


USES: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda client: list(client.count(3)), [0, 1, 2]),
    (lambda client: client.total(range(5)), 10),
    (lambda client: client.weigh(blocks(3)), 300_000),
    (lambda client: list(client.doubled(range(5))), [0, 2, 4, 6, 8]),
]


@pytest.mark.parametrize(("use", "result"), USES)
def test_a_stream_that_failed_is_made_again(served: Served, use: Any, result: Any) -> None:
    with served.client() as client:
        served.fail(3)
        assert use(client) == result
        assert served.service.calls == 4
        served.fail(4)
        with pytest.raises(rrpc.Unavailable, match="not now"):
            use(client)
        assert served.service.calls == 4


async def _list(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def _later(items: Any) -> AsyncIterator[Any]:
    for item in items:
        await asyncio.sleep(0)
        yield item


ASYNC_USES: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda client: _list(client.count(3)), [0, 1, 2]),
    (lambda client: client.total(_later(range(5))), 10),
    (lambda client: client.weigh(blocks(3)), 300_000),
    (lambda client: _list(client.doubled(_later(range(5)))), [0, 2, 4, 6, 8]),
]


@pytest.mark.parametrize(("use", "result"), ASYNC_USES)
def test_in_asyncio(in_loop: Any, served: Served, use: Any, result: Any) -> None:
    async def main() -> None:
        retry = RetryPolicy(**QUICK, budget=None)
        async with moody_rpc.AsyncMoodyClient(served.address, timeout=patience(20), retry=retry) as client:
            served.fail(3)
            assert await use(client) == result
            assert served.service.calls == 4
            served.fail(4)
            with pytest.raises(rrpc.Unavailable, match="not now"):
                await use(client)

    in_loop(main())


def test_what_is_not_made_again(served: Served) -> None:
    with served.client() as client:
        served.fail(1)
        with pytest.raises(rrpc.Unavailable, match="not now"):
            list(client.count_once(3))
        served.fail(1, rrpc.Aborted)
        with pytest.raises(rrpc.Aborted, match="not now"):
            list(client.count(3))
        served.fail(0)
        stream = client.breaks(2)
        assert [next(stream), next(stream)] == [0, 1]
        with pytest.raises(rrpc.Unavailable, match="broken off"):
            next(stream)
        assert served.service.calls == 1
        with pytest.raises(rrpc.Unavailable, match="after the greeting"):
            list(client.greets())
        assert served.service.calls == 2


def test_items_that_are_not_kept(served: Served) -> None:
    with served.client() as client:
        served.fail(1)
        with pytest.raises(rrpc.Unavailable, match="not now"):
            client.total(range(2000))
        assert served.service.calls == 1


def test_the_codes_are_the_policys(served: Served) -> None:
    policy = RetryPolicy(**QUICK, codes=[StatusCode.ABORTED], budget=None)
    with served.client(retry=policy) as client:
        served.fail(1, rrpc.Aborted)
        assert list(client.count(2)) == [0, 1]


def test_the_budget(served: Served) -> None:
    budget = RetryBudget(tokens=4, ratio=0.5)
    with served.client(retry=RetryPolicy(**QUICK, budget=budget)) as client:
        served.fail(4)
        with pytest.raises(rrpc.Unavailable):
            list(client.count(1))
        assert served.service.calls == 2  # the second failure left half of the tokens
        assert budget.left == 2
        served.fail(0)
        assert list(client.count(1)) == [0]
        assert budget.left == 2.5


def test_the_server_says_when(served: Served) -> None:
    policy = RetryPolicy(initial_backoff=600.0, max_backoff=600.0, jitter=0.0, budget=None)
    with served.client(retry=policy) as client:
        served.fail(1)
        served.service.push_back = "1"
        assert list(client.count(2)) == [0, 1]
        served.fail(1)
        served.service.push_back = "-1"
        with pytest.raises(rrpc.Unavailable):
            list(client.count(2))
        served.fail(1)
        served.service.push_back = ""
        with pytest.raises(rrpc.Unavailable):  # the deadline would pass first
            list(client.count(2))


def test_the_interceptor(served: Served) -> None:
    retry = Retry(RetryPolicy(**QUICK, budget=None))
    with served.client(retry=None, interceptors=[retry]) as client:
        served.fail(2)
        assert list(client.count(2)) == [0, 1]
        assert served.service.calls == 3


def test_hedging_leaves_streams_alone(served: Served) -> None:
    with served.client(retry=None, hedging=rrpc.HedgingPolicy(delay=0.0)) as client:
        served.fail(1)
        with pytest.raises(rrpc.Unavailable):
            list(client.count(2))
        assert served.service.calls == 1


class Refuses(rrpc.ClientInterceptor):
    """The first attempts, before they leave."""

    def __init__(self, times: int) -> None:
        self.seen = 0
        self._times = times

    def stream(self, call: Any) -> Generator[Any, Any, Any]:
        self.seen += 1
        if self.seen <= self._times:
            raise unsent(rrpc.Unavailable("not from here"))
        return (yield call)


def test_attempts_to_begin(served: Served) -> None:
    """They are tried again too, whatever the method is; what stands inside of the policy sees each."""
    policy, refuses = RetryPolicy(**QUICK, budget=None), Refuses(3)
    with served.client(retry=None, interceptors=[Retry(policy), refuses]) as client:
        assert list(client.count_once(2)) == [0, 1]
    assert (refuses.seen, served.service.calls) == (4, 1)
    refuses = Refuses(4)
    with (
        served.client(retry=None, interceptors=[Retry(policy), refuses]) as client,
        pytest.raises(rrpc.Unavailable, match="not from here"),
    ):
        list(client.count_once(2))
    assert (refuses.seen, served.service.calls) == (4, 1)
