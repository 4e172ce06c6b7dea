"""rrpc-gen: a typed client from a Python service."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from rrpc.idl import emit_clients
from rrpc.service import AnnotationError

from .common import BadInput, Parser, debugging, find_service, problem

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    parser = Parser(prog="rrpc-gen", description="Write a typed client for a service.")
    parser.add_argument("services", nargs="+", metavar="module:Service", help="what to write a client of")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the file to write (default: stdout)"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if FILE isn't up to date"
    )
    options = parser.parse_args(arguments)
    if options.check and options.output is None:
        parser.error("--check needs -o FILE")
    try:
        text = _generate(options.services)
        if options.check:
            return _check(options.output, text)
        _write(options.output, text)
    except (BadInput, AnnotationError) as error:
        return problem("rrpc-gen", error)
    except Exception as error:
        if debugging():
            raise
        return problem("rrpc-gen", error)
    return 0


def _generate(targets: Sequence[str]) -> str:
    interfaces = [find_service(target)[1] for target in targets]
    return emit_clients(interfaces, " ".join(targets))


def _check(path: Path, text: str) -> int:
    try:
        there = path.read_text(encoding="utf-8")
    except OSError as error:
        print(f"rrpc-gen: {path}: {error.strerror}", file=sys.stderr)
        return 1
    if there == text:
        return 0
    changes = list(
        difflib.unified_diff(there.splitlines(), text.splitlines(), str(path), "generated", lineterm="")
    )
    print("\n".join(changes[:40]))
    print(f"rrpc-gen: {path} is out of date", file=sys.stderr)
    return 1


def _write(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
