"""docs/channels.md: its code runs, with two servers of its service."""

import re
from pathlib import Path

from processes import ROOT, ServeFactory, run, run_command

PAGE = (ROOT / "docs" / "channels.md").read_text()
ADDRESSES = ("rrpc://127.0.0.1:7471", "rrpc://127.0.0.1:7472")


def test_the_page_s_code_runs(serve: ServeFactory, tmp_path: Path) -> None:
    service, *steps = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert service.startswith("# stock.py\n")
    program = "\n".join(steps)
    servers = [serve(service, "Stock", listen="rrpc", module="stock") for _ in ADDRESSES]
    run_command("gen", "stock:Stock", "-o", "stock_client.py", cwd=tmp_path)
    for address, server in zip(ADDRESSES, servers, strict=True):
        assert address in program
        program = program.replace(address, server.address)
    (tmp_path / "steps.py").write_text(program)
    run("steps.py", cwd=tmp_path)
    for server in servers:
        assert server.terminate() == 0
