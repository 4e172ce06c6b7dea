"""rrpc-info, on a machine with adapters or without."""

import json

import pytest
from lab import LabServer

import rrpc
from rrpc.cli import info

ADAPTERS = [
    {
        "name": "mlx5_0",
        "port": "1",
        "state": "active",
        "transport": "RoCE",
        "active_mtu": "4096",
        "gids": "3 ::ffff:10.1.0.1 RoCE v2",
        "exposure": "memory window",
        "firmware": "20.1",
    },
    {"name": "siw0", "port": "1", "state": "down", "why_not": "port 1 is down: ip link set eth0 up"},
]


@pytest.fixture
def two_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rrpc, "adapters", lambda: ADAPTERS)


def test_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert info.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rrpc ")
    sections = [line for line in lines if not line.startswith(" ")][1:]
    assert sections == ["transports", "adapters", "limits"]
    said = dict(line.split(maxsplit=1) for line in lines if line.startswith("  ") and line != "  none")
    assert said["shm"] == said["tcp"] == "usable"
    assert said["verbs"] == (rrpc.transports()["verbs"].partition("can't be had: ")[2] or "usable")
    assert {"memlock", "ptrace_scope", "/dev/shm"} <= set(said)
    if not rrpc.adapters():
        assert "  none" in lines


def test_json(capsys: pytest.CaptureFixture[str], two_adapters: None) -> None:
    assert info.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"version", "kernel", "transports", "adapters", "limits"}
    assert report["transports"]["shm"] == {"usable": True, "why_not": ""}
    assert set(report["transports"]) == set(rrpc.transports())
    assert report["adapters"] == ADAPTERS
    assert {"memlock_soft_bytes", "memlock_hard_bytes", "ptrace_scope", "shm_bytes"} <= set(report["limits"])


def test_adapters(capsys: pytest.CaptureFixture[str], two_adapters: None) -> None:
    assert info.main([]) == 0
    out = capsys.readouterr().out
    block = out[out.index("adapters\n") : out.index("limits\n")].splitlines()
    assert block == [
        "adapters",
        "  mlx5_0 port 1: usable",
        "    state       active",
        "    transport   RoCE",
        "    active mtu  4096",
        "    gids        3 ::ffff:10.1.0.1 RoCE v2",
        "    exposure    memory window",
        "    firmware    20.1",
        "  siw0 port 1: no: port 1 is down: ip link set eth0 up",
        "    state       down",
    ]


def test_limits_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    none = {"ptrace_scope": None, "shm_bytes": None, "shm_free_bytes": None}
    monkeypatch.setattr(
        info, "_limits", lambda: {"memlock_soft_bytes": 65536, "memlock_hard_bytes": None, **none}
    )
    assert info.main([]) == 0
    out = capsys.readouterr().out
    assert "soft 64 KiB, hard unlimited" in out
    assert "/dev/shm      not there" in out


def test_a_connection(capsys: pytest.CaptureFixture[str], lab_server: LabServer) -> None:
    address = lab_server.address("rrpc")
    assert info.main([address]) == 0
    out = capsys.readouterr().out
    assert f"  address       {address}" in out
    assert "  transport     shm" in out
    assert info.main([address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["connection"]["transport"] == "shm"


def test_a_connection_that_is_not_the_best(
    capsys: pytest.CaptureFixture[str], lab_server: LabServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RRPC_TRANSPORTS", "tcp")
    assert info.main([lab_server.address("rrpc")]) == 0
    assert "  not shm       the transports option leaves it out" in capsys.readouterr().out
