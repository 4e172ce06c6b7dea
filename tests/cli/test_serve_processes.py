"""rrpc-serve --processes: several processes behind one address, as their clients and their operator see them."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from fleet import gone, wait_until_gone
from lab import LAB, call_held
from ports import own_ports
from processes import (
    START_UP_SECONDS,
    Served,
    ServeFactory,
    child_environment,
    eventually,
    patience,
    run_serve,
)
from raw_peer import hello, setup

import rrpc

pytestmark = pytest.mark.slow

COUNTED = """
import os, numpy as np, rrpc
from numpy.typing import NDArray

@rrpc.service
class Counted:
    def __init__(self, log: str) -> None:
        self.fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @rrpc.method
    def double(self, rows: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        os.write(self.fd, f"{name}\\n".encode())
        return rows * 2
"""
# Calls until it is refused; then prints what was answered.
CALLER = """
import sys, numpy as np, rrpc
rows = np.ones(int(sys.argv[3]))
answered = []
with rrpc.connect(sys.argv[1], timeout=60.0) as client:
    print("connected", flush=True)
    try:
        for n in range(1_000_000):
            name = f"{sys.argv[2]}:{n}"
            assert client.call("Counted.double", rows, name).sum() == 2 * len(rows)
            answered.append(name)
    except rrpc.Unavailable as error:
        print(error, file=sys.stderr)
print("\\n".join(answered))
"""


def pids(served: Served) -> list[int]:
    """Of its processes, in the order of their start."""
    children = Path(f"/proc/{served.pid}/task/{served.pid}/children")
    return sorted(int(pid) for pid in children.read_text().split())


def start(serve: ServeFactory, transport: str, *args: str, count: int = 3) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=["--processes", str(count), *args])


def pid_of(client: rrpc.Client) -> int:
    answer: int = client.call("Lab.pid")
    return answer


def pid_unless_refused(client: rrpc.Client) -> int | None:
    try:
        return pid_of(client)
    except rrpc.Unavailable:  # a connection that was lost at once isn't made again at once
        return None


def connected_to(address: str, pid: int) -> rrpc.Client:
    """A client of that process of several."""
    for _ in range(20):
        client = rrpc.connect(address, timeout=20.0)
        if pid_of(client) == pid:
            return client
        client.close()
    raise AssertionError(f"nobody is sent to {pid}")


def refused(address: str) -> bool:
    try:
        rrpc.connect(address, connect_timeout=5.0).close()
    except rrpc.Unavailable:
        return True
    return False


def test_clients_are_spread_over_the_processes(serve: ServeFactory, transport: str) -> None:
    served = start(serve, transport)
    assert len(served.log.splitlines()) == 1
    there = pids(served)
    assert len(there) == 3
    used: Counter[int] = Counter()
    ways = set()
    for _ in range(9):
        with rrpc.connect(served.address, timeout=20.0) as client:
            used[pid_of(client)] += 1
            assert client.call("Lab.total", np.ones(100_000)) == 100_000
            info = client.info()
            assert info["address"] == served.address
            scheme = served.address.partition(":")[0]
            assert info["transport"] == ("shm" if scheme == "rrpc" else scheme)
            ways.add(info["sent_on_to"])
    assert used == Counter(dict.fromkeys(there, 3))
    assert len(ways) == 3
    assert served.terminate() == 0
    assert len(served.log.splitlines()) == 1


def test_one_that_dies_takes_its_own_clients_along_and_is_started_again(
    serve: ServeFactory, transport: str
) -> None:
    served = start(serve, transport, count=2)
    victim, other = pids(served)
    with connected_to(served.address, victim) as lost, connected_to(served.address, other) as kept:
        held = lost.start("Lab.hold", "x")
        going_on = kept.start("Lab.hold", "y", 1.0)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(rrpc.Unavailable):
            held.result(timeout=patience(10))
        for _ in range(5):  # at any moment there is somebody to be sent to
            with rrpc.connect(served.address, timeout=20.0) as client:
                assert pid_of(client) != victim
        assert going_on.result() is False
        eventually(lambda: len(pids(served)) == 2 and victim not in pids(served), START_UP_SECONDS)
        fresh = max(pids(served))
        eventually(lambda: connects_to(served.address, fresh), START_UP_SECONDS)
    assert f"process 1 ({victim}) was killed by SIGKILL; it is started again" in served.log
    assert served.terminate() == 0


def connects_to(address: str, pid: int) -> bool:
    with rrpc.connect(address, timeout=20.0) as client:
        return pid_of(client) == pid


@contextmanager
def callers(served: Served, sizes: list[int]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Client processes that call without a pause, each connected by now."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CALLER, served.address, str(index), str(size)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        for index, size in enumerate(sizes)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "connected\n", process.communicate()[1]
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_no_accepted_call_is_lost_in_a_drain(serve: ServeFactory, transport: str, tmp_path: Path) -> None:
    log = tmp_path / "handled"
    served = serve(
        COUNTED,
        "Counted",
        listen=transport,
        args=["--processes", "2", "--arg", f"log={log}", "--workers", "2"],
    )
    with callers(served, [10, 10, 50_000, 500_000]) as processes:
        eventually(lambda: log.exists() and len({line[0] for line in log.read_text().split()}) == 4)
        served.signal(signal.SIGTERM)
        done = [process.communicate(timeout=patience(30)) for process in processes]
        assert served.wait() == 0
    handled = log.read_text().split()
    answered = [name for out, _ in done for name in out.split()]
    assert sorted(answered) == sorted(handled)
    for _, error in done:
        assert "shutting down" in error or "stopped" in error, error
    assert "still running" not in served.log


def test_each_drains_within_the_grace(serve: ServeFactory) -> None:
    served = start(serve, "tcp", "--grace", "0.3", count=2)
    with rrpc.connect(served.address, timeout=20.0) as client:
        call = call_held(client, "x")
        served.signal(signal.SIGTERM)
        eventually(lambda: refused(served.address))
        assert served.wait() == 1
        with pytest.raises(rrpc.Unavailable):
            call.result(timeout=patience(5))
    assert served.log.count("still running after 0.3 s: Lab.hold") == 1


def test_a_second_signal_ends_all_at_once(serve: ServeFactory) -> None:
    served = start(serve, "tcp", "--grace", "60", count=2)
    there = pids(served)
    with rrpc.connect(served.address, timeout=20.0) as client:
        call_held(client, "x")
        served.signal(signal.SIGTERM)
        eventually(lambda: refused(served.address))
        served.signal(signal.SIGINT)
        assert served.wait() == 128 + signal.SIGINT
        eventually(lambda: all(gone(pid) for pid in there))


def test_a_signal_to_everybody_is_one(serve: ServeFactory) -> None:
    """As systemd sends it: to each process in the group. None takes the supervisor's word for a second signal."""
    served = start(serve, "tcp", count=2)
    with rrpc.connect(served.address, timeout=20.0) as client:
        call = call_held(client, "x", 1.0)
        for pid in [*pids(served), served.pid]:
            os.kill(pid, signal.SIGTERM)
        assert call.result(timeout=patience(10)) is False
        assert served.wait() == 0


def test_processes_end_with_their_supervisor(serve: ServeFactory, new_address: Callable[[str], str]) -> None:
    address = new_address("shm")
    served = start(serve, address, count=2)
    there = pids(served)
    with rrpc.connect(served.address, timeout=20.0) as client:
        call = call_held(client, "x", 1.0)
        served.kill()
        assert call.result(timeout=patience(10)) is False, "what runs is finished"
    eventually(lambda: all(gone(pid) for pid in there))
    again = start(serve, address, count=2)
    with rrpc.connect(again.address, timeout=20.0) as client:
        assert pid_of(client) in pids(again)


def test_one_that_is_asked_to_end_is_replaced(serve: ServeFactory, tmp_path: Path) -> None:
    """Its client goes to another process, while its call runs to its end."""
    served = start(serve, "tcp", count=2)
    leaving, staying = pids(served)
    with connected_to(served.address, leaving) as client:
        call = call_held(client, "x", 170.0, until=tmp_path / "go on")
        os.kill(leaving, signal.SIGTERM)
        eventually(lambda: pid_unless_refused(client) == staying)
        assert connects_to(served.address, staying)
        assert not call.done()
        (tmp_path / "go on").touch()
        assert call.result(timeout=patience(10)) is True
    eventually(lambda: len(pids(served)) == 2 and leaving not in pids(served), START_UP_SECONDS)
    assert served.terminate() == 0


@pytest.mark.parametrize(
    ("module", "services", "said"),
    [
        ("raise RuntimeError('out of luck')\n", "Lab", "importing served: RuntimeError: out of luck"),
        ("import os; os._exit(7)\n", "Lab", r"process [12] ended with exit code 7 before it was ready"),
        (LAB, "Nothing", "module served has no Nothing"),
    ],
)
def test_what_cannot_start_is_not_tried_for_ever(
    tmp_path: Path, module: str, services: str, said: str
) -> None:
    (tmp_path / "served.py").write_text(module)
    args = [f"served:{services}", "--processes", "2", "--listen", "tcp://127.0.0.1:0"]
    done = run_serve(*args, cwd=tmp_path, timeout=30)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(rf"rrpc-serve: {said}.*\n", done.stderr), done.stderr


def test_what_is_in_use_is_said_at_once(serve: ServeFactory) -> None:
    served = start(serve, "tcp", count=2)
    args = ["lab_service:Lab", "--processes", "2", "--listen", served.address]
    done = run_serve(*args, cwd=served.cwd, timeout=30)
    assert done.returncode == 2
    assert re.fullmatch(r"rrpc-serve: cannot listen on .*in use.*\n", done.stderr), done.stderr


def test_one_that_cannot_be_started_again_is_tried_with_pauses(serve: ServeFactory) -> None:
    served = start(serve, "tcp", count=2)
    module = served.cwd / "lab_service.py"
    text = module.read_text()
    module.write_text("raise RuntimeError('broken meanwhile')\n")
    victim, other = pids(served)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: served.log.count("broken meanwhile") >= 2, 2 * START_UP_SECONDS)
    assert re.findall(r"started again in (\S+) s", served.log)[:3] == ["0.1", "0.2", "0.4"]
    assert connects_to(served.address, other)
    module.write_text(text)
    eventually(lambda: len(pids(served)) == 2 and not connects_to(served.address, other), START_UP_SECONDS)
    assert served.terminate() == 0


