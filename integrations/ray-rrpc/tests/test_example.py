"""The example, run as a user runs it."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray-digits"


def test_it_trains_and_serves_on_two_nodes() -> None:
    done = subprocess.run(
        [sys.executable, "cluster.py", "--trainers", "2", "--calls", "200"],
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "rrpc+ray://Classifier" in lines["serving"]
    right = float(lines["classified"].partition("% right")[0].split()[-1])
    assert right > 85
    assert lines["classified"].count(" by ") >= 3, (
        "by the one that was killed, the one that wasn't, and a new one"
    )
