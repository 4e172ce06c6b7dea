"""The user's guide: its Python code runs, in order, against a server started as it says."""

import re
from pathlib import Path

import pytest
from processes import ROOT, ServeFactory, run, run_command, run_serve

GUIDE = (ROOT / "docs" / "guide.md").read_text()
ADDRESS = "rrpc://127.0.0.1:7471"
MODELS = "shm://models"


def snippets() -> tuple[dict[str, str], list[str]]:
    """The files (blocks that begin with their name) and what is to be run."""
    files = dict(re.findall(r"```\n// (\w+\.rrpc)\n(.*?)```", GUIDE, re.DOTALL))
    steps = []
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        name = re.match(r"# (\w+\.py)\n", block)
        if name:
            files[name[1]] = block
        else:
            steps.append(block)
    return files, steps


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rrpc", "tcp"])
def test_the_guide_s_code_runs(serve: ServeFactory, tmp_path: Path, scheme: str) -> None:
    files, steps = snippets()
    assert list(files) == ["counter.rrpc", "tracks.py", "counter.py", "models.py"]
    for name in ("counter.rrpc", "counter.py"):
        (tmp_path / name).write_text(files[name])
    assert len(steps) >= 6
    server = serve(files["tracks.py"], "Tracks", listen=scheme, args=["--arg", "limit=50"], module="tracks")
    models = serve(files["models.py"], "Models", listen="shm", module="models")
    run_command("gen", "tracks:Tracks", "-o", "tracks_client.py", cwd=tmp_path)
    run_command("gen", "counter.rrpc", "-o", "counter_rpc.py", cwd=tmp_path)
    program = "\n".join(steps)
    assert ADDRESS in program
    assert MODELS in program
    program = program.replace(ADDRESS, server.address).replace(MODELS, models.address)
    (tmp_path / "steps.py").write_text(program)
    run("steps.py", cwd=tmp_path)
    assert server.terminate() == 0


def test_the_guide_shows_every_option_of_rrpc_serve() -> None:
    shown = run_serve("--help")
    options = set(re.findall(r"--[a-z-]+", shown.stdout)) - {"--help"}
    assert options <= set(re.findall(r"--[a-z-]+", GUIDE))
