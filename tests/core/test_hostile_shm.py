"""What a process that speaks shm wrongly can't do to others."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import shm_peer
from processes import ServeFactory, child_environment, patience, volume

import rrpc

ECHO = """
import rrpc

@rrpc.service
class Echo:
    @rrpc.method
    def same(self, value: int) -> int:
        return value
"""


def worst_call_seconds(client: rrpc.Client, until: threading.Event) -> float:
    worst = 0.0
    while not until.is_set():
        start = time.monotonic()
        assert client.call("Echo.same", 1) == 1
        worst = max(worst, time.monotonic() - start)
    return worst


def test_endless_claims_hold_up_nobody_else(serve: ServeFactory, short_tmp: Path) -> None:
    """Each slot that a dying connection would wait for adds up: with the 64 of 20 connections to many seconds."""
    path = short_tmp / "claims.sock"
    served = serve(ECHO, "Echo", listen=[f"shm://{path}", "tcp"], args=["--workers", "2"])
    command = [sys.executable, shm_peer.__file__, str(path), str(volume(20, 2))]
    ended = threading.Event()
    with (
        rrpc.connect(served.addresses[1], timeout=20.0) as client,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
        ) as hostile,
    ):

        def wait_for_hostile() -> None:
            assert hostile.stdout is not None
            hostile.stdout.readline()
            ended.set()

        waiting = threading.Thread(target=wait_for_hostile)
        waiting.start()
        worst = worst_call_seconds(client, ended)
        waiting.join()
        hostile.communicate("")
        assert hostile.returncode == 0
    assert worst < patience(1.0)
