"""README.md: its first example runs as it stands, but for the address."""

import re
import shlex
from pathlib import Path

from processes import ROOT, ServeFactory, run

PAGE = (ROOT / "README.md").read_text()
ADDRESS = "rrpc://127.0.0.1:7471"


def test_the_first_example_runs(serve: ServeFactory, tmp_path: Path) -> None:
    service, program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]
    commands = re.search(r"```\n(python -c .*?)```", PAGE, re.DOTALL)
    assert commands is not None
    make_data, generate, start = map(shlex.split, commands[1].splitlines())
    assert service.startswith("# nearest.py\n")
    (tmp_path / "nearest.py").write_text(service)
    run(*make_data[1:], cwd=tmp_path)
    assert generate[0] == "rrpc-gen"
    run("-m", "rrpc.cli.gen", *generate[1:], cwd=tmp_path)
    assert start[:2] == ["rrpc-serve", "nearest:Nearest"]
    assert start[-2:] == ["--listen", ADDRESS]
    server = serve(service, "Nearest", args=start[2:-2], listen="rrpc", module="nearest")
    assert ADDRESS in program
    (tmp_path / "steps.py").write_text(program.replace(ADDRESS, server.address))
    shown = run("steps.py", cwd=tmp_path).stdout
    first = [line.strip(" []").split()[0] for line in shown.splitlines()]
    assert first == ["0", "1", "2"], shown
    assert server.terminate() == 0
