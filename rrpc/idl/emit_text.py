"""Python source as ``ruff format`` leaves it, at whatever width it is run: literals, docstrings, long lines."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc
from typing import Any
from unicodedata import east_asian_width

from rrpc._interface import AnnotationError

WIDTH = 88


def broken(start: str, items: Sequence[str], end: str, indent: str = "") -> list[str]:
    """``start items end`` on one line if it fits, else one item a line."""
    line = f"{start}{', '.join(items)}{end}"
    if width(line) <= WIDTH or not items:
        return [line]
    return [start, *(f"{indent}    {item}," for item in items), f"{indent}{end}"]


def width(text: str) -> int:
    """In columns: some characters take two."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def camel(name: str) -> str:
    """NearestRows of nearest_rows."""
    return "".join(part[:1].upper() + part[1:] for part in name.replace(".", "_").split("_"))


def literal_text(value: Any) -> str:
    """A value of a built-in type as source, with double quotes where they'd be usual."""
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is bytes:
        return f"b{quoted(value.decode('latin-1'), repr(value)[1:])}"
    if kind is float:
        return repr(value).replace("e+", "e") if value - value == 0 else f'float("{value}")'
    if kind is complex:
        return f"complex({literal_text(value.real)}, {literal_text(value.imag)})"
    if value is None or kind in (bool, int):
        return repr(value)
    raise AnnotationError(f"the default {value!r:.60} has no literal")


def quoted(text: str, written: str = "") -> str:
    """A string's literal, of the quotes that need fewer escapes; ``written`` is what repr gives."""
    written = written or repr(text)
    body = written[1:-1]
    if text.count('"') > text.count("'"):
        return written
    if written[0] == "'":
        body = body.replace("\\'", "'").replace('"', '\\"')
    return f'"{body}"'


def docstring(text: str | None, indent: str) -> list[str]:
    """The lines of a docstring and an empty one; none for no text."""
    if not text or not text.strip():
        return []
    lines = cleandoc(text).replace("\\", "\\\\").replace('"""', '\\"\\"\\"').splitlines()
    lines[0] = " " * lines[0].startswith('"') + lines[0]
    if len(lines) == 1:
        last = lines[0] + " " * lines[0].endswith('"')
        return [f'{indent}"""{last}"""', ""]
    body = [f'{indent}"""{lines[0]}', *(f"{indent}{line}".rstrip() for line in lines[1:])]
    return [*body, f'{indent}"""', ""]
