"""Finds types whose values can't be told apart when they arrive."""

from __future__ import annotations

from itertools import combinations

from rrpc.schema import Array, Enum, List, Literal, Map, Named, Scalar, Set, Tuple, Type

from .spell import Lookup, alternatives_of, type_text
from .type_resolver import is_integer

_FAMILIES = {"f32": "float", "buffer": "bytes"}


class LookAlikes:
    """Compares types; what was compared once isn't compared again."""

    def __init__(self, lookup: Lookup, package: str) -> None:
        self._lookup = lookup
        self._package = package
        self._known: dict[tuple[str, str], bool] = {}

    def problem(self, items: tuple[Type, ...]) -> str | None:
        """Returns the problem with a union of ``items``, or None."""
        for first, second in combinations(items, 2):
            if self.alike(first, second):
                a, b = type_text(first, self._package), type_text(second, self._package)
                return f"{a} and {b} can't be told apart when they arrive: put one of them into a struct"
        return None

    def alike(self, first: Type, second: Type) -> bool:
        """Returns whether a value that arrives could be of either."""
        pair = (repr(first), repr(second))
        if pair not in self._known:
            self._known[pair] = False  # of a union that contains itself
            self._known[pair] = any(
                self._same_look(a, b)
                for a in alternatives_of(first, self._lookup)
                for b in alternatives_of(second, self._lookup)
            )
        return self._known[pair]

    def _same_look(self, first: Type, second: Type) -> bool:
        if Scalar("any") in (first, second):
            return True
        match first, second:
            case Literal(a), Literal(b):
                return any(type(x) is type(y) and x == y for x in a for y in b)
            case (Literal(values), other) | (other, Literal(values)):
                return self._family(other) in {_NAMES[type(value)] for value in values}
            case Array(), Array():
                return _same_arrays(first, second)
            case List(a), List(b):
                return self.alike(a, b)
            case Set(a, frozen), Set(b, other_frozen):
                return frozen == other_frozen and self.alike(a, b)
            case Map(), Map():
                return self.alike(first.key, second.key) and self.alike(first.value, second.value)
            case Tuple(), Tuple():
                return self._same_tuples(first, second)
        return self._family(first) == self._family(second)

    def _family(self, kind: Type) -> str:
        """Returns a name for the form that values of the type have on the wire."""
        if isinstance(kind, Scalar):
            return "int" if is_integer(kind) else _FAMILIES.get(kind.name, kind.name)
        if isinstance(kind, Named):
            known = self._lookup(kind.name)
            if isinstance(known, Enum) and known.members:
                return _NAMES[type(known.members[0].value)]
            return f"struct {kind.name.rpartition('.')[2]}"
        return type(kind).__name__

    def _same_tuples(self, first: Tuple, second: Tuple) -> bool:
        length = max(len(first.items), len(second.items))
        if not (first.variadic or second.variadic) and len(first.items) != len(second.items):
            return False
        pairs = zip(_stretched(first, length), _stretched(second, length), strict=True)
        return all(self.alike(a, b) for a, b in pairs)


_NAMES = {bool: "bool", int: "int", str: "string", bytes: "bytes"}


def _stretched(kind: Tuple, length: int) -> tuple[Type, ...]:
    return kind.items * length if kind.variadic else kind.items


def _same_arrays(first: Array, second: Array) -> bool:
    if "any" not in (first.item, second.item) and first.item != second.item:
        return False
    if first.dims is None or second.dims is None:
        return True
    if len(first.dims) != len(second.dims):
        return False
    sizes = zip(first.dims, second.dims, strict=True)
    return not any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
