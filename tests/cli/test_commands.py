"""What all commands have: their version, and a quiet end when nobody reads on."""

import os
import re
import signal
import subprocess
import sys

import pytest
from processes import ROOT

COMMANDS = {
    "serve": ["--print-config"],
    "gen": ["idl/std/health.rrpc"],
    "call": ["--version"],
    "info": [],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_version(name: str) -> None:
    version = re.search(r'^version = "(.+?)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    done = subprocess.run(
        [sys.executable, "-m", f"rrpc.cli.{name}", "--version"], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"rrpc-{name} {version[1]}\n", "")


@pytest.mark.parametrize(("name", "arguments"), COMMANDS.items())
def test_a_reader_that_has_gone(name: str, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"rrpc.cli.{name}", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
