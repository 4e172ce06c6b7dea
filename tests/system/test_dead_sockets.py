"""The files that killed servers leave: the next server clears them, and no living one's."""

import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from lab import LAB
from processes import Served, ServeFactory

import rrpc


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="rrpc-") as short:  # tmp_path is too long for a socket's path
        (Path(short) / "rrpc").mkdir(mode=0o700)
        yield Path(short) / "rrpc"


def start(serve: ServeFactory, folder: Path) -> Served:
    return serve(LAB, "Lab", listen="rrpc", module="lab_service", env={"XDG_RUNTIME_DIR": str(folder.parent)})


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.sock")}


def test_the_next_server_clears_what_a_killed_one_left(
    serve: ServeFactory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder.parent))
    killed = start(serve, folder)
    left = files(folder)
    assert len(left) == 1
    living = start(serve, folder)
    stopped = start(serve, folder)
    os.kill(stopped.pid, signal.SIGSTOP)
    others = files(folder) - left
    killed.kill()
    (folder / "other.txt").touch()
    start(serve, folder)
    after = files(folder)
    assert not left & after
    assert others <= after
    assert len(after) == 3
    assert (folder / "other.txt").exists()
    os.kill(stopped.pid, signal.SIGCONT)
    for served in (living, stopped):
        with rrpc.connect(served.address, timeout=20.0) as client:
            assert client.info()["transport"] == "shm"


def test_a_socket_bound_but_not_listening_is_left_while_its_owner_has_the_lock(
    serve: ServeFactory, folder: Path
) -> None:
    with open(folder / ".lock", "w") as lock, socket.socket(socket.AF_UNIX) as starting:
        fcntl.flock(lock, fcntl.LOCK_EX)
        starting.bind(str(folder / "starting.sock"))
        start(serve, folder)  # waits for a second, then clears nothing
        assert "starting.sock" in files(folder)
