"""A peer that dies or falls silent: the other end gets Unavailable soon, and its memory back."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab import LAB, freeze, settles, still_answers, transient
from processes import Served, ServeFactory, child_environment, eventually, patience, volume

import rrpc

MIB = 1 << 20
SOON = 10.0  # the promise is one second; keep-alive would take 20


@contextmanager
def soon(what: str, within: float = SOON) -> Iterator[None]:
    """Fails when the block takes too long; shows how long it took."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    print(f"{what}: {took * 1000:.0f} ms")
    assert took < patience(within), f"{what} took {took:.2f} s"


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=["--workers", "8"])


def expect_unavailable(futures: list[rrpc.Future[object]], what: str) -> None:
    with soon(what):
        for future in futures:
            with pytest.raises(rrpc.Unavailable):
                future.result(timeout=patience(10))


def wait_for_holding(address: str, name: str, count: int = 1) -> None:
    with rrpc.connect(address, timeout=20.0) as other:
        eventually(lambda: other.call("Lab.holding", name))


# The server goes


def test_server_killed_in_a_call(served: Served) -> None:
    idle, before = transient(rrpc.stats()), rrpc.stats()["connections_open"]
    client = rrpc.connect(served.address)
    big = np.ones(MIB)
    futures = [client.start("Lab.hold", "x"), client.start("Lab.add", 1)]
    assert futures[1].result() == 2
    futures = [
        futures[0],
        *(client.start("Lab.hold", f"x{i}") for i in range(3)),
        client.start("Lab.keep", big),
    ]
    wait_for_holding(served.address, "x")
    served.kill()
    expect_unavailable(futures[:4], "Unavailable after the server's death")
    with soon("a call to a dead server"), pytest.raises(rrpc.Unavailable):
        client.call("Lab.add", 1)
    with pytest.raises(rrpc.Unavailable):
        client.start("Lab.total", big)
    del futures
    settles(rrpc.stats, idle)
    assert client.info()["state"] == "closed"
    client.close()
    del client
    gc.collect()  # pytest keeps what was raised
    eventually(lambda: rrpc.stats()["connections_open"] <= before, what="the connection counted as closed")


def test_server_killed_while_a_thread_sleeps(served: Served) -> None:
    """Blocking, long past the spinning; and two more that follow the first."""
    with rrpc.connect(served.address) as client:
        futures = [client.start("Lab.hold", f"n{i}") for i in range(3)]
        with pytest.raises(TimeoutError):
            futures[0].result(timeout=0.3)
        os.kill(served.pid, signal.SIGKILL)
        expect_unavailable(futures, "Unavailable for sleeping callers")


def test_server_killed_while_nobody_waits(served: Served) -> None:
    with rrpc.connect(served.address) as client:
        ended: list[bool] = []
        future = client.start("Lab.hold", "n")
        future.add_done_callback(lambda f: ended.append(isinstance(f.exception(), rrpc.Unavailable)))
        wait_for_holding(served.address, "n")
        served.kill()
        with soon("the callback after the server's death"):
            eventually(lambda: ended == [True])


def until_it_fails(call: Callable[[], object]) -> None:
    with suppress(rrpc.Unavailable):
        while True:
            call()


@pytest.mark.parametrize("method", ["argument", "result", "out"])
def test_server_killed_in_a_read(served: Served, method: str) -> None:
    """Killed at some moment of an exchange of large arrays, which is nearly all transfer."""
    idle = transient(rrpc.stats())
    big = np.ones(16 * MIB, np.uint8)
    with rrpc.connect(served.address) as client:
        calls: dict[str, Callable[[], object]] = {
            "argument": lambda: client.call("Lab.size", big),
            "result": lambda: client.call("Lab.make", 16 * MIB, pool=True),
            "out": lambda: client.call("Lab.make", 16 * MIB, out=big),
        }
        calls[method]()
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -9 {served.pid}"])
        until_it_fails(calls[method])
        with soon("the next call"), pytest.raises(rrpc.Unavailable):
            calls[method]()
        killer.wait()
    settles(rrpc.stats, idle)


def test_server_stops_in_the_middle_of_a_read(serve: ServeFactory) -> None:
    """Over tcp the transfer needs both ends: SIGSTOP freezes it half way, then SIGKILL."""
    served = serve(LAB, "Lab", listen="tcp", module="lab_service")
    idle = transient(rrpc.stats())
    big = np.ones(128 * MIB, np.uint8)
    with rrpc.connect(served.address) as client:
        for method, argument in (("Lab.size", big), ("Lab.make", big.size)):
            future = client.start(method, argument)
            freeze(served)
            with pytest.raises(TimeoutError):
                future.result(timeout=0.2)
            served.resume()
            future.result(timeout=60)
        future = client.start("Lab.size", big)
        freeze(served)
        served.kill()
        expect_unavailable([future], "Unavailable in the middle of a read")
    settles(rrpc.stats, idle)


def test_server_comes_back(served: Served, serve: ServeFactory) -> None:
    address = served.address
    with rrpc.connect(address) as client:
        served.kill()
        until_it_fails(lambda: client.call("Lab.add", 1))
    again = serve(LAB, "Lab", listen=address, module="lab_service")
    assert again.address == address
    still_answers(address)


# The client goes

