"""Child processes: started with a printed handshake, measured by pid, ended by pid."""

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.settings import ROOT


class ChildFailedError(RuntimeError):
    """A child ended, or said nothing in time; the message holds the last line it wrote to stderr."""


class Child:
    """A child process that is spoken to by lines; leaving the ``with`` block ends it."""

    def __init__(self, arguments: list[str], timeout: float) -> None:
        self._name = " ".join(arguments[1:3]) if arguments[1] != "bench.client" else "client"
        self._timeout = timeout
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=ROOT,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_line(self) -> str:
        """The next line of its output; a child that stays silent past the timeout is ended."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(self._timeout, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise ChildFailedError(self._why())
        return line.rstrip("\n")

    def read_json(self) -> Any:
        return json.loads(self.read_line())

    def write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildFailedError(self._why()) from None

    def _why(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"{self._name}: ended with {code}: {lines[-1] if lines else 'no message'}"

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._stderr.close()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process with all its threads, to the nanosecond (Linux's per-process CPU clock)."""
    return time.clock_gettime((~pid << 3) | 2)


def memory_kib(pid: int) -> dict[str, int]:
    """A process's resident memory, in KiB; Pss without file pages, whose share moves with every neighbour."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {"rss": fields["Rss"], "pss": fields["Pss_Anon"] + fields["Pss_Shmem"]}


def descriptor_count(pid: int | str) -> int:
    """Open file descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def raise_descriptor_limit() -> None:
    """Thousands of connections need descriptors: take all that we may; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
