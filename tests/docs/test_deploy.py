"""The files of docs/deploy: their command lines are started for real, with addresses and folders of the test."""

import configparser
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import ROOT, Served, ServeFactory, child_environment, eventually

import rrpc
from rrpc.cli.serving.settings import settings

DEPLOY = ROOT / "docs" / "deploy"
SERVICE = ROOT / "examples" / "blobs"
Start = Callable[..., Served]


class Unit(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def start(serve: ServeFactory, tmp_path: Path) -> Start:
    """Starts rrpc-serve with arguments from a file, and the test's own after them, which win."""

    def begin(arguments: Sequence[str], **environment: str) -> Served:
        ours = ["--listen", "rrpc://127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        ours += ["--arg", f"directory={tmp_path / 'data'}", "--ready-file", str(tmp_path / "ready")]
        served = serve.start([*arguments, *ours], 0, SERVICE, environment)

        def listening() -> list[str]:
            assert served.process.poll() is None, served.log
            return (tmp_path / "ready").read_text().split() if (tmp_path / "ready").exists() else []

        served.addresses = eventually(listening, 30.0)
        return served

    return begin


def in_use(served: Served) -> None:
    with rrpc.connect(served.addresses[-1], timeout=20.0) as client:
        assert client.call("BlobStore.names") == []


def last(options: Any, *names: str) -> float:
    return float(sum(getattr(options, name) for name in names))


def test_the_unit(start: Start, short_tmp: Path) -> None:
    unit = Unit(strict=False)
    unit.read(DEPLOY / "rrpc-blobs.service")
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "rrpc-serve"
    arguments = [text.replace("/etc/rrpc/", f"{DEPLOY}/") for text in arguments]
    assert int(service["TimeoutStopSec"]) > last(settings(arguments), "grace", "drain_delay")
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["Type"] == "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(short_tmp / "notify"))
        systemd.settimeout(30)
        watchdog = int(service["WatchdogSec"]) * 1_000_000
        served = start(arguments, NOTIFY_SOCKET=str(short_tmp / "notify"), WATCHDOG_USEC=str(watchdog))
        assert "READY=1" in systemd.recv(4096).decode().split("\n")
        in_use(served)
        served.signal(signal.SIGHUP)
        assert "RELOADING=1" in systemd.recv(4096).decode()
        assert "READY=1" in systemd.recv(4096).decode()
        assert "WATCHDOG=1" in systemd.recv(4096).decode()
        assert served.terminate() == 0
        assert "STOPPING=1" in systemd.recv(4096).decode()


def test_kubernetes(start: Start, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    config, deployment, service = documents
    assert [document["kind"] for document in documents] == ["ConfigMap", "Deployment", "Service"]
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert (
        pod["metadata"]["labels"]
        == deployment["spec"]["selector"]["matchLabels"]
        == service["spec"]["selector"]
    )
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    (tmp_path / "serve.toml").write_text(config["data"]["serve.toml"])
    arguments = [text.replace("/etc/rrpc", str(tmp_path)) for text in container["args"]]
    given = settings(arguments)
    assert list(given.listen) == [f"rrpc://$(POD_IP):{ports['rrpc']}"]
    assert given.metrics == f":{ports['metrics']}"
    assert pod["spec"]["terminationGracePeriodSeconds"] > last(given, "grace", "drain_delay")

    arguments = [text.replace("$(POD_IP):7472", "127.0.0.1:0") for text in arguments]
    served = start([*arguments, "--drain-delay", "0", "--log-format", "text"])
    in_use(served)
    probes = {container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert probes == {"/healthz", "/readyz"}
    for path in probes:
        with urllib.request.urlopen(served.metrics_url() + path, timeout=10) as got:
            assert got.status == 200
    assert served.terminate() == 0


# What srun does with a command, on one node.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
SLURM_PROCID=0 exec "$@"
"""


@pytest.mark.slow
def test_the_slurm_script(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {
        "srun": SRUN,
        "rrpc-serve": f'#!/bin/bash\nexec {sys.executable} -m rrpc.cli.serve "$@"\n',
        "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = child_environment(
        PATH=f"{tools}:{os.environ['PATH']}",
        SLURM_SUBMIT_DIR=str(tmp_path),
        SLURM_JOB_ID="4711",
    )
    done = subprocess.run(
        ["timeout", "90", "bash", str(DEPLOY / "blobs.sbatch")],
        cwd=SERVICE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +[\d,]+  job-4711-0$", done.stdout, re.MULTILINE), done.stdout
    assert (tmp_path / "blobs-4711" / "data" / "job-4711-0").read_text() == (
        DEPLOY / "blobs.sbatch"
    ).read_text()
    assert not (tmp_path / "blobs-4711" / "ready").exists()


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    for path in DEPLOY.iterdir():
        assert f"(deploy/{path.name})" in page
