"""docs/batching.md and examples/digits: their code runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, ServeFactory, child_environment, patience, run, run_command

PAGE = (ROOT / "docs" / "batching.md").read_text()
DIGITS = ROOT / "examples" / "digits"
FILES: dict[str, str] = {
    block.split("\n", 1)[0].removeprefix("# "): block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}


def test_the_code_of_the_page_runs(serve: ServeFactory, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    run_command("gen", "words:Words", "-o", "words_client.py", cwd=tmp_path)
    served = serve(FILES["words.py"], "Words", module="words", listen="rrpc")
    run("use_words.py", served.address, cwd=tmp_path)


def callers(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "callers.py", *arguments],
        capture_output=True,
        text=True,
        cwd=DIGITS,
        env=child_environment(OPENBLAS_NUM_THREADS="1"),
        timeout=patience(60),
        check=False,
    )


@pytest.mark.slow
def test_digits_are_read_in_batches(serve: ServeFactory) -> None:
    arguments = ["digits:Digits", "--listen", "tcp://127.0.0.1:0", "--arg", "neurons=128"]
    served = serve.start(arguments, 1, folder=DIGITS, env={"OPENBLAS_NUM_THREADS": "1"})
    done = callers("--server", served.address, "--calls", "3")
    assert done.returncode == 0, done.stderr
    alone, batched = (float(value) for value in re.findall(r"accuracy (\S+)", done.stdout))
    assert alone == batched > 0.8
    found = re.search(r"; (\S+) calls in a batch", done.stdout)
    assert found is not None
    assert float(found[1]) > 1.0


def test_without_a_server() -> None:
    done = callers("--server", "tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("callers: ")
    assert "Traceback" not in done.stderr
