"""Types and values as they are written in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rrpc.schema import model
from rrpc.schema.closure import item_types
from rrpc.schema.idl_text import bare, composed

from .literals import quoted, quoted_bytes

_ANY = model.Scalar("any")
Lookup = Callable[[str], model.Declaration | None]


class Inexpressible(Exception):
    """The language has no words for this."""


def type_text(kind: model.Type, package: str = "") -> str:
    """The type; names of ``package`` without it."""

    def leaf(kind: model.Type) -> str:
        match kind:
            case model.Scalar(name):
                return "float" if name == "f64" else name
            case model.Named(name):
                return bare(name) if name.rpartition(".")[0] == package else name
            case model.Literal(values):
                return f"literal<{', '.join(map(idl_literal, values))}>"
            case model.Opaque(name):
                raise Inexpressible(f"{name} has no word in the language{_WAYS.get(name, '')}")
        raise AssertionError(kind)

    return composed(kind, leaf)


_WAYS = {
    "pyarrow.Table": ": give clients the Python service, rrpc-gen module:Service, or declare memoryview and send "
    "an Arrow stream in it (pyarrow.ipc.new_stream)"
}


def idl_literal(value: Any) -> str:
    """A value that needs no type to be understood."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case complex():
            if value.imag or repr(value.imag).startswith("-"):
                raise Inexpressible(f"{value} has no literal: its imaginary part isn't 0")
            return repr(value.real)
        case str():
            try:
                return quoted(value)
            except UnicodeEncodeError:
                raise Inexpressible(f"the text {value!r:.60} is no valid Unicode") from None
        case bytes():
            return quoted_bytes(value)
        case model.Opaque(text):
            raise Inexpressible(f"{text} has no literal in the language")
    raise Inexpressible(f"{value!r:.60} has no literal in the language")


def alternatives_of(kind: model.Type, lookup: Lookup) -> tuple[model.Type, ...]:
    """The types a value may be of: those of a union, however it is written; the type itself else."""
    seen: set[str] = set()
    found: list[model.Type] = []
    waiting = [kind]
    while waiting:
        match waiting.pop():
            case model.Optional(item):
                waiting += model.Scalar("none"), item
            case model.Union(items):
                waiting += reversed(items)
            case model.Named(name) if isinstance(known := lookup(name), model.OneOf):
                waiting += () if name in seen else reversed(known.alternatives)
                seen.add(name)
            case other:
                found.append(other)
    return tuple(found)


def list_among(choices: Iterable[model.Type]) -> model.Type:
    """Returns the first type whose values are lists in a file; any if there is none."""
    lists = (model.List, model.Set, model.Tuple)
    return next((kind for kind in choices if isinstance(kind, lists)), _ANY)


def map_among(choices: Iterable[model.Type]) -> model.Map:
    """Returns the first map among types; a map of anything if there is none."""
    return next((kind for kind in choices if isinstance(kind, model.Map)), model.Map(_ANY, _ANY))


def value_text(value: Any, kind: model.Type, lookup: Lookup) -> str:
    """A default value of a type; members of enums by their names."""
    choices = alternatives_of(kind, lookup)
    if isinstance(value, str):
        enums = [lookup(choice.name) for choice in choices if isinstance(choice, model.Named)]
        members = {m.name for known in enums if isinstance(known, model.Enum) for m in known.members}
        takes_text = any(
            choice == model.Scalar("string") or isinstance(choice, model.Literal) for choice in choices
        )
        return value if value in members and not takes_text else idl_literal(value)
    if isinstance(value, tuple):
        kinds = item_types(list_among(choices), len(value))
        if len(kinds) != len(value):
            raise Inexpressible(f"{value!r:.60} has another length than its type")
        return f"[{', '.join(value_text(v, k, lookup) for v, k in zip(value, kinds, strict=True))}]"
    if isinstance(value, dict):
        of = map_among(choices)
        entries = [
            f"{value_text(k, of.key, lookup)}: {value_text(v, of.value, lookup)}" for k, v in value.items()
        ]
        return f"{{{', '.join(entries)}}}"
    return idl_literal(value)
