"""Parts of generated Python source: literals, docstrings, lists that take a line for each item."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

from rrpc._interface import AnnotationError

WIDTH = 88


def broken(start: str, items: Sequence[str], end: str, indent: str = "") -> list[str]:
    """Returns ``start items end`` on one line of at most ``WIDTH`` characters, otherwise with one item a line."""
    line = f"{start}{', '.join(items)}{end}"
    if len(line) <= WIDTH or not items:
        return [line]
    return [start, *(f"{indent}    {item}," for item in items), f"{indent}{end}"]


def tuple_text(items: Sequence[str]) -> str:
    """Returns the source of a tuple, on one line."""
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def camel(name: str) -> str:
    """Returns NearestRows for nearest_rows."""
    return "".join(part[:1].upper() + part[1:] for part in name.replace(".", "_").split("_"))


def literal_text(value: Any) -> str:
    """Returns the source of a value of a built-in type, with strings in double quotes."""
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is bytes:
        return f"b{quoted(value.decode('latin-1'), repr(value)[1:])}"
    if kind is float:
        return repr(value) if value - value == 0 else f'float("{value}")'
    if kind is complex:
        return f"complex({literal_text(value.real)}, {literal_text(value.imag)})"
    if value is None or kind in (bool, int):
        return repr(value)
    raise AnnotationError(f"the default {value!r:.60} has no literal")


def quoted(text: str, written: str = "") -> str:
    """Returns a string's literal in double quotes. ``written`` is the ``repr`` that it is made of."""
    written = written or repr(text)
    body = written[1:-1]
    if written[0] == "'":
        body = body.replace("\\'", "'").replace('"', '\\"')
    return f'"{body}"'


def docstring(text: str | None, indent: str) -> list[str]:
    """Returns the lines of a docstring and an empty one; no lines if there is no text."""
    if not text or not text.strip():
        return []
    lines = cleandoc(text).replace("\\", "\\\\").replace('"""', '\\"\\"\\"').splitlines()
    if len(lines) == 1:
        last = lines[0] + " " * lines[0].endswith('"')
        return [f'{indent}"""{last}"""', ""]
    body = [f'{indent}"""{lines[0]}', *(f"{indent}{line}".rstrip() for line in lines[1:])]
    return [*body, f'{indent}"""', ""]
