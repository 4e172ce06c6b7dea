"""A server's limit of calls a second: what passes it, what is refused and how, and what is exempt."""

from collections.abc import Iterator
from typing import Any

import pytest
from processes import ServeFactory, eventually

import rrpc
from rrpc._call.retry import PUSH_BACK

SLOW = 0.01
"""Calls a second: none is taken after the burst while a test runs."""
SOURCE = """
import rrpc

@rrpc.service
class Counted:
    @rrpc.method
    def add(self, a: int) -> int:
        return a + 1
"""


@rrpc.service
class Counted:
    def __init__(self) -> None:
        self.calls = 0

    @rrpc.method
    def add(self, a: int) -> int:
        self.calls += 1
        return a + 1

    @rrpc.method
    def size(self, data: str) -> int:
        self.calls += 1
        return len(data)

    @rrpc.method
    def count(self, until: int) -> Iterator[int]:
        self.calls += 1
        yield from range(until)


class AsyncCounted(Counted):
    async def add(self, a: int) -> int:  # type: ignore[override]
        return super().add(a)

    async def size(self, data: str) -> int:  # type: ignore[override]
        return super().size(data)


@pytest.fixture(params=[Counted, AsyncCounted])
def service(request: pytest.FixtureRequest) -> Counted:
    made: Counted = request.param()
    return made


def over_rate() -> int:
    return rrpc.stats()["calls_over_rate"]


def test_a_burst_passes_and_the_next_call_is_refused(service: Counted, address: str) -> None:
    before = over_rate()
    with (
        rrpc.serve(service, listen=address, rate_limit=SLOW, rate_burst=3) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
        rrpc.connect(server.addresses[0], timeout=20.0) as other,
    ):
        assert [client.call("Counted.add", 1), other.call("Counted.add", 2)] == [2, 3]
        long = "x" * 100_000  # too long for a slot, so it is fetched
        assert client.call("Counted.size", long) == len(long)
        for method, argument in (("add", 1), ("size", long)):
            with pytest.raises(rrpc.ResourceExhausted) as caught:
                other.call(f"Counted.{method}", argument)
            assert "rate_limit: the server takes 0.01 calls a second (--rate-limit 0.01)" in str(caught.value)
            assert caught.value.not_executed
            after = caught.value.metadata[PUSH_BACK]
            assert f"try again in {after} ms" in str(caught.value)
            assert 0 < int(after) <= 1000 / SLOW
        assert service.calls == 3
        assert over_rate() == before + 2
        assert client.call("rrpc.Health.check") == 1


def test_there_is_room_again_after_a_time(address: str) -> None:
    with (
        rrpc.serve(Counted(), listen=address, rate_limit=20.0, rate_burst=1) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):

        def taken() -> bool:
            return client.start("Counted.add", 1).exception() is None

        assert taken()
        eventually(lambda: not taken())
        eventually(taken)


def test_a_stream_counts_once(address: str) -> None:
    with (
        rrpc.serve(Counted(), listen=address, rate_limit=SLOW, rate_burst=2) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        assert len(list(rrpc.open_stream(client, "Counted.count", 1000))) == 1000
        assert list(rrpc.open_stream(client, "Counted.count", 1)) == [0]
        with pytest.raises(rrpc.ResourceExhausted, match="rate_limit"):
            list(rrpc.open_stream(client, "Counted.count", 1))


def test_a_retry_policy_gets_through(address: str) -> None:
    before = over_rate()
    policy = rrpc.RetryPolicy(codes=[rrpc.StatusCode.RESOURCE_EXHAUSTED], max_attempts=50, budget=None)
    with (
        rrpc.serve(Counted(), listen=address, rate_limit=50.0, rate_burst=1) as server,
        rrpc.connect(server.addresses[0], retry=policy, timeout=60.0) as client,
    ):
        assert [client.call("Counted.add", number) for number in range(5)] == [1, 2, 3, 4, 5]
    assert over_rate() > before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate_limit": 0}, "rate_limit must be a number of calls a second from 0.001 to 1e"),
        ({"rate_limit": float("nan")}, "rate_limit must be"),
        ({"rate_limit": "fast"}, "option 'rate_limit' can't be 'fast'"),
        ({"rate_limit": 10, "rate_burst": 0}, "rate_burst must be a number of calls from 1 to 1e"),
        ({"rate_burst": 5}, "give that too"),
    ],
    ids=["zero", "nan", "text", "no_burst", "burst_alone"],
)
def test_a_limit_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rrpc.InvalidArgument) as caught:
        rrpc.Server(Counted(), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("processes", [1, 2])
def test_rrpc_serve_divides_the_limit(processes: int, serve: ServeFactory) -> None:
    limits = ["--rate-limit", "0.02", "--rate-burst", "4", "--processes", str(processes)]
    served = serve(SOURCE, "Counted", listen="tcp", args=limits)
    with rrpc.connect(served.address, timeout=20.0) as client:
        for _ in range(4 // processes):
            assert client.call("Counted.add", 1) == 2
        with pytest.raises(rrpc.ResourceExhausted, match=rf"takes {0.02 / processes} calls a second"):
            client.call("Counted.add", 1)
        assert client.call("rrpc.Stats.process")["counters"]["calls_over_rate"] == 1