def test_they_share_the_memory(serve: ServeFactory) -> None:
    limits = ("pool_limit_bytes", "exposed_limit_bytes", "queued_limit_bytes")
    alone, shared = (
        serve(LAB, "Lab", module="lab_service", args=["--processes", processes]) for processes in "12"
    )
    with rrpc.connect(alone.address) as one, rrpc.connect(shared.address) as other:
        mine, its = one.call("Lab.counts"), other.call("Lab.counts")
    assert {name: mine[name] // 2 for name in limits} == {name: its[name] for name in limits}


def test_sockets_are_as_private_as_the_address(
    serve: ServeFactory, new_address: Callable[[str], str]
) -> None:
    for args, mode in (([], 0o600), (["--any-user"], 0o666)):
        served = start(serve, new_address("shm"), *args, count=2)
        path = Path(served.address.removeprefix("shm://"))
        sockets = [path, *path.parent.glob(f"{path.name}.*")]
        assert len(sockets) == 3
        assert {socket.stat().st_mode & 0o777 for socket in sockets} == {mode}
        assert served.terminate() == 0
        assert not any(socket.exists() for socket in sockets)


def test_ports_may_be_chosen(serve: ServeFactory) -> None:
    first = own_ports(4)[0]
    args = ["--processes", "2", "--process-ports", str(first)]
    served = serve(LAB, "Lab", listen=["tcp", "rrpc"], module="lab_service", args=args)
    ports = set()
    for address in served.addresses * 2:
        with rrpc.connect(address, timeout=20.0) as client:
            ports.add(int(client.info()["sent_on_to"].rpartition(":")[2]))
    assert ports == set(range(first, first + 4))
    done = run_serve("lab_service:Lab", "--processes", "9", "--process-ports", "65530")
    assert (done.returncode, done.stderr) == (
        2,
        "rrpc-serve: --process-ports 65530: the last one would be 65538\n",
    )


def test_one_that_does_not_end_is_killed(serve: ServeFactory) -> None:
    served = start(serve, "tcp", "--grace", "0.2", count=2)
    os.kill(pids(served)[0], signal.SIGSTOP)
    assert served.terminate() == 1
    assert re.search(r"process 1 \(\d+\) didn't end and is killed", served.log)


def test_numbers_of_all_are_added_up(serve: ServeFactory, tmp_path: Path) -> None:
    from urllib.request import urlopen

    ready_file = tmp_path / "ready"
    served = start(serve, "tcp", "--metrics", "127.0.0.1:0", "--ready-file", str(ready_file), count=2)
    assert ready_file.read_text().split() == [served.address]
    url = served.metrics_url()
    for _ in range(6):
        with rrpc.connect(served.address, timeout=20.0) as client:
            client.call("Lab.add", 1)

    def page() -> str:
        with urlopen(f"{url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    eventually(lambda: 'rrpc_calls_total{method="Lab.add"} 6.0' in page())  # counted after the reply
    with urlopen(f"{url}/readyz", timeout=10) as answer:
        assert answer.read() == b"ready\n"
    assert served.terminate() == 0
    assert not ready_file.exists()


# Servers that send their clients nowhere good


@pytest.mark.parametrize("scheme", ["tcp", "rrpc"])
@pytest.mark.parametrize(
    ("go_to", "error", "said"),
    [
        (b"", rrpc.Unavailable, "none of the server's processes is ready"),
        (b"0", rrpc.ProtocolError, "port '0'"),
        (b"65536", rrpc.ProtocolError, "port '65536'"),
        (b"evil.example:80", rrpc.ProtocolError, "15 bytes that are no name"),
        (b"7" * 7000, rrpc.ProtocolError, "7000 bytes that are no name"),
        (b"\xff\0\n", rrpc.ProtocolError, "3 bytes"),
        (b"1", rrpc.Unavailable, "sent this client on: .*refused"),
    ],
    ids=["nobody", "zero", "large", "elsewhere", "huge", "noise", "closed"],
)
def test_clients_do_not_go_just_anywhere(
    impostor: Callable[..., str], scheme: str, go_to: bytes, error: type[rrpc.RpcError], said: str
) -> None:
    address = impostor(setup() + hello(go_to=go_to), scheme)
    begin = time.monotonic()
    with pytest.raises(error, match=said) as raised:
        rrpc.connect(address, connect_timeout=10.0)
    assert len(str(raised.value)) < 300
    assert time.monotonic() - begin < patience(5)


@pytest.mark.parametrize("scheme", ["tcp", "rrpc"])
def test_clients_do_not_go_in_circles(impostor: Callable[..., str], scheme: str) -> None:
    address = impostor(lambda own: setup() + hello(go_to=own.rpartition(":")[2].encode()), scheme)
    with pytest.raises(rrpc.ProtocolError, match="sends it on once more"):
        rrpc.connect(address, connect_timeout=10.0)


def test_a_silent_process_keeps_nobody_longer_than_the_timeout(impostor: Callable[..., str]) -> None:
    silent = impostor(b"")
    address = impostor(setup() + hello(go_to=silent.rpartition(":")[2].encode()))
    begin = time.monotonic()
    with pytest.raises(rrpc.DeadlineExceeded, match="sent this client on"):
        rrpc.connect(address, connect_timeout=0.5)
    assert time.monotonic() - begin < patience(3)


@pytest.mark.parametrize("count", [2, 4])
def test_one_that_is_started_again_gets_its_share(serve: ServeFactory, transport: str, count: int) -> None:
    served = start(serve, transport, count=count)
    before = pids(served)
    share = 8 // count
    with ExitStack() as stack:
        clients = [stack.enter_context(rrpc.connect(served.address, timeout=20.0)) for _ in range(8)]
        assert Counter(map(pid_of, clients)) == Counter(dict.fromkeys(before, share))
        os.kill(before[0], signal.SIGKILL)
        wait_until_gone(before[0])

        def spread() -> bool:
            used = Counter(map(pid_unless_refused, clients))
            # A client may be about to connect again while the processes count the others.
            return sum(used[pid] for pid in pids(served) if pid not in before) >= share - 1

        eventually(spread)
    assert served.terminate() == 0
