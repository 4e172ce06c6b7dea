"""How many calls an rrpc-serve takes, what a client may hold of it, and what a drain waits for."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab import LAB
from processes import Served, ServeFactory, child_environment, eventually, patience, run_serve
from raw_peer import RawPeer, setup

import rrpc

pytestmark = pytest.mark.slow

GATED = """
import os, time, numpy as np, rrpc
from numpy.typing import NDArray

@rrpc.service
class Gated:
    @rrpc.method
    def make(self, gate: str, nbytes: int) -> NDArray[np.uint8]:
        while not os.path.exists(gate):
            time.sleep(0.005)
        return np.full(nbytes, 7, np.uint8)

    @rrpc.method
    def size(self, data: bytes) -> int:
        return len(data)
"""


def start(serve: ServeFactory, transport: str, *args: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=args)


def refused(client: rrpc.Client, data: bytes = b"") -> bool:
    """False where the call was taken, or had to wait for that; it no longer does."""
    error = client.start("Gated.size", data, timeout=patience(0.2)).exception()
    if isinstance(error, rrpc.ResourceExhausted):
        assert "2 calls wait for a worker, as many as may (--max-queue 2)" in str(error)
        return True
    assert error is None or isinstance(error, rrpc.DeadlineExceeded)
    return False


def waits(client: rrpc.Client) -> bool:
    """Whether the call that this leaves behind was let into the queue."""
    try:
        client.start("Gated.size", b"").exception(timeout=patience(0.2))
    except TimeoutError:
        return True
    return False


def test_more_than_the_queue_holds_is_refused(serve: ServeFactory, transport: str, tmp_path: Path) -> None:
    served = serve(GATED, "Gated", listen=transport, args=["--workers", "2", "--max-queue", "2"])
    gate = tmp_path / "gate"
    with rrpc.connect(served.address, timeout=60.0) as client, rrpc.connect(served.address) as other:
        running = [client.start("Gated.make", str(gate), 5) for _ in range(2)]
        waiting = [client.start("Gated.size", bytes(n)) for n in range(2)]
        assert refused(client)  # after those, since by the same connection
        assert refused(client, bytes(1 << 20))
        fair = other.start("Gated.size", b"12")  # in the place of the other client's newest
        with pytest.raises(rrpc.ResourceExhausted, match="max_queue: 2 calls wait for a worker"):
            waiting[1].result()
        gate.touch()
        assert [call.result().nbytes for call in running] == [5, 5]
        assert [waiting[0].result(), fair.result()] == [0, 2]
        counters = client.call("rrpc.Stats.process")["counters"]
        assert counters["calls_refused"] == 3
        assert client.call("Gated.size", b"123") == 3


def test_calls_that_are_given_up_make_room(serve: ServeFactory, transport: str, tmp_path: Path) -> None:
    args = ["--workers", "8", "--max-concurrency", "1", "--max-queue", "2"]
    served = serve(GATED, "Gated", listen=transport, args=args)
    gate = tmp_path / "gate"
    with rrpc.connect(served.address, timeout=60.0) as client:
        running = client.start("Gated.make", str(gate), 5)
        first = client.start("Gated.size", b"")
        assert not refused(client)
        with rrpc.connect(served.address) as other:
            eventually(lambda: waits(other))
            assert refused(client)
        eventually(lambda: not refused(client))
        second = client.start("Gated.size", b"2")  # in the place of the one that went with its connection
        assert refused(client)
        first.cancel()
        assert not refused(client)
        third = client.start("Gated.size", b"33")
        assert refused(client)
        gate.touch()
        assert running.result().nbytes == 5
        assert [second.result(), third.result()] == [1, 2]


def test_a_client_may_hold_no_more_results_than_allowed(serve: ServeFactory) -> None:
    served = start(serve, "tcp", "--exposed-bytes-max", "8M")
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Lab.make", 7 << 20).nbytes == 7 << 20
        with pytest.raises(rrpc.ResourceExhausted, match=r"exposed_bytes_max: .* limit of 8388608 bytes"):
            client.call("Lab.make", 9 << 20)
        assert client.call("Lab.make", 7 << 20).nbytes == 7 << 20


@pytest.mark.parametrize("scheme", ["tcp", "shm", "rrpc"])
def test_a_client_too_many_is_told_why(serve: ServeFactory, scheme: str) -> None:
    served = start(serve, scheme, "--connections-max", "3")
    what = r"connections_max: the server has 3 clients, as many as may connect \(--connections-max 3\)"
    with ExitStack() as stack:
        clients: list[rrpc.Client] = []

        def refused_one() -> bool:
            try:
                clients.append(stack.enter_context(rrpc.connect(served.address, timeout=patience(20))))
            except rrpc.ResourceExhausted as error:
                if re.search(what, str(error)) is None:
                    raise
                return True
            return False

        eventually(refused_one)
        assert 1 <= len(clients) <= 3
        assert refused_one() or scheme == "rrpc"  # whose clients have two connections for a moment
        for client in clients:
            assert client.call("Lab.add", 1) == 2
    eventually(lambda: connects(served.address))


def connects(address: str) -> bool:
    try:
        rrpc.connect(address, connect_timeout=patience(10)).close()
    except rrpc.ResourceExhausted:
        return False
    return True


def test_clients_that_say_nothing_make_place_for_others(serve: ServeFactory) -> None:
    served = start(serve, "tcp", "--handshakes-max", "8")
    silent = [RawPeer(served.address, greet=False) for _ in range(50)]
    half = [RawPeer(served.address, greet=False) for _ in range(36)]
    for peer in half:
        peer.send(setup())  # and no HELLO
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Lab.add", 1) == 2
        for peer in half[:20]:
            assert peer.wait_for_end() == peer.reason
        with rrpc.connect(served.address, timeout=20.0) as other:
            assert other.call("Lab.add", 2) == client.call("Lab.add", 2)
    for peer in silent + half:
        peer.close()


def test_a_client_may_have_no_more_calls_than_allowed(serve: ServeFactory) -> None:
    served = start(serve, "tcp", "--calls-in-flight-max", "2")
    with rrpc.connect(served.address, timeout=20.0) as client, rrpc.connect(served.address) as other:
        calls = [client.start("Lab.hold", name) for name in ("a", "b")]
        eventually(lambda: other.call("Lab.holding", "b"))
        with pytest.raises(rrpc.ResourceExhausted, match="calls_in_flight_max: the server takes 2 calls"):
            client.call("Lab.add", 1)
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
    done = run_serve("lab_service:Lab", *args)
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

READER = """
import sys, rrpc
with rrpc.connect(sys.argv[1], timeout=60.0) as client:
    future = client.start("Gated.make", sys.argv[2], 30 << 20)
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


def test_a_drain_names_the_results_it_gave_up(serve: ServeFactory, tmp_path: Path) -> None:
    served = serve(GATED, "Gated", args=["--grace", "0.3"])
    with stopped_reader(served, tmp_path / "gate"):
        assert served.terminate() == 1
    assert "still running after 0.3 s: results that clients haven't fetched: 1" in served.log
