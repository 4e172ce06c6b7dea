"""The benchmark runs, at tiny sizes; what it measures is never judged here."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, run

pytestmark = pytest.mark.slow

TINY = ["--rounds", "1", "--seconds", "0.01", "--sizes", "0.25", "--connections", "3"]


def bench(*arguments: str, program: tuple[str, ...] = ("-m", "bench")) -> subprocess.CompletedProcess[str]:
    return run(*program, *arguments, cwd=ROOT, timeout=110, check=False)


def subjects_of(report: Any, workload: str) -> set[str]:
    return {record["subject"] for record in report["records"] if record["workload"] == workload}


@pytest.mark.parametrize(
    ("workloads", "peers"),
    [
        ("W1,W4", "rrpc shm,rrpc tcp,unix socket,tcp socket,zmq+msgpack,grpcio"),
        ("W2,W3", "rrpc shm,grpcio"),
    ],
)
def test_calls_and_arrays(workloads: str, peers: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    done = bench("--only", workloads, "--peers", peers, "--out", str(tmp_path), *TINY)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["left_out"] == {}
    for workload in workloads.split(","):
        assert subjects_of(report, workload) >= set(peers.split(",")), workload
    assert all(value > 0 for record in report["records"] for value in record["metrics"].values())
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "targets" in done.stdout


def test_asyncio(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    done = bench("--only", "W9,W10", "--out", str(tmp_path), *TINY)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["left_out"] == {}
    for workload in ("W9", "W10"):
        assert subjects_of(report, workload) == {"rrpc shm", "rrpc tcp", "grpcio"}, workload


def test_connections_and_idleness(tmp_path: Path) -> None:
    done = bench("--only", "W5,W6", "--peers", "rrpc shm,unix socket", "--out", str(tmp_path), *TINY)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["left_out"] == {}
    for workload in ("W5", "W6"):
        assert subjects_of(report, workload) == {"rrpc shm", "unix socket"}, workload


def test_ways_of_one_call(tmp_path: Path) -> None:
    done = bench("--only", "W7", "--out", str(tmp_path), *TINY)
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "bench.json").read_text())["records"]
    cases = [record["case"] for record in records]
    assert cases[:3] == ["generated client", "Client.call", "bare core"]
    assert cases[3:] == ["with a deadline", "with metadata"]
    assert "metadata more" in done.stdout
    assert "generated client's p50 / Client.call's" in done.stdout


def test_what_tracing_costs(tmp_path: Path) -> None:
    done = bench("--only", "W8", "--out", str(tmp_path), *TINY)
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "bench.json").read_text())["records"]
    assert [record["case"] for record in records] == ["never traced", "has traced a call"]


def test_budgets(tmp_path: Path) -> None:
    done = bench("--only", "W12,W14", "--out", str(tmp_path), *TINY)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["left_out"] == {}
    attacks = [record["case"] for record in report["records"] if record["workload"] == "W12"]
    assert len(attacks) == len(set(attacks)) == 9
    assert "p99 of small calls beside the worst attack" in done.stdout


def test_runs_as_a_script_and_refuses_what_it_does_not_know() -> None:
    done = bench("--only", "W99", program=("bench/run.py",))
    assert done.returncode == 2
    assert "no such workload or peer: W99" in done.stderr


def test_streams(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    done = bench("--only", "W11", "--peers", "rrpc shm,grpcio", "--out", str(tmp_path), *TINY)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["left_out"] == {}
    cases = {record["case"] for record in report["records"] if record["subject"] == "rrpc shm"}
    assert cases == {"received", "sent", "records received", "1 MiB items", "1 MiB results"}
    assert "streams: items received, thousand/s" in done.stdout
