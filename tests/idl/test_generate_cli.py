"""rrpc-gen's command line: .rrpc files in, packages and .rrpc files out, check and format."""

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rrpc._interface.decorators import interface_of
from rrpc.cli.gen import main
from rrpc.idl import load
from rrpc.schema import service_of

GOLDEN = Path(__file__).parent / "golden"
ONE = "package lab;\n\nservice One {\n  get(name: string) -> int;\n}\n"
SERVICE = '''
from dataclasses import dataclass

import rrpc


@dataclass
class Row:
    """One row."""

    id: rrpc.i64
    label: str | None = None


@rrpc.service(name="lab.Rows")
class Rows:
    @rrpc.method
    def put(self, row: Row, count: int = 1) -> None:
        """Store it."""


@rrpc.service
class Odd:
    @rrpc.method
    def put(self, data: bytearray) -> None: ...
'''

Err = Callable[[], str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with nearest.rrpc and what it imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("nearest.rrpc", "common.rrpc"):
        shutil.copy(GOLDEN / name, tmp_path)
    (tmp_path / "one.rrpc").write_text(ONE)
    return tmp_path


@pytest.fixture
def err(capsys: pytest.CaptureFixture[str]) -> Err:
    return lambda: capsys.readouterr().err


def test_check_tells_which_file_of_a_package_is_out_of_date(folder: Path, err: Err) -> None:
    arguments = ["nearest.rrpc", "one.rrpc", "-o", "made"]
    assert main([*arguments, "--check"]) == 1
    assert "made/nearest.py isn't there" in err()
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    common = folder / "made" / "common.py"
    text = common.read_text()
    common.write_text(text.replace("rrpc-gen ", "rrpc-gen 9.", 1))
    assert main([*arguments, "--check"]) == 0  # another version that wrote the same
    common.write_text(text.replace("nobody", "somebody"))
    assert main([*arguments, "--check"]) == 1
    assert err() == "rrpc-gen: made/common.py is out of date\n"


def test_what_somebody_wrote_is_left_alone(folder: Path, err: Err) -> None:
    made = folder / "made"
    made.mkdir()
    (made / "__init__.py").write_text("MINE = 1\n")
    assert main(["one.rrpc", "-o", "made"]) == 0
    assert (made / "__init__.py").read_text() == "MINE = 1\n"
    assert main(["one.rrpc", "-o", "made", "--check"]) == 0
    (made / "one.py").write_text("MINE = 1\n")
    assert main(["one.rrpc", "-o", "made"]) == 2
    assert err() == "rrpc-gen: made/one.py is there and no file of rrpc-gen's: choose another name\n"
    assert (made / "one.py").read_text() == "MINE = 1\n"


def test_one_file_has_all_that_was_asked_for_and_what_it_uses(folder: Path) -> None:
    assert main(["nearest.rrpc", "one.rrpc", "-o", "all.py"]) == 0
    text = (folder / "all.py").read_text()
    for name in ("Stamp", "Row", "NearestClient", "NearestBase", "OneClient", "OneBase"):
        assert f"\nclass {name}" in text
    assert "from nearest.rrpc one.rrpc: do not edit." in text


@pytest.mark.parametrize(
    ("side", "there", "missing"), [("client", "Client", "Base"), ("server", "Base", "Client")]
)
def test_only_one_side(folder: Path, side: str, there: str, missing: str) -> None:
    assert main(["one.rrpc", "--only", side, "-o", "one.py"]) == 0
    text = (folder / "one.py").read_text()
    assert f"class One{there}" in text
    assert f"class AsyncOne{there}" in text
    assert f"One{missing}" not in text


def test_imports_are_found_in_included_folders(folder: Path, err: Err) -> None:
    (folder / "shared").mkdir()
    (folder / "common.rrpc").rename(folder / "shared" / "common.rrpc")
    assert main(["nearest.rrpc", "-o", "made"]) == 2
    assert "there is no file 'common.rrpc'" in err()
    assert main(["nearest.rrpc", "-I", "shared", "-o", "made"]) == 0


def test_what_is_wrong_in_a_file_is_shown_with_its_line(folder: Path, err: Err) -> None:
    (folder / "one.rrpc").write_text(ONE.replace("int;", "integer;"))
    assert main(["one.rrpc", "-o", "made"]) == 2
    shown = err()
    assert shown.startswith("one.rrpc:4:24: ")
    assert shown.splitlines()[1] == " 4 |   get(name: string) -> integer;"
    assert not (folder / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.rrpc"], "nowhere.rrpc: No such file or directory"),
        (
            ["one.rrpc", "again/one.rrpc", "-o", "made"],
            "two inputs would be written to one.py: one.rrpc and one.rrpc",
        ),
        (
            ["one.rrpc", "--idl"],
            "one.rrpc: --idl is for Python services and servers; see rrpc-gen format --help",
        ),
        (["served:Odd", "--idl"], "Odd.put(): parameter 'data': bytearray"),
        (["served:Rows", "served:Odd", "--idl"], "one file has one package"),
    ],
)
def test_bad_input_is_one_line(folder: Path, err: Err, arguments: list[str], message: str) -> None:
    (folder / "again").mkdir()
    (folder / "again" / "one.rrpc").write_text(ONE.replace("int", "float"))
    (folder / "served.py").write_text(SERVICE)
    assert main(arguments) == 2
    shown = err()
    assert shown.startswith(f"rrpc-gen: {message}")
    assert shown.count("\n") == 1


