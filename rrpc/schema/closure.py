"""Finds the declarations that types and methods name, directly and through other declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from . import model


def inner_types(kind: model.Type) -> tuple[model.Type, ...]:
    """The types that a type is made of."""
    match kind:
        case model.List(item) | model.Set(item) | model.Optional(item):
            return (item,)
        case model.Map(key, value):
            return key, value
        case model.Tuple(items) | model.Union(items):
            return items
        case model.Scalar() | model.Array() | model.Literal() | model.Named() | model.Opaque():
            return ()


def item_types(kind: model.Type, count: int) -> tuple[model.Type, ...]:
    """Returns the types of the items of a list, set or tuple that has ``count`` of them; any for all other types."""
    if isinstance(kind, model.Tuple):
        return kind.items * count if kind.variadic else kind.items
    return (kind.item if isinstance(kind, (model.List, model.Set)) else model.Scalar("any"),) * count


def holds_borrowed(kind: model.Type) -> bool:
    """Returns whether a type has a borrowed array in it."""
    return (isinstance(kind, model.Array) and kind.borrowed) or any(map(holds_borrowed, inner_types(kind)))


def with_inner(kind: model.Type, change: Callable[[model.Type], model.Type]) -> model.Type:
    """Returns the type with ``change`` made to each of those that it is made of."""
    match kind:
        case model.List(item) | model.Set(item) | model.Optional(item):
            return replace(kind, item=change(item))
        case model.Map(key, value):
            return model.Map(change(key), change(value))
        case model.Tuple(items) | model.Union(items):
            return replace(kind, items=tuple(map(change, items)))
    return kind


def owned(kind: model.Type) -> model.Type:
    """Returns the same type without borrowed arrays."""
    if not holds_borrowed(kind):
        return kind
    return replace(kind, borrowed=False) if isinstance(kind, model.Array) else with_inner(kind, owned)


def types_in(declaration: model.Declaration) -> tuple[model.Type, ...]:
    """The types that a declaration is made of."""
    match declaration:
        case model.Struct(fields=fields) | model.Error(fields=fields):
            return tuple(field.type for field in fields)
        case model.OneOf(alternatives=alternatives):
            return alternatives
        case model.Const(type=kind):
            return (kind,)
        case model.Enum():
            return ()


def names_in(kind: model.Type) -> Iterator[str]:
    """The names that stand in a type."""
    if isinstance(kind, model.Named):
        yield kind.name
    for inner in inner_types(kind):
        yield from names_in(inner)


def closure(
    methods: Iterable[model.Method], lookup: Callable[[str], model.Declaration]
) -> dict[str, model.Declaration]:
    """All that methods name, their errors too, by full name; what a declaration needs stands before it."""
    found: dict[str, model.Declaration] = {}
    for method in methods:
        types = (*(parameter.type for parameter in method.parameters), method.result)
        for name in (*(name for kind in types for name in names_in(kind)), *method.errors):
            _visit(name, lookup, found)
    return found


def _visit(
    name: str, lookup: Callable[[str], model.Declaration], found: dict[str, model.Declaration]
) -> None:
    """Adds a declaration behind what it needs. Not by recursion: a chain of them may be long."""
    opened = set(found)
    waiting = [(name, False)]
    while waiting:
        name, done = waiting.pop()
        if done:
            found[name] = lookup(name)
        elif name not in opened:
            # Marked before what it needs, which may lead back to it.
            opened.add(name)
            inner = [n for kind in types_in(lookup(name)) for n in names_in(kind)]
            # Reversed, as the stack gives back the last one first.
            waiting += (name, True), *((n, False) for n in reversed(inner))
