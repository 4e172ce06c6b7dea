"""Rules that can be looked at once every name means something."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from rrpc.schema import Array, List, Map, Method, Named, OneOf, Scalar, Set, Struct, Tuple, Type
from rrpc.schema.closure import inner_types

from .spell import Lookup, alternatives_of
from .types import is_integer

__all__ = ["contains_itself", "endless", "named_dims", "size_problem", "unhashable"]


def unhashable(kind: Type, lookup: Lookup) -> Type | None:
    """The part of a type because of which it can't be a map's key or in a set."""
    for choice in alternatives_of(kind, lookup):
        match choice:
            case List() | Map() | Array() | Scalar("buffer") | Set(frozen=False):
                return choice
            case Named(name) if isinstance(lookup(name), Struct):
                return choice
            case Tuple(items):
                found = next((inner for item in items if (inner := unhashable(item, lookup))), None)
                if found is not None:
                    return found
    return None


def endless(structs: Iterable[str], lookup: Lookup) -> Iterator[tuple[str, list[str]]]:
    """Structs that contain themselves in every value, each with the way back to itself."""
    unended = set(structs)

    def ends(kind: Type) -> bool:
        choices = alternatives_of(kind, lookup)
        return any(_all_end(choice) for choice in choices)

    def _all_end(choice: Type) -> bool:
        if isinstance(choice, Tuple) and not choice.variadic:
            return all(map(ends, choice.items))
        return not (isinstance(choice, Named) and choice.name in unended)

    while more := {name for name in unended if all(ends(kind) for kind in _fields(name, lookup))}:
        unended -= more
    ways = {
        name: {inner for kind in _fields(name, lookup) for inner in _needed(kind, lookup)} & unended
        for name in unended
    }
    for name in sorted(unended):
        if way := _way_back(name, ways):
            yield name, way


def _fields(name: str, lookup: Lookup) -> Iterator[Type]:
    known = lookup(name)
    for field in known.fields if isinstance(known, Struct) else ():
        yield field.type


def _needed(kind: Type, lookup: Lookup) -> Iterator[str]:
    """The structs that stand in a type itself, not in a container that may be empty."""
    for choice in alternatives_of(kind, lookup):
        if isinstance(choice, Named):
            yield choice.name
        elif isinstance(choice, Tuple) and not choice.variadic:
            for item in choice.items:
                yield from _needed(item, lookup)


def _way_back(name: str, ways: Mapping[str, set[str]]) -> list[str]:
    """The shortest way from a struct to itself; empty if there is none."""
    came_from: dict[str, str] = {}
    waiting = deque([name])
    while waiting:
        at = waiting.popleft()
        for inner in sorted(ways[at]):
            if inner == name:
                way = [name, at]
                while way[-1] != name:
                    way.append(came_from[way[-1]])
                return way[::-1] if at != name else [name, name]
            if inner not in came_from:
                came_from[inner] = at
                waiting.append(inner)
    return []


def contains_itself(union: OneOf, lookup: Lookup) -> bool:
    """Whether a named union leads back to itself without a struct between."""
    seen: set[str] = set()
    waiting = list(union.alternatives)
    while waiting:
        kind = waiting.pop()
        waiting += inner_types(kind)
        if isinstance(kind, Named) and kind.name not in seen:
            seen.add(kind.name)
            known = lookup(kind.name)
            waiting += known.alternatives if isinstance(known, OneOf) else ()
    return union.name in seen


def named_dims(kind: Type) -> Iterator[str]:
    """The names of dimensions in a type, structs left out."""
    if isinstance(kind, Array):
        yield from (dim for dim in kind.dims or () if isinstance(dim, str))
    for inner in inner_types(kind):
        yield from named_dims(inner)


def size_problem(method: Method) -> tuple[str, str] | None:
    """(parameter, what is wrong) where a parameter has a dimension's name and is no integer."""
    types = [*(parameter.type for parameter in method.parameters), method.result]
    dims = {dim for kind in types for dim in named_dims(kind)}
    for parameter in method.parameters:
        if parameter.name in dims and (parameter.stream or not is_integer(parameter.type)):
            name = parameter.name
            return name, f"{name!r} is a dimension too: a parameter of that name is its size, an integer"
    return None
