"""Helpers for tests that run real processes: start, wait for a condition, look at what a process holds, end."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from forked import Forked

T = TypeVar("T")
Process: TypeAlias = "subprocess.Popen[bytes] | Forked"
N = TypeVar("N", int, float)
HELPERS = Path(__file__).resolve().parent
TESTS = HELPERS.parent
ROOT = TESTS.parent
SERVE = "rrpc.cli.serve"
START_UP = re.compile(r"^rrpc-serve: (?P<services>[\w., ]+) on (?P<address>\S+)$", re.MULTILINE)
START_UP_SECONDS = 30.0
# How much slower than a usual machine this one is: patience is stretched by it. Set in the virtual machine.
TIME_SCALE = float(os.environ.get("RRPC_TEST_TIME_SCALE", "1"))


def patience(seconds: float) -> float:
    """So long on a usual machine; for bounds on how long something may take, never for what is measured."""
    return seconds * TIME_SCALE


def volume(usual: N, trimmed: N) -> N:
    """How many, how large, how long: the second on a slow machine."""
    return trimmed if TIME_SCALE > 1 else usual


def eventually(predicate: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """Waits until the predicate gives something true, and gives that; fails after the timeout."""
    deadline = time.monotonic() + patience(timeout)
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {patience(timeout)} s: {what or predicate.__name__} (last: {value!r})"
            )
        time.sleep(0.005)
    return value


COUNTS = {name: os.environ.get(name, "") for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")}
"""What has a child's branches counted where this process's are. Most children aren't counted: it doubles what an
interpreter takes to start, and what they run of rrpc/ runs in the tests' own processes too."""