CLIENT = """
import sys, threading, numpy as np, rrpc
address, what = sys.argv[1:]
client = rrpc.connect(address)
big = np.ones(16 << 20, np.uint8)
if what == "hold":
    futures = [client.start("Lab.hold", "client", 60.0), client.start("Lab.add", 1)]
    futures[1].result()
    kept = client.call("Lab.make", 100_000)
print("ready", flush=True)
while what == "argument":
    client.call("Lab.size", big)
while what == "result":
    client.call("Lab.make", 16 << 20)
while what == "out":
    client.call("Lab.make", 16 << 20, out=big)
threading.Event().wait()
"""


def start_client(address: str, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLIENT, address, what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("what", ["idle", "hold", "argument", "result", "out"])
def test_client_killed(served: Served, what: str) -> None:
    """Idle, in a call, while it reads and is being read."""
    with rrpc.connect(served.address, timeout=60.0) as observer:

        def counts() -> dict[str, int]:
            found: dict[str, int] = observer.call("Lab.counts")
            return found

        def moved() -> int:
            now = counts()
            return now["reads"] + now["writes"] + now["messages_received"]

        eventually(lambda: counts()["connections_open"] == 1)  # rrpc:// leaves its tcp connection
        idle = transient(counts())
        for _ in range(3):
            victim = start_client(served.address, what)
            if what in ("argument", "result", "out"):
                before = moved()
                eventually(lambda before=before: moved() > before + 5)  # type: ignore[misc]
            victim.kill()
            victim.wait()
            if what == "hold":  # its handler runs on, and is what is left of the connection
                observer.call("Lab.release", "client")
            with soon("the connection of a dead client is gone"):
                eventually(lambda: counts()["connections_open"] == 1)
            victim.stdout.close()  # type: ignore[union-attr]
        settles(counts, idle)
        still_answers(served.address)


def test_client_killed_while_stopped_in_a_fetch(serve: ServeFactory) -> None:
    """The result is half fetched over tcp when its reader stops, then dies."""
    served = serve(LAB, "Lab", listen="tcp", module="lab_service")
    with rrpc.connect(served.address, timeout=30.0) as observer:
        idle = transient(observer.call("Lab.counts"))
        victim = start_client(served.address, "result")
        eventually(lambda: observer.call("Lab.counts")["bytes_exposed"] > 0)
        victim.send_signal(signal.SIGSTOP)
        assert observer.call("Lab.add", 1) == 2
        victim.kill()
        victim.wait()
        settles(lambda: observer.call("Lab.counts"), idle)
        victim.stdout.close()  # type: ignore[union-attr]


def test_result_of_a_call_whose_client_is_gone(served: Served, request: pytest.FixtureRequest) -> None:
    """The handler ends after its client: nothing to send, nothing kept."""
    with rrpc.connect(served.address, timeout=30.0) as observer:
        idle = transient(observer.call("Lab.counts"))
        client = rrpc.connect(served.address)
        client.start("Lab.hold", "gone")
        eventually(lambda: observer.call("Lab.holding", "gone"))
        client.close()
        observer.call("Lab.release", "gone")
        settles(lambda: observer.call("Lab.counts"), idle)


# Silence

PAUSE = volume(1.0, 2.0)  # a slow machine must not take its own slowness for silence
QUICK: dict[str, Any] = {"keepalive_interval": PAUSE, "keepalive_timeout": PAUSE}


@pytest.mark.slow
def test_a_silent_server_is_found(served: Served) -> None:
    with rrpc.connect(served.address, **QUICK) as client:
        future = client.start("Lab.hold", "x")
        wait_for_holding(served.address, "x")
        freeze(served)
        with (
            soon("keep-alive gives a stopped server up", 15.0),
            pytest.raises(rrpc.Unavailable, match="silent"),
        ):
            future.result(timeout=patience(10))
        served.resume()
        assert client.call("Lab.add", 1, timeout=patience(20)) == 2  # over a new connection
    still_answers(served.address)


@pytest.mark.slow
def test_a_silent_server_is_found_by_an_idle_client(served: Served) -> None:
    with rrpc.connect(served.address, **QUICK) as client:
        assert client.call("Lab.add", 1) == 2
        freeze(served)
        with soon("an idle client sees it", 15.0):
            eventually(lambda: client.info()["state"] == "closed")
        served.resume()


@pytest.mark.slow
def test_a_living_server_is_not_given_up(served: Served) -> None:
    """Neither in a long call nor when idle, for many keep-alive intervals."""
    with rrpc.connect(served.address, **QUICK) as client:
        assert client.call("Lab.hold", "never", 5 * PAUSE) is False
        eventually(lambda: client.call("Lab.counts")["messages_received"] > 8)
        assert client.info()["state"] == "connected"


@pytest.mark.slow
def test_a_silent_client_is_found(transport: str, short_tmp: Path, new_address: Callable[[str], str]) -> None:
    import lab_service

    with rrpc.serve(lab_service.Lab(), listen=new_address(transport), **QUICK) as server:
        victim = start_client(server.addresses[0], "hold")
        assert server.stats()["connections"] >= 1
        victim.send_signal(signal.SIGSTOP)
        with soon("keep-alive gives a stopped client up", 15.0):
            eventually(lambda: server.stats()["connections"] == 0)
        victim.kill()
        victim.wait()
        victim.stdout.close()  # type: ignore[union-attr]
        with rrpc.connect(server.addresses[0], timeout=20.0) as client:
            client.call("Lab.release", "client")
