"""rrpc-serve as a process: start-up, several services and addresses, and its ends."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import LAB, call_held, refuses, still_answers
from processes import Served, ServeFactory, eventually

import rrpc

COUNTER = """
import rrpc

@rrpc.service
class Counter:
    def __init__(self, start: int = 0, label: str = "none", on: bool = False) -> None:
        self.start, self.label, self.on = start, label, on

    @rrpc.method
    def show(self) -> list[int | str | bool]:
        return [self.start, self.label, self.on]

@rrpc.service
class Other:
    def __init__(self, start: int) -> None:
        self.start = start

    @rrpc.method
    def get(self) -> int:
        return self.start
"""

SIGNALS = """
import pathlib, signal, threading, time
import rrpc

@rrpc.service
class Signals:
    running = False

    @rrpc.method
    def began(self) -> bool:
        return self.running

    @rrpc.method
    def send(self, when: str) -> None:
        self.running = True
        while not pathlib.Path(when).exists():
            time.sleep(0.005)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        while not rrpc.context().cancelled:
            time.sleep(0.005)
"""


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=["--grace", "20"])


def test_start_up_lines(serve: ServeFactory) -> None:
    served = serve(LAB, "Lab", "Second", listen=["tcp", "shm", "rrpc", "tcp"], module="lab_service")
    lines = served.log.splitlines()
    assert len(lines) == 4
    schemes = []
    for line in lines:
        match = re.fullmatch(r"rrpc-serve: Lab, Second on (\w+)://(\S+)", line)
        assert match is not None, line
        schemes.append(match[1])
        assert not match[2].endswith(":0")
    assert schemes == ["tcp", "shm", "rrpc", "tcp"]
    for address in served.addresses:
        still_answers(address)
        with rrpc.connect(address) as client:
            assert client.call("Second.twice", 4) == 8
    assert served.terminate() == 0


def test_constructor_arguments(serve: ServeFactory) -> None:
    served = serve(COUNTER, "Counter", args=["--arg", "start=7", "--arg", "label=a=b c", "--arg", "on=true"])
    with rrpc.connect(served.address) as client:
        assert client.call("Counter.show") == [7, "a=b c", True]
    both = serve(COUNTER, "Counter", "Other", args=["--arg", "Counter.start=1", "--arg", "Other.start=2"])
    with rrpc.connect(both.address) as client:
        assert client.call("Counter.show") == [1, "none", False]
        assert client.call("Other.get") == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(served: Served, number: int) -> None:
    start = time.monotonic()
    client = rrpc.connect(served.address)
    served.signal(number)
    assert served.wait() == 0
    print(f"{time.monotonic() - start:.3f} s")
    assert time.monotonic() - start < 20
    assert "Traceback" not in served.log
    with pytest.raises(rrpc.Unavailable):
        client.call("Lab.add", 1)
    client.close()
    with pytest.raises(rrpc.Unavailable):
        rrpc.connect(served.address, connect_timeout=5.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drain_finishes_what_runs_and_refuses_what_is_new(served: Served, number: int) -> None:
    client, other = rrpc.connect(served.address, timeout=20.0), rrpc.connect(served.address, timeout=20.0)
    held = call_held(client, "x")
    kept = call_held(client, "y", 1.0)
    served.signal(number)

    def refused() -> str:
        try:
            other.call("Lab.add", 1)
        except rrpc.Unavailable as error:
            return str(error)
        return ""

    assert "shutting down" in eventually(refused)
    with pytest.raises(rrpc.Unavailable):
        rrpc.connect(served.address, connect_timeout=5.0)
    assert not held.done()
    assert kept.result() is False
    with pytest.raises(rrpc.Unavailable, match="no new calls"):
        client.call("Lab.add", 1)
    served.kill()  # "x" would hold on for its 30 s
    for c in (client, other):
        c.close()


def test_a_drained_result_is_still_fetched(serve: ServeFactory, transport: str) -> None:
    """The reply of the last call, an array, reaches its caller before the server goes."""
    source = """
import threading, time, numpy as np, rrpc
from numpy.typing import NDArray

