"""The house rules that a machine can check: no file and no Python function grows too long.

usage: check_house.py [ROOT]; one line per violation, exit code 1 when there is one.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60
FOLDERS = ("cpp", "rrpc", "tests", "examples", "bench", "tools", "idl")
SUFFIXES = {".h", ".cc", ".py", ".pyi", ".sh"}
FILES_MAX = {"ARCHITECTURE.md": 200}


def sources(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def long_functions(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


def violations(root: Path) -> Iterator[str]:
    for path in sources(root):
        lines = len(path.read_text().splitlines())
        if lines > FILE_LINES_MAX:
            yield f"{path.relative_to(root)}:1: {lines} lines, more than {FILE_LINES_MAX}"
        if path.suffix == ".py":
            for line, problem in long_functions(path):
                yield f"{path.relative_to(root)}:{line}: {problem}"
    for name, lines_max in FILES_MAX.items():
        path = root / name
        if path.is_file() and (lines := len(path.read_text().splitlines())) > lines_max:
            yield f"{name}:1: {lines} lines, more than {lines_max}"


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = list(violations(root))
    print("\n".join(found) if found else "check_house: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
