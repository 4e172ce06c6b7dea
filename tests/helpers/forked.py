"""Commands of rrpc, forked from a process that has imported them: to start Python takes most of what they take."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fleet import Nursery
from processes import COUNTS

PROGRAM = """
import importlib, json, os, sys
import rrpc
for name in ("serve", "gen", "info", "call"):
    importlib.import_module(f"rrpc.cli.{name}")

for line in sys.stdin:
    asked = json.loads(line)
    if "ended" in asked:
        pid, status = os.waitpid(asked["ended"], os.WNOHANG)
        print(asked["ended"], os.waitstatus_to_exitcode(status) if pid else "-", flush=True)
    elif pid := os.fork():
        print(pid, "-", flush=True)
    else:
        for number, path in ((1, asked["out"]), (2, asked["errors"])):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
            os.close(file)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.chdir(asked["cwd"])
        for name in os.environ.keys() - asked["environment"].keys():
            del os.environ[name]
        os.environ.update(asked["environment"])
        module = sys.modules[asked["module"]]
        sys.argv = [module.__file__, *asked["arguments"]]
        sys.exit(module.main(asked["arguments"]))
"""


@cache
def _nursery() -> Nursery:
    return Nursery(PROGRAM, COUNTS)


class Forked:
    """What tests use of subprocess.Popen. `module`: one of those that the program above imports."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        cwd: Path,
        out: Path,
        errors: Path,
        environment: dict[str, str],
    ) -> None:
        self.returncode: int | None = None
        out.write_bytes(b"")
        errors.write_bytes(b"")
        asked = {
            "module": module,
            "arguments": list(arguments),
            "cwd": str(cwd),
            "out": str(out),
            "errors": str(errors),
            "environment": environment,
        }
        self.pid, _ = _nursery().begin(json.dumps(asked))

    def poll(self) -> int | None:
        if self.returncode is None:
            _, said = _nursery().begin(json.dumps({"ended": self.pid}))
            self.returncode = None if said == "-" else int(said)
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("rrpc-serve", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
