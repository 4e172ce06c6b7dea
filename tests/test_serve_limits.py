"""How many calls an rrpc-serve takes, what a client may hold of it, and what a drain waits for."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab import LAB
from processes import Served, ServeFactory, child_environment, eventually, patience

import rrpc


def start(serve: ServeFactory, transport: str, *args: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=args)


def held(client: rrpc.Client, name: str) -> rrpc.Future[bool]:
    """A call whose handler holds on until `Lab.release`, which needs another worker."""
    return client.start("Lab.hold", name)


def stats(client: rrpc.Client) -> dict[str, int]:
    """The server's own numbers: what moved, and how many calls there are."""
    found: dict[str, int] = client.call("Lab.counts")
    return found


def test_more_than_the_queue_holds_is_refused(serve: ServeFactory, transport: str) -> None:
    served = start(serve, transport, "--workers", "2", "--max-queue", "2")
    with rrpc.connect(served.address, timeout=20.0) as client, rrpc.connect(served.address) as other:
        running = held(client, "a")
        eventually(lambda: client.call("Lab.holding", "a"))
        busy = client.start("Lab.hold", "b", 1.0)
        waiting = [client.start("Lab.add", n) for n in range(2)]
        for caller, value in ((client, b""), (other, b""), (other, bytes(1 << 20))):
            with pytest.raises(rrpc.ResourceExhausted, match=r"2 calls wait .*\(--max-queue 2\)"):
                caller.call("Lab.size", value, timeout=patience(10))
        assert [call.result(timeout=patience(10)) for call in waiting] == [1, 2]
        assert busy.result() is False
        assert not running.done()
        assert stats(client)["calls_refused"] == 3
        assert client.call("Lab.release", "a") is None
        assert running.result(timeout=patience(10)) is True


def test_a_cancelled_call_makes_room(serve: ServeFactory, transport: str) -> None:
    served = start(serve, transport, "--workers", "8", "--max-concurrency", "1", "--max-queue", "1")
    with rrpc.connect(served.address, timeout=20.0) as client:
        running = client.start("Lab.hold", "a", 1.5)
        first = client.start("Lab.add", 1)
        with pytest.raises(rrpc.ResourceExhausted):
            client.call("Lab.add", 2)
        first.cancel()
        late = client.start("Lab.add", 3, timeout=0.2)
        with pytest.raises(rrpc.DeadlineExceeded):
            late.result()
        second = client.start("Lab.add", 4)
        assert running.result() is False
        assert second.result() == 5


def test_a_client_may_hold_no_more_results_than_allowed(serve: ServeFactory) -> None:
    served = start(serve, "tcp", "--exposed-bytes-max", "8M")
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Lab.make", 7 << 20).nbytes == 7 << 20
        with pytest.raises(rrpc.ResourceExhausted, match=r"exposed_bytes_max: .* limit of 8388608 bytes"):
            client.call("Lab.make", 9 << 20)
        assert client.call("Lab.make", 7 << 20).nbytes == 7 << 20


def test_a_client_may_have_no_more_calls_than_allowed(serve: ServeFactory) -> None:
    served = start(serve, "tcp", "--calls-in-flight-max", "2", "--connections-max", "2")
    with rrpc.connect(served.address, timeout=20.0) as client, rrpc.connect(served.address) as other:
        calls = [client.start("Lab.hold", name) for name in ("a", "b")]
        eventually(lambda: other.call("Lab.holding", "b"))
        with pytest.raises(rrpc.ResourceExhausted, match="calls_in_flight_max: the server takes 2 calls"):
            client.call("Lab.add", 1)
        with pytest.raises((rrpc.Unavailable, rrpc.DeadlineExceeded)):
            rrpc.connect(served.address, connect_timeout=2.0)
        for name in ("a", "b"):
            other.call("Lab.release", name)
        assert [call.result() for call in calls] == [True, True]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--max-queue", "-1"], "from 0 up"),
        (["--max-concurrency", "0"], "from 1 up"),
        (["--exposed-bytes-max", "much"], "a size such as"),
        (["--keepalive-timeout", "soon"], "a number of seconds"),
    ],
)
def test_limits_that_are_none(args: list[str], said: str) -> None:
    command = [sys.executable, "-m", "rrpc.cli.serve", "lab_service:Lab", *args]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_checks_its_limits() -> None:
    @rrpc.service
    class Nothing:
        @rrpc.method
        def run(self) -> None: ...

    limits: list[dict[str, Any]] = [{"workers": 0}, {"max_concurrency": 0}, {"max_queue": -1}]
    for wrong in limits:
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be at least"):
            rrpc.Server(Nothing(), **wrong)


# What a drain waits for

GATED = """
import os, time, numpy as np, rrpc
from numpy.typing import NDArray

@rrpc.service
class Gated:
    @rrpc.method
    def make(self, gate: str) -> NDArray[np.uint8]:
        while not os.path.exists(gate):
            time.sleep(0.005)
        return np.full(30 << 20, 7, np.uint8)
"""
READER = """
import sys, rrpc
with rrpc.connect(sys.argv[1], timeout=60.0) as client:
    future = client.start("Gated.make", sys.argv[2])
    print("asked", flush=True)
    result = future.result()
    print(int(result.min()), int(result.max()), result.nbytes, flush=True)
"""


@contextmanager
def stopped_reader(served: Served, gate: Path) -> Iterator[subprocess.Popen[str]]:
    """A client process whose result is there to be fetched, and which is stopped."""
    command = [sys.executable, "-c", READER, served.address, str(gate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as reader:
        try:
            with rrpc.connect(served.address, timeout=20.0) as other:
                eventually(lambda: other.call("rrpc.Stats.process")["calls_running"] > 1)
                reader.send_signal(signal.SIGSTOP)
                eventually(lambda: Path(f"/proc/{reader.pid}/stat").read_text().split()[2] == "T")
                gate.touch()
                eventually(lambda: other.call("rrpc.Stats.process")["calls_running"] == 1)
            yield reader
        finally:
            reader.kill()


def test_a_drain_waits_until_results_are_fetched(serve: ServeFactory, transport: str, tmp_path: Path) -> None:
    served = serve(GATED, "Gated", listen=transport)
    with stopped_reader(served, tmp_path / "gate") as reader:
        served.signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            served.process.wait(0.5)
        reader.send_signal(signal.SIGCONT)
        out, _ = reader.communicate(timeout=patience(20))
        assert out == f"asked\n7 7 {30 << 20}\n"
    assert served.wait() == 0
    assert "still" not in served.log


def test_a_drain_names_the_results_it_gave_up(serve: ServeFactory, transport: str, tmp_path: Path) -> None:
    served = serve(GATED, "Gated", listen=transport, args=["--grace", "0.3"])
    with stopped_reader(served, tmp_path / "gate"):
        assert served.terminate() == 1
    assert "still running after 0.3 s: results that clients haven't fetched: 1" in served.log
