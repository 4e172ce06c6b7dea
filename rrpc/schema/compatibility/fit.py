"""Whether what is sent as one type can be received as another."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from rrpc.schema import model
from rrpc.schema.closure import inner_types
from rrpc.schema.effort import Effort, check_levels
from rrpc.schema.idl_text import bare
from rrpc.types import INTEGER_BOUNDS

_NONE = model.Scalar("none")
# Each pair of types is judged wherever it stands, which a description can make exponential in its length.
_TYPES_MAX = 200_000
# Through the one-ofs that types name; each takes five frames of Python's stack at most.
_LEVELS_MAX = 100
# What a check takes besides its own kind (rrpc/_interface/scalars.py).
_TAKES = {
    "int": {"bool", *INTEGER_BOUNDS},
    "float": {"int", "f32", *INTEGER_BOUNDS},
    "complex": {"float", "int", "f32", *INTEGER_BOUNDS},
    "bytes": {"buffer"},
    "buffer": {"bytes"},
}
_KIND_OF = {bool: "bool", int: "int", str: "string", bytes: "bytes"}


class Fit(enum.IntEnum):
    """Part of the sent values that the receiver accepts.

    ``MOST`` is all except the members of a one-of that only the sender has.
    """

    NO = 0
    MOST = 1
    ALL = 2


class Receiver:
    """Judges types of one version, ``here``, against types of the other; each has its declarations.

    Two structs, enums or one-ofs of one bare name fit: whoever compares versions compares those once, not
    wherever they are named.
    """

    def __init__(self, here: Mapping[str, model.Declaration], there: Mapping[str, model.Declaration]) -> None:
        self._here = here
        self._there = there
        self._open: set[tuple[model.Type, model.Type]] = set()
        self._effort = Effort(_TYPES_MAX)

    def takes(self, own: model.Type, sent: model.Type) -> Fit:
        """Returns which part of the values of ``sent`` fits ``own``; TooIntricate if that takes too long to tell."""
        self._effort.spend(1)
        check_levels(len(self._open), _LEVELS_MAX)
        pair = own, sent
        if pair in self._open:
            return Fit.ALL  # of one-ofs that name themselves
        self._open.add(pair)
        try:
            return self._takes(own, sent)
        finally:
            self._open.remove(pair)

    def _takes(self, own: model.Type, sent: model.Type) -> Fit:
        if own == model.Scalar("any") or self._same_declaration(own, sent):
            return Fit.ALL
        ours, theirs = _alternatives(own, self._here), _alternatives(sent, self._there)
        # What it takes to hash them, here and in `takes`.
        self._effort.spend(sum(map(_size, ours)) + sum(map(_size, theirs)))
        if len(ours) == len(theirs) == 1:
            return self._takes_one(ours[0], theirs[0])
        # One-ofs of nothing but themselves have no alternatives.
        if not ours or not theirs:
            return _when(not theirs)
        fits = {i: max(self.takes(mine, each) for mine in ours) for i, each in enumerate(theirs)}
        worst = min(fits.values())
        if worst > Fit.NO:
            return worst
        # More members where there were several already; None is no member, it makes a value optional.
        several = all(sum(kind != _NONE for kind in kinds) > 1 for kinds in (ours, theirs))
        none_fits = _NONE not in theirs or fits[theirs.index(_NONE)] > Fit.NO
        return Fit.MOST if several and none_fits and max(fits.values()) > Fit.NO else Fit.NO

    def _same_declaration(self, own: model.Type, sent: model.Type) -> bool:
        if not (isinstance(own, model.Named) and isinstance(sent, model.Named)):
            return False
        kinds = type(self._here[own.name]), type(self._there[sent.name])
        return bare(own.name) == bare(sent.name) and kinds[0] is kinds[1]

    def _takes_one(self, own: model.Type, sent: model.Type) -> Fit:
        values, sent_values = _values(own, self._here), _values(sent, self._there)
        self._effort.spend(len(values or ()) + len(sent_values or ()))
        # An enum travels as its values, so a literal or a scalar may take it too.
        if sent_values is not None:
            return _takes_values(own, values, sent_values)
        match own, sent:
            case model.Scalar(name), model.Scalar(other):
                return _when(_scalar_takes(name, other))
            case model.Array(), model.Array():
                return _when(_array_takes(own, sent))
            case (model.List(item), model.List(other_item)):
                return self.takes(item, other_item)
            case model.Set(item, frozen), model.Set(other_item, other_frozen):
                return self.takes(item, other_item) if frozen == other_frozen else Fit.NO
            case model.Map(key, value), model.Map(other_key, other_value):
                return min(self.takes(key, other_key), self.takes(value, other_value))
            case model.Tuple(), model.Tuple():
                return self._tuple_takes(own, sent)
            case model.Opaque(), model.Opaque():
                return _when(own == sent)
        return Fit.NO  # structs of other names among them: they travel under their names

    def _tuple_takes(self, own: model.Tuple, sent: model.Tuple) -> Fit:
        if own.variadic:
            return min((self.takes(own.items[0], item) for item in sent.items), default=Fit.ALL)
        if sent.variadic or len(own.items) != len(sent.items):
            return Fit.NO
        return min(map(self.takes, own.items, sent.items), default=Fit.ALL)


def _when(fits: bool) -> Fit:
    return Fit.ALL if fits else Fit.NO


def _size(kind: model.Type) -> int:
    """Returns the number of types that a type is made of, itself included."""
    return 1 + sum(map(_size, inner_types(kind)))


def _alternatives(kind: model.Type, declared: Mapping[str, model.Declaration]) -> list[model.Type]:
    """Returns the types that a value may have; expands nested one-ofs and merges all literals into one."""
    found: dict[model.Type, None] = {}
    literals: list[Any] = []
    # Each one-of is expanded once: what it stands for is here then, whatever else names it. Not by recursion, as a
    # chain of them may be long.
    expanded: set[str] = set()
    waiting = [kind]
    while waiting:
        match waiting.pop():
            case model.Optional(item):
                found[_NONE] = None
                waiting.append(item)
            case model.Union(items):
                waiting += reversed(items)
            case model.Literal(values):
                literals += values
            case model.Named(name) if isinstance(one_of := declared[name], model.OneOf):
                if name not in expanded:
                    expanded.add(name)
                    waiting += reversed(one_of.alternatives)
            case other:
                found[other] = None
    return [*found, model.Literal(tuple(literals))] if literals else [*found]


def _values(kind: model.Type, declared: Mapping[str, model.Declaration]) -> list[Any] | None:
    """All values of a literal or an enum, which is all of it that travels."""
    if isinstance(kind, model.Literal):
        return list(kind.values)
    if isinstance(kind, model.Named) and isinstance(found := declared[kind.name], model.Enum):
        return [member.value for member in found.members]
    if isinstance(kind, model.Named) and not isinstance(found, model.Struct):
        raise ValueError(f"{kind.name} is no type")
    return None


def _takes_values(own: model.Type, values: list[Any] | None, sent: list[Any]) -> Fit:
    if values is None:
        return _when(
            isinstance(own, model.Scalar) and all(_scalar_takes_value(own.name, each) for each in sent)
        )
    # With the types, as 1 and True are equal and travel differently.
    known = {(type(value), value) for value in values}
    fitting = sum((type(each), each) in known for each in sent)
    return Fit.ALL if fitting == len(sent) else Fit.MOST if fitting else Fit.NO


def _scalar_takes_value(name: str, value: Any) -> bool:
    if name in INTEGER_BOUNDS and type(value) is int:
        low, high = INTEGER_BOUNDS[name]
        return low <= value <= high
    return _scalar_takes(name, _KIND_OF[type(value)])


def _scalar_takes(name: str, other: str) -> bool:
    name, other = ("float" if each == "f64" else each for each in (name, other))
    if name in INTEGER_BOUNDS and other in INTEGER_BOUNDS:
        (low, high), (other_low, other_high) = INTEGER_BOUNDS[name], INTEGER_BOUNDS[other]
        return low <= other_low and other_high <= high
    return name in (other, "any") or other in _TAKES.get(name, ())


def _array_takes(own: model.Array, sent: model.Array) -> bool:
    if own.item not in ("any", sent.item):
        return False
    if own.dims is None or sent.dims is None:
        return own.dims is None
    same_rank = len(own.dims) == len(sent.dims)
    return same_rank and all(dim in (None, other) for dim, other in zip(own.dims, sent.dims, strict=True))
