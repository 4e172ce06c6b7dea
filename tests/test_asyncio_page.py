"""docs/asyncio.md: its code runs."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, child_environment, patience, run

PAGE = (ROOT / "docs" / "asyncio.md").read_text()
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in BLOCKS:
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(block)
    run("-m", "rrpc.cli.gen", "words:Words", "-o", "words_client.py", cwd=tmp_path)
    return tmp_path


def test_the_page_s_code_runs(folder: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "serve_words.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    steps = [block for block in BLOCKS if not block.startswith("#")]
    assert len(steps) == 1
    assert "rrpc://127.0.0.1:7471" in steps[0]
    (folder / "steps.py").write_text(steps[0].replace("rrpc://127.0.0.1:7471", address))
    run("steps.py", cwd=folder)
    server.send_signal(signal.SIGTERM)
    assert server.wait(patience(30)) == 0
