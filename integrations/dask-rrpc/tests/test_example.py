"""examples/dask runs as its page says."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "dask"


def test_the_jobs_give_right_results() -> None:
    done = subprocess.run(
        [sys.executable, "jobs.py", "--rounds", "1"], cwd=EXAMPLE, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split()[0] for line in done.stdout.splitlines()]
    assert shown == ["nearest", "shuffle", "results"]
