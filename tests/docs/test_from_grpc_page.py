"""docs/from-grpc.md: its code runs, against a server of the service that it shows."""

import re
from pathlib import Path

from processes import ROOT, ServeFactory, run

PAGE = (ROOT / "docs" / "from-grpc.md").read_text()
ADDRESS = "rrpc://127.0.0.1:7471"


def test_the_page_s_code_runs(serve: ServeFactory, tmp_path: Path) -> None:
    service, program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert service.startswith("# greeter.py\n")
    server = serve(service, "Greeter", listen="rrpc", module="greeter")
    run("-m", "rrpc.cli.gen", "greeter:Greeter", "-o", "greeter_client.py", cwd=tmp_path)
    assert ADDRESS in program
    (tmp_path / "steps.py").write_text(program.replace(ADDRESS, server.address))
    run("steps.py", cwd=tmp_path)
    assert server.terminate() == 0
