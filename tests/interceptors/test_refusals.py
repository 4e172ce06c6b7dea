"""Calls that a server's interceptor refuses: each by itself, whatever becomes of its connection and other calls."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counted_service import Counted, CountedClient
from styles import calling, style

import rrpc

__all__ = ["style"]


class Shed(rrpc.ServerInterceptor):
    """Refuses some calls, as a server does that has too many."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def unary(self, call: Any) -> Any:
        self.seen.append(call.method)
        if call.method.endswith("once"):
            raise rrpc.Unavailable("overloaded, come back later")
        return (yield call)

    stream = unary


@rrpc.service
class Counting(Counted):
    @rrpc.method
    def streams_once(self, count: int) -> Iterator[int]:
        yield from range(count)


@pytest.fixture
def shed() -> Shed:
    return Shed()


@pytest.fixture
def refusing(shed: Shed, address: str, tmp_path: Path) -> Iterator[str]:
    """The address of a server that refuses calls of ``once``."""
    with rrpc.serve(
        Counting("server", str(tmp_path)), listen=address, interceptors=[shed], workers=2
    ) as server:
        yield server.addresses[0]


@pytest.mark.parametrize("wait_for_ready", [False, True])
def test_a_refusal_is_of_one_call(refusing: str, shed: Shed, style: str, wait_for_ready: bool) -> None:
    with calling(style, refusing, wait_for_ready=wait_for_ready) as call:
        for i in range(3):
            with pytest.raises(rrpc.Unavailable, match="overloaded") as raised:
                call("Counting.once", "x")
            assert raised.value.not_executed
            assert call("Counting.often", "x") == "server"
            assert shed.seen == ["Counting.once", "Counting.often"] * (i + 1)


def test_the_connection_stays(refusing: str, shed: Shed) -> None:
    with rrpc.Channel(refusing) as channel:
        client = rrpc.Client(channel)
        client.call("Counting.often", "x")
        (before,) = channel.connections()
        for use in (client.call, lambda *args: client.start(*args).result(30)):
            with pytest.raises(rrpc.Unavailable, match="overloaded"):
                use("Counting.once", "x")
        with pytest.raises(rrpc.Unavailable, match="overloaded"):
            list(rrpc.open_stream(client, "Counting.streams_once", 3))
        assert channel.ready is before
        assert channel.state == "ready"
        assert shed.seen.count("Counting.once") == 2


class Stub(rrpc.UnaryMethod[str]):
    rpc_name = "Counting.once"

    def __call__(self, key: str) -> str:
        return self._call((key,), None)

    def start(self, key: str) -> rrpc.Future[str]:
        return self._start((key,), None)


class AsyncStub(rrpc.aio.UnaryMethod[str]):
    rpc_name = "Counting.once"

    async def __call__(self, key: str) -> str:
        return await self._call((key,), None)


class Client(CountedClient):
    refused = rrpc.stub(Stub)


class AsyncClient(rrpc.aio.Client):
    refused = rrpc.stub(AsyncStub)


def test_stubs_do_not_call_again_by_themselves(refusing: str, shed: Shed) -> None:
    with Client(refusing) as client:
        ways = (client.refused, lambda key: client.refused.start(key).result(30))
        for use in (*ways, *ways):  # the first call of a stub isn't plain yet
            with pytest.raises(rrpc.Unavailable, match="overloaded"):
                use("x")
        assert client._channel.state == "ready"
    assert shed.seen == ["Counting.once"] * 4

    async def main() -> None:
        async with AsyncClient(refusing) as client:
            for _ in range(2):
                with pytest.raises(rrpc.Unavailable, match="overloaded"):
                    await client.refused("x")

    asyncio.run(main())
    assert shed.seen == ["Counting.once"] * 6
