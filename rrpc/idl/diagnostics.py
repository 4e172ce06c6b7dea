"""Collects the problems in a file and formats them with their places."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

DIAGNOSTICS_MAX = 20
_WIDTH = 100


class At(NamedTuple):
    """A place in a file; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Diagnostic:
    """One thing that is wrong. ``text`` is the line it stands on."""

    file: str
    line: int
    column: int
    message: str
    text: str

    def __str__(self) -> str:
        number = str(self.line)
        shown, column = _window(self.text, self.column)
        return (
            f"{self.file}:{self.line}:{self.column}: {self.message}\n {number} | {shown}".rstrip()
            + f"\n {' ' * len(number)} | {' ' * (column - 1)}^"
        )


def _window(text: str, column: int) -> tuple[str, int]:
    """Returns the shown part of a line and the caret's column in it; replaces what would move the caret."""
    shown = "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in text)
    if len(shown) <= _WIDTH:
        return shown, column
    start = max(0, min(column - 1 - _WIDTH // 2, len(shown) - _WIDTH))
    head, tail = "..." * (start > 0), "..." * (start + _WIDTH < len(shown))
    return f"{head}{shown[start : start + _WIDTH]}{tail}", column - start + len(head)


class IdlError(ValueError):
    """A file, or what it imports, isn't as the language has it; ``diagnostics`` says where and why."""

    def __init__(self, diagnostics: Iterable[Diagnostic], left_out: int = 0) -> None:
        self.diagnostics = tuple(diagnostics)
        self.left_out = left_out
        super().__init__(self.diagnostics, left_out)

    def __str__(self) -> str:
        lines = [str(diagnostic) for diagnostic in self.diagnostics]
        if self.left_out:
            lines.append(f"and {self.left_out} more")
        return "\n".join(lines)


@dataclass(frozen=True)
class Source:
    """The text of a file and the name it goes by in diagnostics."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    def diagnostic(self, at: At, message: str) -> Diagnostic:
        """Returns the diagnostic for a place in the source, with its line of text."""
        line = self._lines[at.line - 1].rstrip("\r")
        return Diagnostic(self.name, at.line, at.column, message, line)


class Diagnostics:
    """Collects what is found, in all files that are read together."""

    def __init__(self) -> None:
        self._found: dict[Diagnostic, None] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, source: Source, at: At, message: str) -> None:
        """Adds a diagnostic, once."""
        self._found.setdefault(source.diagnostic(at, message))

    def raise_any(self) -> None:
        """IdlError if anything was found: file by file, in the order of their lines."""
        if self._found:
            files = {name: place for place, name in enumerate(dict.fromkeys(d.file for d in self._found))}
            found = sorted(self._found, key=lambda d: (files[d.file], d.line, d.column))
            raise IdlError(found[:DIAGNOSTICS_MAX], max(0, len(found) - DIAGNOSTICS_MAX))