def child_environment(**extra: str) -> dict[str, str]:
    # The package is found wherever the child runs, installed or not.
    path = os.pathsep.join([str(ROOT), str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **dict.fromkeys(COUNTS, ""), **extra}


def run(
    *args: str | Path, cwd: Path | None = None, timeout: float = 60.0, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs the interpreter with these arguments; a non-zero exit fails the test with what it printed."""
    done = subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=child_environment(**env),
        timeout=patience(timeout),
        check=False,
    )
    if check:
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run_python(code: str, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Code in an interpreter of its own; `how` as for `run`."""
    return run("-c", code, *args, **how)


def run_command(
    name: str, *args: str | Path, cwd: Path | None = None, timeout: float = 60.0, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs rrpc-NAME (serve, gen, info or call) to its end, as `run` does but without the start of an interpreter."""
    from forked import Forked

    arguments = [str(argument) for argument in args]
    with tempfile.TemporaryDirectory(prefix="rrpc-") as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        process = Forked(f"rrpc.cli.{name}", arguments, cwd or Path.cwd(), out, errors, child_environment())
        try:
            code = process.wait(patience(timeout))
        finally:
            process.kill()
        done = subprocess.CompletedProcess(arguments, code, out.read_text(), errors.read_text())
    if check:
        assert code == 0, f"exit code {code}\n{done.stdout}\n{done.stderr}"
    return done


def run_serve(*args: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """An rrpc-serve that is to end by itself; its exit code is the test's to look at."""
    return run_command("serve", *args, check=False, **how)


@dataclass(frozen=True)
class Usage:
    """What a process holds now."""

    rss_bytes: int
    own_bytes: int
    """Of those, without files: the kernel maps their pages when code is first run, and drops them as it likes."""
    pinned_bytes: int
    fd_count: int
    thread_count: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())

        def bytes_of(key: str) -> int:
            return int(status[key].split()[0]) * 1024

        return cls(
            rss_bytes=bytes_of("VmRSS"),
            own_bytes=bytes_of("RssAnon") + bytes_of("RssShmem"),
            pinned_bytes=bytes_of("VmLck") + bytes_of("VmPin"),
            fd_count=len(os.listdir(f"/proc/{pid}/fd")),
            thread_count=int(status["Threads"]),
        )


def assert_no_growth(before: Usage, after: Usage, rss_slack_bytes: int = 8 << 20) -> None:
    assert after.fd_count <= before.fd_count, f"descriptors grew: {before} -> {after}"
    assert after.thread_count <= before.thread_count, f"threads grew: {before} -> {after}"
    assert after.pinned_bytes <= before.pinned_bytes, f"pinned memory grew: {before} -> {after}"
    assert after.rss_bytes <= before.rss_bytes + rss_slack_bytes, f"memory grew: {before} -> {after}"


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, its own and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files() -> int:
    """Counts this process's open files, but for those that it may keep: the pool's, and an eventfd for each thread."""
    others, eventfds = 0, 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}")
            eventfds += target == "anon_inode:[eventfd]"
            others += not target.startswith(("/memfd:", "anon_inode:[eventfd]"))
    return others + max(0, eventfds - len(os.listdir("/proc/self/task")))


class Served:
    """A running rrpc-serve, started by the `serve` fixture."""

    def __init__(self, process: Process, cwd: Path, log_path: Path) -> None:
        self.process = process
        self.cwd = cwd
        self.log_path = log_path
        self.addresses: list[str] = []

    @classmethod
    def launch(
        cls, command: Sequence[str], cwd: Path, log_path: Path, environment: dict[str, str]
    ) -> "Served":
        """As a user starts it."""
        with log_path.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return cls(process, cwd, log_path)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until_listening(self, count: int) -> None:
        def listening() -> bool:
            self.addresses = [match["address"] for match in START_UP.finditer(self.log)]
            ended = self.process.poll()
            assert ended is None, f"rrpc-serve ended with {ended} before it listened:\n{self.log}"
            return len(self.addresses) >= count

        eventually(listening, START_UP_SECONDS, f"start-up of rrpc-serve, which said:\n{self.log}")

    def metrics_url(self) -> str:
        """Where --metrics serves, without a path."""
        found = eventually(lambda: re.search(r"metrics at (http://\S+)/metrics", self.log))
        assert found is not None
        return found[1]

    def usage(self) -> Usage:
        return Usage.of(self.pid)

    def wait(self, timeout: float = 30.0) -> int:
        return self.process.wait(patience(timeout))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM, then the exit code."""
        self.process.terminate()
        return self.wait(timeout)

    def kill(self) -> int:
        """SIGKILL: no goodbye."""
        self.process.kill()
        return self.wait()

    def stop(self) -> None:
        """SIGSTOP: alive and silent. `resume` undoes it."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)


class ServeFactory:
    """Starts servers in the test's own directory and ends those that still run."""

    def __init__(self, folder: Path, new_address: Callable[[str], str], fork: bool = True) -> None:
        """`fork`: without the start of an interpreter for each, where that can be."""
        self.folder = folder
        self._new_address = new_address
        self._fork = fork
        self._servers: list[Served] = []

    def __call__(
        self,
        module_text: str,
        *services: str,
        listen: str | Sequence[str] = "tcp",
        args: Sequence[str] = (),
        module: str = "",
        env: dict[str, str] | None = None,
    ) -> Served:
        """`listen`: addresses, or bare schemes for which one is made. `args`: more of rrpc-serve's own."""
        name = module or f"served_{len(self._servers)}"
        (self.folder / f"{name}.py").write_text(module_text)
        listens = [listen] if isinstance(listen, str) else list(listen)
        addresses = [item if "://" in item else self._new_address(item) for item in listens]
        arguments = [f"{name}:{service}" for service in services]
        for address in addresses:
            arguments += ["--listen", address]
        if not all(re.match(r"shm:|\w+://(127\.0\.0\.1|localhost|\[::1\])", each) for each in addresses):
            arguments.append("--insecure")
        return self.start([*arguments, *args], len(addresses), env=env)

    def start(
        self,
        arguments: Sequence[str],
        count: int,
        folder: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> Served:
        """With rrpc-serve's arguments as they are; waits until it listens on so many addresses."""
        log_path = self.folder / f"serve-{len(self._servers)}.log"
        server = self._started(arguments, folder or self.folder, log_path, env)
        self._servers.append(server)
        server.wait_until_listening(count)
        return server

    def _started(
        self, arguments: Sequence[str], folder: Path, log_path: Path, env: dict[str, str] | None
    ) -> Served:
        if (self._fork or TIME_SCALE > 1) and not env:
            from forked import Forked

            process = Forked(SERVE, arguments, folder, log_path, log_path, child_environment())
            return Served(process, folder, log_path)
        command = [sys.executable, "-m", SERVE, *arguments]
        return Served.launch(command, folder, log_path, child_environment(**(env or {})))

    def abandon(self, server: Served) -> None:
        """Kill a server and leave it to the kernel, which may never let go of what it has."""
        server.process.kill()
        self._servers.remove(server)

    def close(self) -> None:
        for server in self._servers:
            if server.process.poll() is None:
                server.resume()
                server.process.kill()
                server.process.wait(30)
