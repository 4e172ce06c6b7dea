"""mypy reads the package, with Ray's own types."""

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def test_the_package_is_typed(tmp_path: Path) -> None:
    options = ["--config-file", str(PACKAGE / "pyproject.toml"), "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(PACKAGE / "ray_rrpc")],
        env={**os.environ, "MYPYPATH": str(PACKAGE.parents[1])},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
