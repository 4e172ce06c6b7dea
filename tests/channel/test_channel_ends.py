"""How waiting for a channel ends: by Ctrl-C, by a close, by a time that is up just when there is a result; and what is
left of a connection that has ended."""

import concurrent.futures
import gc
import itertools
import os
import signal
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from counted_service import CountedClient
from fleet import Fleet, fleet, nursery, scheme
from processes import eventually, patience

import rrpc
from rrpc._call.steps import Waiting
from rrpc._client.blocking_driver import _wait

__all__ = ["fleet", "nursery", "scheme"]

QUICK = rrpc.Backoff(initial=0.02, maximum=0.1)


def interrupted(when: Any, use: Any) -> None:
    """Ctrl-C, once that is so, ends the use.

    It is sent again after seconds: Python misses a signal that comes between its last look and the wait for a lock.
    """
    ended = threading.Event()

    def send() -> None:
        eventually(when)
        os.kill(os.getpid(), signal.SIGINT)
        while not ended.wait(5.0):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            use()
    finally:
        ended.set()
    thread.join()


@pytest.mark.parametrize(("delay", "attempts"), [(0.02, 2), (60.0, 1)])
def test_ctrl_c_ends_all_attempts(fleet: Fleet, scheme: str, delay: float, attempts: int) -> None:
    (server,) = fleet.members(1, scheme)
    server.told("slow")
    hedging = rrpc.HedgingPolicy(delay=delay, budget=None)
    with CountedClient(server.address, hedging=hedging) as client:
        (connection,) = client._channel.connections()
        interrupted(lambda: len(fleet.runs()) == attempts, lambda: client.often("x"))
        eventually(lambda: connection.calls_in_flight() == 0)
        assert fleet.runs() == ["x"] * attempts


def test_ctrl_c_ends_the_wait_for_a_connection(fleet: Fleet) -> None:
    late = fleet.member("late", "shm")
    with CountedClient(late.address, lazy=True, wait_for_ready=True, backoff=QUICK) as client:
        interrupted(lambda: client._channel._waiters, lambda: client.often("x"))
        eventually(lambda: not client._channel._waiters)
        interrupted(lambda: client._channel._waiters, lambda: client._channel.wait_ready())
        eventually(lambda: not client._channel._waiters)


class JustInTime(concurrent.futures.Future[Any]):
    """Ends when the time is up."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._why = error

    def result(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().result()
        if self._why is None:
            self.set_result("done")
        else:
            self.set_exception(self._why)
        raise concurrent.futures.TimeoutError


def test_a_result_that_comes_when_the_time_is_up() -> None:
    call: Any = SimpleNamespace(time_left=lambda: 1.0, interrupt_with=lambda interrupt: None)
    with rrpc.Channel("shm://x") as channel:
        assert _wait(call, Waiting(JustInTime(), rrpc.Internal)) == "done"
        channel._wait(JustInTime(), 1.0)
        for wait in (lambda f: _wait(call, Waiting(f, rrpc.Internal)), lambda f: channel._wait(f, 1.0)):
            with pytest.raises(rrpc.DeadlineExceeded, match="of its own"):
                wait(JustInTime(rrpc.DeadlineExceeded("of its own")))


_names = itertools.count()


def test_close_ends_calls_over_connections_of_before(fleet: Fleet, scheme: str) -> None:
    servers = fleet.members(2, scheme)
    servers[0].told("slow")
    addresses = [servers[0].address]

    def resolve(target: str) -> list[str]:
        return list(addresses)

    resolve.period = 0.02  # type: ignore[attr-defined]
    name = f"leaving{next(_names)}"
    rrpc.register_resolver(name, resolve)
    with CountedClient(f"{name}://x") as client:
        held = client.often.start("x")
        eventually(lambda: fleet.ran("x", "server0"))
        addresses[:] = [servers[1].address]
        eventually(lambda: client.info()["channel"]["addresses"][0]["address"] == servers[1].address)
        assert client.often("y") == "server1"
        assert not held.done()
        client.close()
        with pytest.raises(rrpc.Unavailable):
            held.result(patience(10))


def _both_wait(fleet: Fleet, client: CountedClient, runs: int) -> bool:
    """For the handler, or for a connection."""
    return len(fleet.runs()) >= runs or len(client._channel._waiters) == 2


def test_close_ends_what_waits(fleet: Fleet, scheme: str) -> None:
    (server,) = fleet.members(1, scheme)
    server.told("slow")
    late = fleet.member("late", scheme)
    for address, options in (
        (server.address, {}),
        (server.address, {"hedging": rrpc.HedgingPolicy(delay=0.01, budget=None)}),
        (late.address, {"lazy": True, "wait_for_ready": True, "backoff": QUICK}),
    ):
        before = len(fleet.runs())
        with CountedClient(address, **options) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
            calls = [pool.submit(client.often, "x"), client.often.start("x")]
            eventually(partial(_both_wait, fleet, client, before + 2))
            client.close()
            for call in calls:
                with pytest.raises(rrpc.Unavailable):
                    call.result(patience(10))


def test_a_channel_keeps_nothing_of_the_call_that_told_it_of_the_end(fleet: Fleet) -> None:
    (server,) = fleet.members(1, "shm")
    kept: list[weakref.ref[Any]] = []

    def use(client: Any) -> None:
        (connection,) = client._channel.connections()
        connection.usable = lambda: False
        array = np.zeros(8)
        kept.append(weakref.ref(array))
        try:
            raise rrpc.Unavailable("it has gone")
        except rrpc.Unavailable as error:
            client._channel.failed(connection, error)

    with CountedClient(server.address, backoff=rrpc.Backoff(initial=60.0)) as client:
        use(client)
        gc.collect()
        assert kept[0]() is None
        with pytest.raises(rrpc.Unavailable, match="it has gone"):
            client.often("x")


def test_a_handler_s_last_words_are_not_those_of_the_connection(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (server,) = fleet.members(1, "shm")
    with CountedClient(server.address, backoff=rrpc.Backoff(initial=60.0)) as client:
        (connection,) = client._channel.connections()
        monkeypatch.setattr(type(connection), "why_unusable", lambda self: rrpc.Unavailable("it has gone"))
        connection.usable = lambda: False
        client._channel.failed(connection, rrpc.NotFound("no such row"))
        with pytest.raises(rrpc.Unavailable, match="it has gone"):
            client.often("x")
