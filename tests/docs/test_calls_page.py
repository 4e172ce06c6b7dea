"""docs/calls.md: its code runs, in order, against a server of the service that it shows."""

import re
from pathlib import Path

import pytest
from processes import ROOT, ServeFactory, run, run_command

PAGE = (ROOT / "docs" / "calls.md").read_text()
ADDRESS = "rrpc://127.0.0.1:7471"


@pytest.mark.parametrize("scheme", ["rrpc", "tcp"])
def test_the_page_s_code_runs(serve: ServeFactory, tmp_path: Path, scheme: str) -> None:
    service, *steps = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(steps) == 5
    server = serve(service, "Rows", listen=scheme, module="rows")
    run_command("gen", "rows:Rows", "-o", "rows_client.py", cwd=tmp_path)
    program = "\n".join(steps)
    assert ADDRESS in program
    (tmp_path / "steps.py").write_text(program.replace(ADDRESS, server.address))
    run("steps.py", cwd=tmp_path)
    assert server.terminate() == 0
