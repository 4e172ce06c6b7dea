"""Channels with one address: connecting when needed and again, waiting for that, and what is left of them."""

import asyncio
import contextlib
import gc
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from counted_service import CountedClient
from fleet import Fleet, fleet, nursery, scheme, wait_until_gone
from processes import eventually, patience

import rrpc
from rrpc._channel import Contract
from rrpc._channel.connecting import Attempt
from rrpc._channel.ejection import Record

__all__ = ["fleet", "nursery", "scheme"]

QUICK = rrpc.Backoff(initial=0.02, maximum=0.1)


def states(client: rrpc.Client) -> list[str]:
    return [entry["state"] for entry in client.info()["channel"]["addresses"]]


def works(client: rrpc.Client) -> bool:
    """Whether a call succeeds now; one that doesn't was refused before it was sent."""
    try:
        return bool(client.call("Counted.often", "probe", timeout=patience(10)))
    except rrpc.Unavailable:
        return False


# One address


def test_a_restarted_server_is_found_again(fleet: Fleet, scheme: str) -> None:
    (server,) = fleet.members(1, scheme)
    with CountedClient(server.address, backoff=QUICK) as client:
        assert client.once("before") == "server0"
        server.kill()
        wait_until_gone(server.pid)
        with pytest.raises(rrpc.Unavailable) as raised:
            client.once("between")
        assert raised.value.not_executed or "between" not in fleet.runs()
        eventually(lambda: client.info()["channel"]["state"] == "transient_failure" or not works(client))
        server.start()
        eventually(lambda: works(client), what="a new connection")
        assert client.once("after") == "server0"
        assert client.info()["channel"]["state"] == "ready"
        assert client.info()["state"] == "connected"
    assert [key for key in fleet.runs() if key != "probe"] == ["before", "after"]


def test_a_client_connects_at_once_unless_it_is_lazy(fleet: Fleet, scheme: str) -> None:
    server = fleet.member("late", scheme)
    with pytest.raises(rrpc.Unavailable):
        CountedClient(server.address)
    client = CountedClient(server.address, lazy=True, backoff=QUICK)
    assert client.info() == {"channel": client._channel.info()}
    assert client.info()["channel"]["state"] == "idle"
    for use in (lambda: client.once("early"), lambda: client.start("Counted.once", "early")):
        with pytest.raises(rrpc.Unavailable) as raised:
            use()
        assert raised.value.not_executed
    assert client.info()["channel"]["addresses"][0]["why_not"] == str(raised.value)
    server.start()
    eventually(lambda: works(client))
    client.close()
    with pytest.raises(rrpc.Unavailable, match="closed"):
        client.once("late")
    assert client._channel.state == "shutdown"
    assert "early" not in fleet.runs()


def test_calls_wait_for_a_server_if_told_to(fleet: Fleet, scheme: str) -> None:
    server = fleet.member("late", scheme)
    with CountedClient(server.address, lazy=True, wait_for_ready=True, backoff=QUICK) as client:
        start = time.monotonic()
        with pytest.raises(rrpc.DeadlineExceeded, match="no connection within its timeout: ") as raised:
            client.once("never", timeout=0.1)
        assert raised.value.not_executed
        late = client.once.start("never", timeout=0.1)
        with pytest.raises(rrpc.DeadlineExceeded, match="no connection"):
            late.result(patience(10))
        assert time.monotonic() - start < patience(20)
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(client.once, f"waits{i}", timeout=patience(30)) for i in range(4)]
            started = [client.once.start(f"starts{i}", timeout=patience(30)) for i in range(200)]
            given_up = client.once.start("never")
            assert not any(future.done() for future in (*waiting, *started))
            assert given_up.cancel()
            eventually(given_up.cancelled)
            server.start()
            assert {future.result() for future in (*waiting, *started)} == {"late"}
    assert sorted(fleet.runs()) == sorted(
        [*(f"waits{i}" for i in range(4)), *(f"starts{i}" for i in range(200))]
    )


