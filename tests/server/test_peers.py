"""What a server says of who calls it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rrpc

CALLER = """
import json, os, sys, rrpc
with rrpc.connect(sys.argv[-1], timeout=60.0) as client:
    print(json.dumps([os.getpid(), client.call("Who.calls"), client.info()["peer"]]))
"""


@rrpc.service
class Who:
    @rrpc.method
    def calls(self) -> str:
        return rrpc.context().peer


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["train.py", "--epochs"], "train.py"),
        (["-X", "dev", "-u", "../run/train.py"], "train.py"),
        (["-m", "train"], "train"),
        (["-c", CALLER], Path(sys.executable).name),
        (["odd\n'name.py"], "odd?'name.py"),
    ],
)
def test_the_process_that_calls_over_shared_memory(
    tmp_path: Path, arguments: list[str], program: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("train.py", "odd\n'name.py"):
        (folder / name).write_text(CALLER)
    seen: list[str] = []
    listen = f"shm://{tmp_path}/who.sock"
    with rrpc.serve(
        Who(), listen=listen, observer=lambda call: seen.append(call.peer), builtin=False
    ) as server:
        done = subprocess.run(
            [sys.executable, *arguments, server.addresses[0]],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        pid, peer, other = json.loads(done.stdout)
    assert peer == f"pid {pid} uid {os.getuid()} ({program})"
    assert seen == [peer]
    assert other.startswith(f"pid {os.getpid()} uid {os.getuid()} (")


def test_a_caller_over_the_network_has_an_address() -> None:
    with rrpc.serve(Who(), listen="tcp://127.0.0.1:0") as server, rrpc.connect(server.addresses[0]) as client:
        host, _, port = client.call("Who.calls").partition(":")
        assert (host, port.isdecimal()) == ("127.0.0.1", True)
        assert f"tcp://{client.info()['peer']}" == server.addresses[0]