def test_python_services_become_a_file_that_says_the_same(folder: Path) -> None:
    (folder / "served.py").write_text(SERVICE)
    assert main(["served:Rows", "--idl", "-o", "rows.rrpc"]) == 0
    assert main(["served:Rows", "--idl", "-o", "rows.rrpc", "--check"]) == 0
    import served  # type: ignore[import-not-found]

    assert interface_of(served.Rows) is not None
    service = load("rows.rrpc").services["lab.Rows"]
    assert service == service_of(served.Rows)
    assert service.methods[0].doc == "Store it."


def test_check_compares_two_versions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = folder / "new.rrpc"
    new.write_text(ONE)
    assert main(["check", "one.rrpc", "new.rrpc"]) == 0
    assert capsys.readouterr().out == ""
    new.write_text(ONE.replace("}", "  add(row: int);\n}"))
    assert main(["check", "one.rrpc", "new.rrpc"]) == 0
    assert capsys.readouterr().out.startswith("new.rrpc:5:3: note: lab.One.add")
    new.write_text(ONE.replace("name: string", "name: int").replace("}", "  add(row: int);\n}"))
    assert main(["check", "one.rrpc", "new.rrpc"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("new.rrpc:4:7: breaking: lab.One.get")
    assert "note" in lines[1]


@pytest.fixture
def rows(folder: Path) -> Callable[[str, str], None]:
    """Writes module served, with one text in place of another, and the unchanged service as rows.rrpc."""

    def write(was: str, now: str) -> None:
        assert was in SERVICE
        (folder / "served.py").write_text(SERVICE.replace(was, now))
        sys.modules.pop("served", None)
        importlib.invalidate_caches()
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)

    write("count", "count")
    assert main(["served:Rows", "--idl", "-o", "rows.rrpc"]) == 0
    return write


@pytest.mark.parametrize(
    ("was", "now", "code", "told"),
    [
        ("count: int = 1", "count: int = 1", 0, ""),
        ("count: int = 1", "count: int = 1, force: bool = False", 0, "note: "),
        ("count: int = 1", "count: str", 1, "breaking: "),
        ("id: rrpc.i64", "id: rrpc.i32", 1, "breaking: "),
    ],
    ids=["same", "more", "other_argument", "other_field"],
)
def test_check_compares_a_file_with_a_python_service(
    rows: Callable[[str, str], None],
    was: str,
    now: str,
    code: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows(was, now)
    assert main(["check", "rows.rrpc", "served:Rows"]) == code
    out = capsys.readouterr().out
    assert bool(out) == bool(told)
    assert told in out
    assert main(["check", "served:Rows", "served:Rows"]) == 0


def test_check_takes_the_python_service_as_the_old_one(
    rows: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    rows("count: int = 1", "count: int = 1, force: bool = False")
    assert main(["check", "served:Rows", "rows.rrpc"]) == 1
    assert "breaking: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("was", "now", "given", "message"),
    [
        ("count", "count", "served:Missing", "module served has no Missing; it has Odd, Rows"),
        ("count", "count", "nowhere:Rows", "there is no module nowhere (looked in"),
        (
            "import rrpc",
            "import rrpc\n1 / 0",
            "served:Rows",
            "importing served: ZeroDivisionError: division by",
        ),
        ("lab.Rows", "lab.Lines", "served:Rows", "rows.rrpc has no service lab.Lines; it has lab.Rows"),
        (
            "import rrpc",
            "import rrpc, nowhere",
            "served:Rows",
            "importing served: ModuleNotFoundError: No module",
        ),
        ("count", "count", "served", "'served' isn't of the form module:Service"),
    ],
    ids=["no_service", "no_module", "raises", "other_service", "no_import", "no_form"],
)
def test_check_says_what_is_wrong_with_a_python_service(
    rows: Callable[[str, str], None], err: Err, was: str, now: str, given: str, message: str
) -> None:
    rows(was, now)
    assert main(["check", "rows.rrpc", given]) == 2
    shown = err()
    assert shown.startswith(f"rrpc-gen: {message}")
    assert shown.count("\n") == 1


def test_format_writes_the_usual_form(folder: Path, err: Err) -> None:
    file = folder / "one.rrpc"
    file.write_text(ONE.replace("\n  ", "  "))
    assert main(["format", "--check", "one.rrpc"]) == 1
    assert "one.rrpc is out of date" in err()
    assert main(["format", "one.rrpc"]) == 0
    assert file.read_text() == ONE
    assert main(["format", "--check", "one.rrpc"]) == 0


@pytest.mark.parametrize("comment", ["// a comment", "/* a comment */"])
def test_format_throws_no_comment_away(folder: Path, err: Err, comment: str) -> None:
    file = folder / "one.rrpc"
    text = ONE.replace("service", f'const URL: string = "http://x";\n\n{comment}\nservice')
    file.write_text(text)
    assert main(["format", "one.rrpc"]) == 2
    assert err().startswith("rrpc-gen: one.rrpc:5: this comment would be lost")
    assert file.read_text() == text
