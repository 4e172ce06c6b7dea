"""rrpc-gen with the address of a server in place of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Parties
from processes import run_command, run_python

import rrpc
from rrpc.cli import gen

LAB = """
from dataclasses import dataclass
from collections.abc import Iterator
import numpy as np
from numpy.typing import NDArray
import rrpc

@dataclass
class Track:
    name: str
    points: NDArray[np.float64]

@rrpc.service(name="lab.Tracks")
class Tracks:
    "Tracks of a camera."

    @rrpc.method
    def get(self, name: str, *, smooth: bool = False) -> Track:
        "Returns a track."
        return Track(name, np.zeros(3))

    @rrpc.method
    def watch(self, count: int = 3) -> Iterator[Track]:
        for index in range(count):
            yield Track(str(index), np.ones(2))

@rrpc.service
class Clock:
    @rrpc.method
    def now(self) -> float:
        return 1.5
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder has the module ``made_lab``; its address is that of a server of both services."""
    (tmp_path / "made_lab.py").write_text(LAB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "made_lab"


@pytest.fixture
def address(lab: str) -> Iterator[str]:
    import importlib
    import sys

    sys.modules.pop(lab, None)
    module = importlib.import_module(lab)
    with rrpc.serve(module.Tracks(), module.Clock(), listen="tcp://127.0.0.1:0") as server:
        yield server.addresses[0]


USE = """
import sys
from client import ClockClient, TracksClient
with ClockClient(sys.argv[1]) as clock, TracksClient(sys.argv[1]) as tracks:
    print(clock.now(), tracks.get("a", smooth=True).points.sum(), [track.name for track in tracks.watch(2)])
"""


def test_a_client_of_all_its_services(address: str, tmp_path: Path) -> None:
    run_command("gen", address, "--only", "client", "-o", "client.py", cwd=tmp_path)
    text = (tmp_path / "client.py").read_text()
    assert "class TracksClient" in text
    assert "Tracks of a camera." in text
    assert "rrpc.Health" not in text, "built-in services have clients already"
    assert run_python(USE, address, cwd=tmp_path).stdout == "1.5 0.0 ['0', '1']\n"
    assert (
        run_command("gen", address, "--only", "client", "-o", "client.py", "--check", cwd=tmp_path).returncode
        == 0
    )


def test_two_servers(address: str, lab: str) -> None:
    import sys

    with rrpc.serve(sys.modules[lab].Clock(), listen="tcp://127.0.0.1:0") as other:
        text = run_command("gen", other.addresses[0], address, "--service", "Clock").stdout
        assert text.count("class ClockClient") == 1


def test_one_service(address: str, tmp_path: Path) -> None:
    text = run_command("gen", address, "--service", "Clock").stdout
    assert "class ClockClient" in text
    assert "Tracks" not in text
    wrong = run_command("gen", address, "--service", "Clok", check=False)
    assert wrong.returncode == 2
    assert "there is no service 'Clok'; did you mean Clock?" in wrong.stderr


def test_its_interface_as_a_file(address: str, tmp_path: Path) -> None:
    run_command("gen", address, "--service", "lab.Tracks", "--idl", "-o", "tracks.rrpc", cwd=tmp_path)
    by_code = run_command("gen", "made_lab:Tracks", "--idl", cwd=tmp_path).stdout
    assert (tmp_path / "tracks.rrpc").read_text() == by_code


def test_a_server_compared(address: str, tmp_path: Path) -> None:
    run_command("gen", "made_lab:Tracks", "--idl", "-o", "tracks.rrpc", cwd=tmp_path)
    for other in ("made_lab:Tracks", "tracks.rrpc", address):
        assert run_command("gen", "check", other, address, cwd=tmp_path).stdout == ""
        assert run_command("gen", "check", address, other, cwd=tmp_path).stdout == ""
    text = (tmp_path / "tracks.rrpc").read_text()
    assert "smooth: bool = false" in text
    (tmp_path / "tracks.rrpc").write_text(text.replace("smooth: bool = false", "smooth: i32 = 0"))
    changed = run_command("gen", "check", "tracks.rrpc", address, cwd=tmp_path, check=False)
    assert changed.returncode == 1
    assert "breaking" in changed.stdout


def test_nobody_there(capsys: pytest.CaptureFixture[str], short_tmp: Path) -> None:
    assert gen.main([f"shm://{short_tmp}/nobody", "--timeout", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"rrpc-gen: no server listens on {short_tmp}/nobody"


def test_over_tls(tmp_path: Path, lab: str) -> None:
    import importlib

    parties = Parties.meet(tmp_path)
    module = importlib.import_module(lab)
    with rrpc.serve(module.Clock(), listen="rrpcs://127.0.0.1:0", **parties.of_server()) as server:
        address = server.addresses[0]
        files = (
            "--tls-ca",
            parties.authority.path,
            "--tls-cert",
            parties.client.cert,
            "--tls-key",
            parties.client.key,
        )
        assert "class ClockClient" in run_command("gen", address, *files).stdout
        unknown = run_command("gen", address, "--tls-ca", parties.authority.path, check=False)
        assert unknown.returncode == 2
        (line,) = unknown.stderr.splitlines()
        assert line.startswith("rrpc-gen: ")
        assert "certificate" in line
