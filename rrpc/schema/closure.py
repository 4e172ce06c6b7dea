"""What types and methods name, directly and through what they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from .model import (
    Array,
    Const,
    Declaration,
    Enum,
    Error,
    List,
    Literal,
    Map,
    Method,
    Named,
    OneOf,
    Opaque,
    Optional,
    Scalar,
    Set,
    Struct,
    Tuple,
    Type,
    Union,
)

__all__ = ["closure", "inner_types", "types_in"]


def inner_types(kind: Type) -> tuple[Type, ...]:
    """The types that a type is made of."""
    match kind:
        case List(item) | Set(item) | Optional(item):
            return (item,)
        case Map(key, value):
            return key, value
        case Tuple(items) | Union(items):
            return items
        case Scalar() | Array() | Literal() | Named() | Opaque():
            return ()


def types_in(declaration: Declaration) -> tuple[Type, ...]:
    """The types that a declaration is made of."""
    match declaration:
        case Struct(fields=fields) | Error(fields=fields):
            return tuple(field.type for field in fields)
        case OneOf(alternatives=alternatives):
            return alternatives
        case Const(type=kind):
            return (kind,)
        case Enum():
            return ()


def _names(kind: Type) -> Iterator[str]:
    if isinstance(kind, Named):
        yield kind.name
    for inner in inner_types(kind):
        yield from _names(inner)


def closure(methods: Iterable[Method], lookup: Callable[[str], Declaration]) -> dict[str, Declaration]:
    """All that methods name, their errors too, by full name; what a declaration needs stands before it."""
    found: dict[str, Declaration] = {}
    open_names: set[str] = set()

    def visit(name: str) -> None:
        if name in open_names:
            return
        open_names.add(name)
        declaration = lookup(name)
        for kind in types_in(declaration):
            for inner in _names(kind):
                visit(inner)
        found[name] = declaration

    for method in methods:
        for kind in (*(parameter.type for parameter in method.parameters), method.result):
            for name in _names(kind):
                visit(name)
        for name in method.errors:
            visit(name)
    return found
