"""docs/frameworks.md: its code runs."""

import re
from pathlib import Path

import pytest
from lab import address_to_listen_on
from processes import ROOT, ServeFactory, run

PAGE = (ROOT / "docs" / "frameworks.md").read_text()
FILES = {
    block.split("\n", 1)[0].removeprefix("# "): block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}


@pytest.mark.parametrize(("module", "service"), [("scores", "Scores"), ("sales", "Sales")])
def test_the_code_of_the_page_runs(module: str, service: str, tmp_path: Path) -> None:
    for name in (f"{module}.py", f"use_{module}.py"):
        (tmp_path / name).write_text(FILES[name])
    run("-m", "rrpc.cli.gen", f"{module}:{service}", "-o", f"{module}_client.py", cwd=tmp_path)
    address = address_to_listen_on("tcp")
    factory = ServeFactory(tmp_path, address_to_listen_on, fork=False)
    try:
        factory.start([f"{module}:{service}", "--listen", address], 1)
        run(f"use_{module}.py", address, cwd=tmp_path)
    finally:
        factory.close()
