"""What the commands print for a shell to complete them by, and what bash makes of that."""

import shutil
import subprocess
from pathlib import Path

import pytest
from processes import run_command, run_python

COMPLETE = """
source ./completion.sh
eval "$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/function=\\1/')"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(folder: Path, name: str, *words: str) -> list[str]:
    """The candidates that bash has for the last word."""
    (folder / "completion.sh").write_text(run_command(name, "--print-completion", "bash").stdout)
    bash = shutil.which("bash")
    assert bash
    line = [f"rrpc-{name}", *words]
    done = subprocess.run(
        [bash, "-c", COMPLETE, "bash", *line],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("name", "word", "found"),
    [
        ("call", "--show", ["--show-metadata"]),
        ("gen", "--in", ["--include"]),
        ("info", "--time", ["--timeout"]),
        ("serve", "--rate", ["--rate-limit", "--rate-burst"]),
    ],
    ids=["call", "gen", "info", "serve"],
)
def test_bash_completes_options(name: str, word: str, found: list[str], tmp_path: Path) -> None:
    assert sorted(completed(tmp_path, name, word)) == sorted(found)


@pytest.mark.parametrize(
    ("name", "words"),
    [("gen", ["tra"]), ("gen", ["-o", "tra"]), ("serve", ["--config", "tra"]), ("call", ["--trace", "tra"])],
    ids=["gen_input", "gen_output", "serve_config", "call_trace"],
)
def test_bash_completes_files(name: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "tracks.rrpc").touch()
    assert completed(tmp_path, name, *words) == ["tracks.rrpc"]


def test_bash_completes_choices(tmp_path: Path) -> None:
    assert completed(tmp_path, "gen", "--only", "cl") == ["client"]
    assert completed(tmp_path, "serve", "--log-format", "j") == ["json"]
    assert completed(tmp_path, "info", "--print-completion", "z") == ["zsh"]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_scripts(shell: str) -> None:
    assert "rrpc-call" in run_command("call", "--print-completion", shell).stdout


def test_without_shtab_it_says_how_to_get_it() -> None:
    code = "import sys; sys.modules['shtab'] = None; from rrpc.cli.info import main; main(sys.argv[1:])"
    done = run_python(code, "--print-completion", "bash", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--print-completion needs shtab: pip install 'rrpc-rdma[completion]'" in done.stderr


def test_an_unknown_shell_is_named() -> None:
    done = run_command("info", "--print-completion", "fish", check=False)
    assert done.returncode == 2
    assert "'fish'" in done.stderr
