"""The test harness itself: under CI a skip fails the run, with its reason."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from over_verbs import SUITES
from processes import HELPERS, ROOT, TESTS, Usage, eventually, run, run_python

SKIPPING = """
import pytest

@pytest.mark.skip(reason="no adapter here")
def test_a(): ...

def test_b(): ...
"""


@pytest.mark.slow
def test_what_is_to_run_over_verbs_is_there() -> None:
    """Every word of tests/helpers/over_verbs.py picks a test over each of its adapters."""
    collect = ["-m", "pytest", "--collect-only", "-q", *(f"tests/{module}.py" for module in SUITES)]
    done = run(*collect, cwd=ROOT, timeout=120, RRPC_IN_VM="1", RRPC_TEST_TRANSPORTS="rxe,siw,rxe-socket")
    found = done.stdout.splitlines()
    for module, suites in SUITES.items():
        names = [line for line in found if line.startswith(f"tests/{module}.py::")]
        for suite in suites:
            for word, transport in itertools.product(suite.words, suite.transports):
                assert any(word in name and transport in name for name in names), (module, word, transport)


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_skip_fails_in_ci(tmp_path: Path, ci: str, status: int) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_skips.py").write_text(SKIPPING)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(HELPERS)},
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert ("FAILED test_skips.py::test_a" in done.stdout) == bool(status)
    assert "no adapter here" in done.stdout or not status


def test_eventually_gives_up() -> None:
    assert eventually(lambda: 7) == 7
    with pytest.raises(AssertionError, match=r"not within 0.01 s: the moon"):
        eventually(lambda: False, 0.01, "the moon")


def test_usage_counts_a_descriptor() -> None:
    before = Usage.of(os.getpid())
    with (TESTS / "conftest.py").open():
        assert Usage.of(os.getpid()).fd_count == before.fd_count + 1
    assert before.rss_bytes > 0


def test_run_python_shows_what_failed() -> None:
    assert run_python("import sys; print(sys.argv[1])", "hello").stdout == "hello\n"
    with pytest.raises(AssertionError, match="exit code 3"):
        run_python("raise SystemExit(3)")
