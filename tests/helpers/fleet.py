"""Servers that are killed and started again quickly: each a process, forked from one that has imported everything."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from counted_service import runs_of
from lab import TRANSPORTS
from processes import child_environment, eventually

NURSERY = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import rrpc
from counted_service import Counted

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
for line in sys.stdin:
    name, folder, address = line.split()
    if os.fork() == 0:
        try:
            server = rrpc.Server(Counted(name, folder), listen=address, workers=8).start()
        except BaseException:
            os.write(1, f"{os.getpid()} nowhere\\n".encode())
            raise
        os.write(1, f"{os.getpid()} {server.addresses[0]}\\n".encode())
        signal.sigwait({signal.SIGTERM})
        server.drain(20.0)
        server.stop()
        os._exit(0)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
"""


class Member:
    """One server of a fleet, and those that came after it at its address."""

    def __init__(self, fleet: "Fleet", name: str, address: str) -> None:
        self.name = name
        self._fleet = fleet
        self.address = address
        self.pid = 0

    def start(self) -> "Member":
        self.pid, self.address = self._fleet.begin(self.name, self.address)
        return self

    def kill(self) -> None:
        """No goodbye."""
        os.kill(self.pid, signal.SIGKILL)

    def drain(self) -> None:
        """As on SIGTERM: it refuses new calls, and ends when those that it has are done."""
        os.kill(self.pid, signal.SIGTERM)

    def restart(self) -> None:
        self.kill()
        wait_until_gone(self.pid)
        self.start()

    def told(self, what: str, yes: bool = True) -> None:
        """To "fail" or to be "slow"."""
        flag = self._fleet.folder / f"{what}-{self.name}"
        flag.touch() if yes else flag.unlink(missing_ok=True)


class Nursery:
    """The process that others are forked from, by a program that begins one for each line of its input.

    Args:
        program: Python source that the process runs.
        environment: Variables that the process and its forks have besides this process's.
    """

    def __init__(self, program: str, environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=child_environment(**(environment or {})),
        )

    def begin(self, line: str) -> tuple[int, str]:
        """A new process, and what it says: of a server, where it listens."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{line}\n")
            pid, said = self._process.stdout.readline().split()
        return int(pid), said

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Fleet:
    def __init__(self, nursery: Nursery, folder: Path, new_address: Callable[[str], str]) -> None:
        self.folder = folder
        self._nursery = nursery
        self._new_address = new_address
        self._pids: list[int] = []

    def member(self, name: str, transport: str) -> Member:
        """Not started yet: its address is where it will listen, and closed until then."""
        return Member(self, name, self._new_address(transport))

    def members(self, count: int, transport: str) -> list[Member]:
        return [self.member(f"server{i}", transport).start() for i in range(count)]

    def begin(self, name: str, address: str) -> tuple[int, str]:
        pid, bound = self._nursery.begin(f"{name} {self.folder} {address}")
        assert bound != "nowhere", f"{name} can't listen on {address}; standard error tells why"
        self._pids.append(pid)
        return pid, bound

    def runs(self) -> list[str]:
        """The keys of all calls that handlers have seen."""
        return runs_of(self.folder)

    def ran(self, key: str, name: str) -> bool:
        """Whether that server's handler has seen the call."""
        runs = self.folder / "runs"
        return runs.exists() and f"\n{key} {name} " in runs.read_text()

    def close(self) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=[transport for transport in TRANSPORTS if transport != "rrpc"])
def scheme(request: pytest.FixtureRequest) -> str:
    """As the fixture transport, but for addresses of which each leads one way only."""
    return str(request.param)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery(NURSERY)
    yield made
    made.close()


@pytest.fixture
def fleet(nursery: Nursery, tmp_path: Path, new_address: Callable[[str], str]) -> Iterator[Fleet]:
    made = Fleet(nursery, tmp_path, new_address)
    yield made
    made.close()


def gone(pid: int) -> bool:
    """Whether the process has ended, all of its threads, of which any keeps its sockets open; one that nobody has
    waited for counts."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pid: int) -> None:
    eventually(lambda: gone(pid), what=f"the end of process {pid}")
