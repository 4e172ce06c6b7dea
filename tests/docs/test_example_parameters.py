"""The parameter server of examples/parameters, whose weights change while workers pull them."""

import re
import subprocess
import sys

import pytest
from processes import ROOT, ServeFactory, child_environment, patience

PARAMETERS = ROOT / "examples" / "parameters"


def train(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "train.py", *arguments],
        capture_output=True,
        text=True,
        cwd=PARAMETERS,
        env=child_environment(OPENBLAS_NUM_THREADS="1"),
        timeout=patience(60),
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("listen", ["rrpc", "tcp"])
def test_two_workers_train_one_network(serve: ServeFactory, listen: str) -> None:
    server = serve.start(
        ["parameters:Parameters", "--listen", f"{listen}://127.0.0.1:0"],
        1,
        folder=PARAMETERS,
        env={"RRPC_CHECK_ARRAYS": "1"},
    )
    done = train("--server", server.address, "--steps", "100")
    assert done.returncode == 0, done.stderr
    before, after = (float(value) for value in re.findall(r"accuracy (\S+)", done.stdout))
    assert before < 0.5
    assert after > 0.85
    assert "steps      200 by 2 workers" in done.stdout
    assert "changed    0 while they were read" in done.stdout


def test_without_a_server() -> None:
    done = train("--server", "tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("train: ")
    assert "Traceback" not in done.stderr