def test_many_futures_need_no_threads(fleet: Fleet) -> None:
    server = fleet.member("late", "shm")
    before = threading.active_count()
    with CountedClient(server.address, lazy=True, wait_for_ready=True, backoff=QUICK) as client:
        started = [client.often.start("x", timeout=patience(60)) for _ in range(2000)]
        assert threading.active_count() < before + 20
        server.start()
        assert {future.result() for future in started} == {"late"}


def test_connecting_has_a_deadline() -> None:
    """To something that takes connections and says nothing."""
    with silent() as address:
        start = time.monotonic()
        with rrpc.Client(address, lazy=True, connect_timeout=patience(60)) as client:
            with pytest.raises(rrpc.DeadlineExceeded):
                client.call("Counted.once", "x", timeout=0.1)
            with pytest.raises(rrpc.DeadlineExceeded):
                client.start("Counted.once", "x", timeout=0.1).result(patience(30))
        assert time.monotonic() - start < patience(50)
        start = time.monotonic()
        client = rrpc.Client(address, lazy=True, connect_timeout=0.6)
        with client, pytest.raises(rrpc.Unavailable):  # without a deadline connect_timeout is the bound
            client.call("Counted.once", "x")
        assert 0.5 < time.monotonic() - start < patience(20)


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """A TCP address where nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def test_an_address_that_says_nothing_does_not_hold_up_the_next(fleet: Fleet, scheme: str) -> None:
    (server,) = fleet.members(1, scheme)
    with silent() as one, silent() as two:
        addresses = [one, two, server.address]
        with CountedClient(addresses, connect_timeout=patience(3.0)) as client:
            assert client.often("x") == "server0"
            assert states(client)[2] == "ready"


def test_a_second_connection_that_came_later_is_closed(fleet: Fleet, scheme: str) -> None:
    servers = fleet.members(2, scheme)
    with rrpc.Channel([server.address for server in servers]) as channel:
        channel.connect()
        later = channel._subchannels[1]
        later.state = "connecting"
        attempt = Attempt(later.address, channel._options, None, [])
        attempt.run()
        assert attempt.connection is not None
        channel._ended(later, attempt)
        assert not attempt.connection.usable()
        assert [entry["state"] for entry in channel.info()["addresses"]] == ["ready", "idle"]


def test_connecting_again_keeps_what_there_is(fleet: Fleet, scheme: str) -> None:
    (server,) = fleet.members(1, scheme)
    channel = rrpc.Channel(server.address)
    channel.connect()
    (before,) = channel.connections()
    channel.connect()
    assert channel.ready is before
    channel.close()
    with pytest.raises(rrpc.Unavailable, match="the client is closed"):
        channel.connect()
    assert channel.connections() == [before]


def test_calls_that_wait_no_longer_are_forgotten() -> None:
    with rrpc.Channel("tcp://127.0.0.1:1", connect_timeout=None) as channel:
        channel._subchannels[0].state = "connecting"  # by nobody: it never ends
        patient = [channel.pick_soon(wait_for_ready=True) for _ in range(3)]
        for _ in range(1000):
            channel.pick_soon(wait_for_ready=True).cancel()
        assert len(channel._waiters) < 200
        assert [waiter[0] for waiter in channel._waiters][:3] == patient
    assert all(isinstance(future.exception(0), rrpc.Unavailable) for future in patient)


def test_a_contract_is_kept_once() -> None:
    with rrpc.Channel("shm://x") as channel:
        contract = Contract({}, lambda service: pytest.fail(service))
        for _ in range(3):
            channel.admit(contract)
        assert channel._contracts == [contract]


def test_a_success_ends_ejections_where_one_failure_is_enough() -> None:
    record, ejection = Record(), rrpc.Ejection(failures=1)
    connection: Any = SimpleNamespace(record=record)
    with rrpc.Channel("shm://x", ejection=ejection) as channel:
        record.failed(rrpc.Unavailable("x"), 0.0, ejection)
        assert (record.strikes, record.ejections) == (0, 1)
        channel.succeeded(connection)
        assert record.ejections == 0


def test_an_asyncio_client_that_could_not_connect_is_still_one(fleet: Fleet, scheme: str) -> None:
    server = fleet.member("late", scheme)

    async def main() -> None:
        client = rrpc.aio.Client(server.address, backoff=QUICK)
        with pytest.raises(rrpc.Unavailable):
            await client
        server.start()
        patient = client.with_options(wait_for_ready=True, timeout=patience(20))
        assert await patient.call("Counted.often", "x") == "late"
        await client.close()

    asyncio.run(main())


def test_clients_share_a_channel(fleet: Fleet, scheme: str) -> None:
    (server,) = fleet.members(1, scheme)
    with rrpc.Channel(server.address) as channel:
        assert channel.state == "idle"
        channel.wait_ready(patience(10))
        with CountedClient(channel, timeout=patience(10)) as one, rrpc.Client(channel) as other:
            assert one.often("x") == other.call("Counted.often", "x") == "server0"
            assert one.address == server.address
            assert len(channel.connections()) == 1
            clone = one.with_options(metadata={"who": "me"})
            assert clone.often("x") == "server0"
        assert one.often("x") == "server0"  # neither has closed it
        with pytest.raises(TypeError, match=r"slots: the channel has its options already"):
            rrpc.Client(channel, slots=16)
    with pytest.raises(rrpc.Unavailable, match="closed"):
        one.often("x")


def test_wrong_use() -> None:
    with pytest.raises(ValueError, match="the list of addresses is empty: a channel needs one"):
        rrpc.Channel([])
    with pytest.raises(ValueError, match="there is no policy 'best'; there are pick_first, round_robin"):
        rrpc.Channel("shm://x", policy="best")
    with pytest.raises(TypeError, match="address must be a str"):
        rrpc.Channel([b"shm://x"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="'rrpc' can't have a resolver"):
        rrpc.register_resolver("rrpc", list)


# What it leaves behind


def test_nothing_is_left_of_closed_channels(fleet: Fleet, scheme: str) -> None:
    (server,) = fleet.members(1, scheme)
    nobody = fleet.member("nobody", "shm")

    def use() -> None:
        with CountedClient([nobody.address, server.address], policy="round_robin", backoff=QUICK) as client:
            assert client.often.start("x").result() == "server0"
        with rrpc.Channel(nobody.address, backoff=QUICK) as channel:
            assert rrpc.Client(channel, wait_for_ready=True).start("Counted.often", "x").cancel()

    for _ in range(3):
        use()
    eventually(lambda: not any(t.name == "rrpc-connecting" for t in threading.enumerate()))
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        use()
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2)
    eventually(lambda: not any(t.name.startswith("rrpc-connecting") for t in threading.enumerate()))
    eventually(lambda: not any(t.name.startswith("rrpc-timers") for t in threading.enumerate()))


def test_a_dropped_client_ends_its_connection(fleet: Fleet, scheme: str) -> None:
    servers = fleet.members(2, scheme)

    def use() -> tuple[Any, list[Any]]:
        client = CountedClient([s.address for s in servers], policy="round_robin", backoff=QUICK)
        eventually(lambda: states(client) == ["ready"] * 2)
        assert client.often("x")
        assert client.often.start("x").result()
        return weakref.ref(client._channel), [weakref.ref(c) for c in client._channel.connections()]

    gc.disable()
    try:
        channel, connections = use()
        eventually(lambda: channel() is None)
        eventually(lambda: not any(connection() for connection in connections))
    finally:
        gc.enable()


def test_a_child_needs_a_channel_of_its_own(fleet: Fleet) -> None:
    (server,) = fleet.members(1, "shm")
    lazy = rrpc.Client(server.address, lazy=True)
    ready = rrpc.Client(server.address)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for client in (lazy, ready):
                for use in (client.call, client.start):
                    with pytest.raises(rrpc.FailedPrecondition, match="parent process"):
                        use("Counted.often", "x")
                client.close()
            with rrpc.Client(server.address) as own:
                assert own.call("Counted.often", "x") == "server0"
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert ready.call("Counted.often", "x") == lazy.call("Counted.often", "x") == "server0"
    for client in (lazy, ready):
        client.close()
