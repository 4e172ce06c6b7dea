"""Channels under asyncio clients: servers that are killed, drained and started again, with calls under way."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aio import Run, until
from counted_service import AsyncCountedClient
from fleet import Fleet, fleet, nursery, scheme, wait_until_gone
from load import LoopLoad
from processes import patience

import rrpc

__all__ = ["fleet", "nursery", "scheme"]

QUICK = rrpc.Backoff(initial=0.02, maximum=0.1)


def states(client: rrpc.aio.Client) -> list[str]:
    return [entry["state"] for entry in client.info()["channel"]["addresses"]]


async def all_ready(client: rrpc.aio.Client) -> None:
    async def ready() -> bool:
        return set(states(client)) == {"ready"}

    await until(ready)


async def works(client: AsyncCountedClient) -> bool:
    """Whether a call succeeds now; one that doesn't was refused before it was sent."""
    try:
        return bool(await client.often("probe", timeout=patience(10)))
    except rrpc.Unavailable:
        return False


async def elsewhere(function: Callable[..., Any], *arguments: Any) -> None:
    """In a thread: the loop, and with it the load, goes on."""
    await asyncio.to_thread(function, *arguments)


def test_a_restarted_server_is_found_again(fleet: Fleet, scheme: str, in_loop: Run[Any]) -> None:
    (server,) = fleet.members(1, scheme)

    async def main() -> None:
        async with AsyncCountedClient(server.address, backoff=QUICK) as client:
            assert await client.once("before") == "server0"
            server.kill()
            await elsewhere(wait_until_gone, server.pid)
            with pytest.raises(rrpc.Unavailable) as raised:
                await client.once("between")
            assert raised.value.not_executed or "between" not in fleet.runs()
            await elsewhere(server.start)
            await until(lambda: works(client))
            assert await client.once("after") == "server0"
            assert client.info()["channel"]["state"] == "ready"

    in_loop(main())
    assert [key for key in fleet.runs() if key != "probe"] == ["before", "after"]


def test_calls_wait_for_a_server_if_told_to(fleet: Fleet, scheme: str, in_loop: Run[Any]) -> None:
    server = fleet.member("late", scheme)

    async def main() -> None:
        client = AsyncCountedClient(server.address, wait_for_ready=True, backoff=QUICK)
        for call in (client.once, lambda *a, **options: client.start("Counted.once", *a, **options)):
            with pytest.raises(rrpc.DeadlineExceeded, match="no connection within its timeout: ") as raised:
                await call(
                    "never", timeout=0.5
                )  # long enough for one attempt to connect, on a busy machine too
            assert raised.value.not_executed
        started = [client.once.start(f"starts{i}", timeout=patience(30)) for i in range(200)]
        given_up = client.once.start("never")
        await asyncio.sleep(0)
        assert not any(future.done() for future in started)
        assert given_up.cancel()
        await elsewhere(server.start)
        assert set(await asyncio.gather(*started)) == {"late"}
        assert given_up.cancelled()
        await client.close()

    in_loop(main())
    assert sorted(fleet.runs()) == sorted(f"starts{i}" for i in range(200))


@pytest.mark.slow
def test_round_robin_while_a_server_is_killed_and_comes_back(
    fleet: Fleet, scheme: str, in_loop: Run[Any]
) -> None:
    servers = fleet.members(3, scheme)

    async def main() -> LoopLoad:
        async with AsyncCountedClient(
            [s.address for s in servers], policy="round_robin", backoff=QUICK
        ) as client:
            await all_ready(client)
            async with LoopLoad(client) as load:
                for server in servers:
                    await load.reaches(server.name)
                for _ in range(3):
                    servers[1].kill()
                    await load.goes_on()
                    await elsewhere(servers[1].start)
                    await load.reaches(servers[1].name)
            return load

    load = in_loop(main())
    load.check(fleet.runs())
    assert all(isinstance(error, rrpc.Unavailable) for error in load.errors.values())
    assert not any(error.not_executed for error in load.errors.values())
    assert len(load.errors) <= 3 * 8  # no more than there are callers, for each kill


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pick_first", "round_robin", "least_outstanding"])
def test_a_drain_under_load_loses_no_call(fleet: Fleet, scheme: str, in_loop: Run[Any], policy: str) -> None:
    servers = fleet.members(2, scheme)

    async def main() -> LoopLoad:
        async with (
            AsyncCountedClient([s.address for s in servers], policy=policy, backoff=QUICK) as client,
            LoopLoad(client) as load,
        ):
            for turn in range(2):
                await load.goes_on()
                server = servers[turn % 2]
                server.drain()
                await load.reaches(servers[1 - turn % 2].name)
                await elsewhere(wait_until_gone, server.pid)
                await elsewhere(server.start)
                if policy != "pick_first":
                    await all_ready(client)
        return load

    load = in_loop(main())
    load.check(fleet.runs())
    assert load.errors == {}


def test_a_drain_of_the_only_server_is_waited_out(fleet: Fleet, scheme: str, in_loop: Run[Any]) -> None:
    (server,) = fleet.members(1, scheme)

    async def main() -> LoopLoad:
        async with (
            AsyncCountedClient(server.address, backoff=QUICK, wait_for_ready=True) as client,
            LoopLoad(client) as load,
        ):
            for _ in range(3):
                await load.goes_on()
                server.drain()
                await elsewhere(wait_until_gone, server.pid)
                await elsewhere(server.start)
            await load.goes_on()
        return load

    load = in_loop(main())
    load.check(fleet.runs())
    assert load.errors == {}


def test_a_failing_server_is_left_out_and_let_in_again(fleet: Fleet, scheme: str, in_loop: Run[Any]) -> None:
    servers = fleet.members(2, scheme)
    ejection = rrpc.Ejection(failures=3, initial=0.05, maximum=0.4)
    addresses = [s.address for s in servers]

    async def main() -> None:
        async with AsyncCountedClient(addresses, policy="round_robin", ejection=ejection) as client:
            await all_ready(client)
            servers[0].told("fail")
            failures = 0
            while not client.info()["channel"]["addresses"][0]["ejected"]:
                for error in await asyncio.gather(client.often("x"), return_exceptions=True):
                    failures += isinstance(error, rrpc.Unavailable)
            assert failures == 3
            servers[0].told("fail", False)
            while await client.often("x") != "server0":
                await asyncio.sleep(0.001)
            assert client._channel.connections()[0].record.ejections == 0

    in_loop(main())