@rrpc.service
class Slow:
    @rrpc.method
    def make(self, seconds: float) -> NDArray[np.uint8]:
        time.sleep(seconds)
        return np.full(30 << 20, 3, np.uint8)
"""
    served = serve(source, "Slow", listen=transport)
    with rrpc.connect(served.address, timeout=20.0) as client:
        future = client.start("Slow.make", 0.5)
        with rrpc.connect(served.address):
            pass
        assert not future.done()
        served.signal(signal.SIGTERM)
        assert int(future.result().sum()) == 3 * (30 << 20)
        assert served.wait() == 0


def test_grace_runs_out(serve: ServeFactory) -> None:
    served = serve(LAB, "Lab", module="lab_service", args=["--grace", "0.3"])
    with rrpc.connect(served.address, timeout=20.0) as client:
        held = call_held(client, "x")
        start = time.monotonic()
        served.signal(signal.SIGTERM)
        assert served.wait() == 1
        assert 0.25 < time.monotonic() - start < 6
        assert "still running after 0.3 s: Lab.hold" in served.log
        assert "Traceback" not in served.log
        with pytest.raises(rrpc.Unavailable):
            held.result(timeout=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(serve: ServeFactory, number: int) -> None:
    served = serve(LAB, "Lab", module="lab_service", args=["--grace", "60"])
    with rrpc.connect(served.address, timeout=20.0) as client:
        held = call_held(client, "x")
        served.signal(signal.SIGTERM)
        eventually(lambda: refuses(client))
        start = time.monotonic()
        served.signal(number)
        assert served.wait() == 128 + number
        assert time.monotonic() - start < 20  # the grace is 60
        with pytest.raises(rrpc.Unavailable):
            held.result(timeout=5)


def test_the_second_signal_may_reach_any_thread(serve: ServeFactory, tmp_path: Path) -> None:
    """The main thread, which handles signals, sleeps when the kernel gives one to another thread."""
    may_signal = tmp_path / "may_signal"
    served = serve(LAB + SIGNALS, "Lab", "Signals", module="lab_service", args=["--grace", "60"])
    with rrpc.connect(served.address, timeout=20.0) as client:
        began = client.start("Signals.send", str(may_signal))
        eventually(lambda: client.call("Signals.began"))
        served.signal(signal.SIGTERM)
        eventually(lambda: refuses(client))
        start = time.monotonic()
        may_signal.touch()
        assert served.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - start < 20
        with pytest.raises(rrpc.Unavailable):
            began.result(timeout=5)


def test_pool_limit(serve: ServeFactory, transport: str) -> None:
    """At its limit the server refuses by name, and goes on."""
    served = serve(LAB, "Lab", listen=transport, module="lab_service", args=["--pool-limit", "32M"])
    with rrpc.connect(served.address, timeout=20.0) as client:
        with pytest.raises(rrpc.ResourceExhausted, match="pool limit"):
            client.call("Lab.size", bytes(64 << 20))
        with pytest.raises(rrpc.ResourceExhausted, match="pool limit"):
            client.call("Lab.make", 64 << 20, pool=True)
        assert client.call("Lab.size", bytes(1 << 20)) == 1 << 20
        assert client.call("Lab.make", 64 << 20).nbytes == 64 << 20  # ordinary memory, read where it is
        for _ in range(30):
            assert client.call("Lab.size", bytes(5 << 20)) == 5 << 20


def test_shm_socket_is_private(serve: ServeFactory, new_address: Callable[[str], str]) -> None:
    private, shared = new_address("shm"), new_address("shm")
    for address, args, mode in ((private, [], 0o600), (shared, ["--any-user"], 0o666)):
        served = serve(LAB, "Lab", listen=address, module="lab_service", args=args)
        path = Path(served.address.removeprefix("shm://"))
        assert path.stat().st_mode & 0o777 == mode
        served.terminate()
        assert not path.exists()


def test_a_stale_socket_is_taken_over(serve: ServeFactory, new_address: Callable[[str], str]) -> None:
    address = new_address("shm")
    first = serve(LAB, "Lab", listen=address, module="lab_service")
    first.kill()
    second = serve(LAB, "Lab", listen=address, module="lab_service")
    assert second.address == address
    still_answers(address)
