"""Rules that can be looked at once every name means something."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from rrpc.schema import Array, List, Map, Named, OneOf, Optional, Scalar, Set, Struct, Tuple, Type
from rrpc.schema.closure import inner_types, names_in

from .spell import Lookup, alternatives_of
from .type_resolver import is_integer

UNION_DEPTH_MAX = 16


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
    needs = {name: {n for kind in _fields(name, lookup) for n in _needed(kind, lookup)} for name in structs}
    needed_by: dict[str, list[str]] = {}
    for name, inner in needs.items():
        for other in inner:
            needed_by.setdefault(other, []).append(name)
    unended = set(needs)
    waiting = list(needs)
    while waiting:
        name = waiting.pop()
        if name in unended and all(_ends(kind, unended, lookup) for kind in _fields(name, lookup)):
            unended.remove(name)
            waiting += needed_by.get(name, ())
    ways = {name: needs[name] & unended for name in unended}
    for name in sorted(unended):
        if way := _way_back(name, ways):
            yield name, way


def _ends(kind: Type, unended: AbstractSet[str], lookup: Lookup) -> bool:
    """Returns whether a type has a value that isn't infinite, given the structs of which it isn't known."""
    for choice in alternatives_of(kind, lookup):
        if isinstance(choice, Tuple) and not choice.variadic:
            if all(_ends(item, unended, lookup) for item in choice.items):
                return True
        elif not (isinstance(choice, Named) and choice.name in unended):
            return True
    return False


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


def deep_unions(unions: Mapping[str, OneOf]) -> set[str]:
    """Named unions that stand in each other more than so many deep, or without an end."""
    needs = {
        name: {n for kind in union.alternatives for n in names_in(kind) if n in unions}
        for name, union in unions.items()
    }
    for _ in range(UNION_DEPTH_MAX):
        done = {name for name, inner in needs.items() if not inner & needs.keys()}
        needs = {name: inner for name, inner in needs.items() if name not in done}
    return set(needs)


def contains_itself(union: OneOf, lookup: Lookup) -> bool:
    """Returns whether a named union leads back to itself without a struct between."""
    seen: set[str] = set()
    waiting = [name for kind in union.alternatives for name in names_in(kind)]
    while waiting:
        name = waiting.pop()
        known = lookup(name)
        if name not in seen and isinstance(known, OneOf):
            waiting += [inner for kind in known.alternatives for inner in names_in(kind)]
        seen.add(name)
    return union.name in seen


def named_dims(kind: Type) -> Iterator[str]:
    """The names of dimensions in a type, structs left out."""
    if isinstance(kind, Array):
        yield from (dim for dim in kind.dims or () if isinstance(dim, str))
    for inner in inner_types(kind):
        yield from named_dims(inner)


def size_problems(named: Sequence[tuple[str, Type]], also: Iterable[Type] = ()) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) for each parameter or field that has a dimension's name and is no integer.

    ``also`` are types without a name: a result.
    """
    dims = {dim for kind in (*(kind for _, kind in named), *also) for dim in named_dims(kind)}
    for name, kind in named:
        if name in dims and not is_integer(kind.item if isinstance(kind, Optional) else kind):
            yield name, f"{name!r} is a dimension too: what has its name is its size, an integer"
