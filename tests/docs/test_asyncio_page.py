"""docs/asyncio.md: its code runs."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, child_environment, patience, run, run_command

PAGE = (ROOT / "docs" / "asyncio.md").read_text()
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
INTERFACES: list[tuple[str, str]] = re.findall(r"```\n// (\w+\.rrpc)\n(.*?)```", PAGE, re.DOTALL)

TICK = """
import asyncio

import rrpc.aio
from ticker import Ticker
from ticker_rpc import AsyncTickerClient


async def main() -> None:
    async with rrpc.aio.serve(Ticker(), listen="tcp://127.0.0.1:0") as server:
        async with AsyncTickerClient(server.addresses[0], timeout=20.0) as ticker:
            assert await ticker.mean([1.0, 2.0]) == 1.5
            before = await ticker.now()
            async with ticker.ticks(0.001) as ticks:
                assert await anext(ticks) >= before
                assert await anext(ticks) >= before


asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in BLOCKS:
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(block)
    for file, text in INTERFACES:
        (tmp_path / file).write_text(text)
    run_command("gen", "words:Words", "-o", "words_client.py", cwd=tmp_path)
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


def test_the_class_of_a_file_answers(folder: Path) -> None:
    run_command("gen", "ticker.rrpc", "-o", "ticker_rpc.py", cwd=folder)
    (folder / "tick.py").write_text(TICK)
    run("tick.py", cwd=folder)
