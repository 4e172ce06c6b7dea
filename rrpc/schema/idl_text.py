"""Types and values as an .rrpc file writes them: for messages, without packages, and for files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from . import model
from .closure import inner_types


def bare(name: str) -> str:
    """A full name without its package."""
    return name.rpartition(".")[2]


def type_text(kind: model.Type) -> str:
    """The type in the language's words, for messages."""
    return composed(kind, _leaf)


def composed(kind: model.Type, leaf: Callable[[model.Type], str]) -> str:
    """The type in the language's words; ``leaf`` writes scalars, names, literals and what is opaque."""
    text = partial(composed, leaf=leaf)
    match kind:
        case model.Array(item, dims, borrowed):
            shape = "" if dims is None else f"[{', '.join('_' if d is None else str(d) for d in dims)}]"
            return f"borrowed<array<{item}>{shape}>" if borrowed else f"array<{item}>{shape}"
        case model.List() | model.Set() | model.Map() | model.Tuple():
            word = "frozen" * (isinstance(kind, model.Set) and kind.frozen) + type(kind).__name__.lower()
            dots = ["..."] * (isinstance(kind, model.Tuple) and kind.variadic)
            return f"{word}<{', '.join([*map(text, inner_types(kind)), *dots])}>"
        case model.Optional(item):
            return f"({text(item)})?" if isinstance(item, (model.Union, model.Optional)) else f"{text(item)}?"
        case model.Union(items):
            return " | ".join(f"({text(i)})" if isinstance(i, model.Union) else text(i) for i in items)
    return leaf(kind)


def _leaf(kind: model.Type) -> str:
    match kind:
        case model.Literal(values):
            return f"literal<{', '.join(map(value_text, values))}>"
        case model.Named(name):
            return bare(name)
        case model.Scalar(text) | model.Opaque(text):
            return text
    raise AssertionError(kind)


def value_text(value: Any) -> str:
    """A default or a literal's choice, in short."""
    if value is None:
        return "none"
    if isinstance(value, model.Opaque):
        return value.text
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return f'b"{repr(value)[2:-1]}"'
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(value_text, value))}]"
    return f"{value!r:.60}"
