"""Channels where threads can't be had, and where a finalizer runs while they are changed."""

import heapq
import threading
from collections.abc import Callable
from typing import Any

import pytest
from counted_service import CountedClient
from fleet import Fleet, fleet, nursery, scheme
from processes import eventually, patience

import rrpc
from rrpc._channel import timers, upkeep

__all__ = ["fleet", "nursery", "scheme"]

QUICK = rrpc.Backoff(initial=0.02, maximum=0.1)


def unsent(text: str) -> rrpc.RpcError:
    error = rrpc.Unavailable(text)
    error.not_executed = True
    return error


def in_time(do: Callable[[], Any]) -> None:
    """In a thread, that a deadlock mustn't keep."""
    ended = threading.Event()

    def run() -> None:
        do()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(patience(20))


def test_a_finalizer_runs_while_a_connection_is_chosen(
    fleet: Fleet, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends one call and makes another, as that of a stream and one of the user's may."""
    servers = fleet.members(2, scheme)
    choose = upkeep.Upkeep._choose
    addresses = [server.address for server in servers]
    with CountedClient(addresses, policy="round_robin", backoff=QUICK) as client:
        channel = client._channel
        eventually(lambda: [e["state"] for e in channel.info()["addresses"]] == ["ready"] * 2)
        lost = channel.connections()[0]
        finalizers: list[Callable[[], Any]] = [
            lambda: channel.failed(lost, unsent("shutting down")),
            lambda: client.often("finalizer"),
        ]

        def chosen(self: Any, *args: Any) -> Any:
            while finalizers:
                finalizers.pop(0)()
            return choose(self, *args)

        monkeypatch.setattr(upkeep.Upkeep, "_choose", chosen)
        in_time(lambda: client.often("x"))
        assert not finalizers
        assert fleet.runs().count("finalizer") == 1
        # The connection that the first one was about is made again.
        eventually(lambda: lost not in channel.connections() and len(channel.connections()) == 2)


def test_a_finalizer_runs_while_a_timer_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    fired = threading.Event()
    heappush = heapq.heappush
    inner: list[Callable[[], Any]] = [lambda: timers.after(0.0, fired.set)]

    def push(heap: Any, entry: Any) -> None:
        if inner:
            inner.pop()()
        heappush(heap, entry)

    monkeypatch.setattr(heapq, "heappush", push)
    in_time(lambda: timers.after(60.0, lambda: None).cancel())
    assert fired.wait(patience(10))


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Undo it to have threads again."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    eventually(lambda: not any(t.name == "rrpc-timers" for t in threading.enumerate()))
    monkeypatch.setattr(threading.Thread, "start", start)
    return monkeypatch


@pytest.mark.parametrize("wait_for_ready", [False, True])
def test_connecting_works_again_once_there_are_threads(
    fleet: Fleet, no_threads: pytest.MonkeyPatch, wait_for_ready: bool
) -> None:
    (server,) = fleet.members(1, "shm")
    with CountedClient(server.address, lazy=True, backoff=QUICK, wait_for_ready=wait_for_ready) as client:
        with pytest.raises(rrpc.ResourceExhausted, match="no thread"):
            client.often("x", timeout=patience(5))
        assert client._channel.state == "transient_failure"
        no_threads.undo()
        patient = client.with_options(wait_for_ready=True, timeout=patience(10))
        assert patient.often("x") == "server0"


def test_timers_work_again_once_there_are_threads(no_threads: pytest.MonkeyPatch) -> None:
    fired: list[str] = []
    with pytest.raises(RuntimeError, match="can't start new thread"):
        timers.after(0.0, lambda: fired.append("never"))
    no_threads.undo()
    timers.after(0.0, lambda: fired.append("then"))
    eventually(lambda: fired == ["then"])
