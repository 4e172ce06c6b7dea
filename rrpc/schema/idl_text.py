"""Types and values as an .rrpc file writes them, for messages: without packages."""

from __future__ import annotations

import json
from typing import Any

from .model import Array, List, Literal, Map, Named, Opaque, Optional, Scalar, Set, Tuple, Type, Union


def bare(name: str) -> str:
    """A full name without its package."""
    return name.rpartition(".")[2]


def type_text(kind: Type) -> str:
    """The type in the language's words."""
    match kind:
        case Scalar(name):
            return name
        case Array(item, dims, borrowed):
            shape = "" if dims is None else f"[{', '.join('_' if d is None else str(d) for d in dims)}]"
            return f"borrowed<array<{item}>{shape}>" if borrowed else f"array<{item}>{shape}"
        case List(item):
            return f"list<{type_text(item)}>"
        case Set(item, frozen):
            return f"{'frozenset' if frozen else 'set'}<{type_text(item)}>"
        case Map(key, value):
            return f"map<{type_text(key)}, {type_text(value)}>"
        case Tuple(items, variadic):
            return f"tuple<{', '.join(map(type_text, items))}{', ...' if variadic else ''}>"
        case Optional(item):
            return f"({type_text(item)})?" if isinstance(item, Union) else f"{type_text(item)}?"
        case Union(items):
            return " | ".join(map(type_text, items))
        case Literal(values):
            return f"literal<{', '.join(map(value_text, values))}>"
        case Named(name):
            return bare(name)
        case Opaque(text):
            return text


def value_text(value: Any) -> str:
    """A default or a literal's choice, in short."""
    if value is None:
        return "none"
    if isinstance(value, Opaque):
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
