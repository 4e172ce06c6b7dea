"""rrpc-serve, forked from a process that has imported it: in the virtual machine Python takes seconds to start."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fleet import Nursery

PROGRAM = """
import json, os, sys
from rrpc.cli import serve

for line in sys.stdin:
    asked = json.loads(line)
    if "ended" in asked:
        pid, status = os.waitpid(asked["ended"], os.WNOHANG)
        print(asked["ended"], os.waitstatus_to_exitcode(status) if pid else "-", flush=True)
    elif pid := os.fork():
        print(pid, "-", flush=True)
    else:
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(log, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(asked["cwd"])
        sys.exit(serve.main(asked["arguments"]))
"""


@cache
def _nursery() -> Nursery:
    return Nursery(PROGRAM)


class Forked:
    """What tests use of subprocess.Popen."""

    def __init__(self, arguments: Sequence[str], cwd: Path, log: Path) -> None:
        self.returncode: int | None = None
        log.touch()
        asked = {"arguments": list(arguments), "cwd": str(cwd), "log": str(log)}
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
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
