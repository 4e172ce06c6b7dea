"""Default values and constants: what a file says to Python values of a type."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from rrpc._options import suggestion
from rrpc.schema import model
from rrpc.schema.closure import item_types
from rrpc.types import INTEGER_BOUNDS

from . import syntax
from .diagnostics import At
from .expected import shown
from .scope import Problem, Reported, Scope, article
from .spell import alternatives_of, list_among, map_among, type_text

_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False, "inf": math.inf, "nan": math.nan}
_HINTS = {
    ("bytes", str): '; bytes are written b"..."',
    ("string", bytes): '; strings are written "..."',
    ("int", float): "; write it without a point",
}


class Values:
    """Resolves values to those that the schema has."""

    def __init__(self, scope: Scope, constant: Callable[[str], model.Const | None]) -> None:
        self._scope = scope
        self._constant = constant

    def value(self, node: syntax.Value, kind: model.Type) -> Any:
        """The value; Problem says why it is none of the type."""
        node = self._without_constants(node, kind)
        match kind:
            case model.Optional(item):
                return None if _is_none(node) else self.value(node, item)
            case model.Union():
                return self._of_one(node, kind)
            case model.Named(name) if isinstance(self._scope.lookup(name), model.OneOf):
                return self._of_one(node, kind)
            case model.Named(name):
                return self._named(node, name)
            case model.Scalar(name):
                return self._scalar(node, kind, name)
            case model.Literal(values):
                value = _literal(node)
                if any(type(known) is type(value) and known == value for known in values):
                    return value
                raise self._mismatch(node, kind)
            case model.List() | model.Set() | model.Tuple():
                return self._items(node, kind)
            case model.Map(key, item):
                return self._entries(node, kind, key, item)
            case model.Array():
                raise Problem(node.at, f"an array has no default; write {type_text(kind)}? = none")
        raise AssertionError(f"no values of {kind}")

    def _mismatch(self, node: syntax.Value, kind: model.Type) -> Problem:
        text = type_text(kind, self._scope.package)
        value = node.value if isinstance(node, syntax.Literal) else None
        hint = f"; write {text}?" if _is_none(node) else _HINTS.get((text, type(value)), "")
        return Problem(node.at, f"expected {_expected(kind, text)}, found {_described(node)}{hint}")

    def _without_constants(self, node: syntax.Value, kind: model.Type) -> syntax.Value:
        """Replaces a constant's name by its value, unless the expected enum has a member of that name."""
        if not isinstance(node, syntax.Word) or node.text in _WORDS or self._is_member(node.text, kind):
            return node
        found = self._scope.find(node.text)
        if any(self._scope.kind_of(name) == "const" for name in found):
            constant = self._constant(self._scope.reference(node, ("const",), "const"))
            if constant is None:
                raise Reported(node.at)
            return _node(constant.value, constant.type, node.at, self._scope)
        choices = alternatives_of(kind, self._scope.lookup)
        if not found and self._enums(kind) and len(set(choices) - {model.Scalar("none")}) == 1:
            return node  # a member that isn't there
        raise self._unknown(node, kind)

    def _unknown(self, node: syntax.Word, kind: model.Type) -> Problem:
        if found := self._scope.find(node.text):
            return Problem(node.at, f"{node.text!r} is {article(self._scope.kind_of(found[0]))}, not a value")
        choices = alternatives_of(kind, self._scope.lookup)
        hint = self._scope.hint(node.text, ("const",))
        if model.Scalar("string") in choices or model.Scalar("any") in choices:
            hint = f'; a string is written "{node.text}"'
        return Problem(node.at, f"there is no constant called {node.text!r}{hint}")

    def _enums(self, kind: model.Type) -> list[model.Enum]:
        choices = alternatives_of(kind, self._scope.lookup)
        known = [self._scope.lookup(choice.name) for choice in choices if isinstance(choice, model.Named)]
        return [enum for enum in known if isinstance(enum, model.Enum)]

    def _is_member(self, word: str, kind: model.Type) -> bool:
        return any(_member_called(word, enum) for enum in self._enums(kind))

    def _named(self, node: syntax.Value, name: str) -> Any:
        known = self._scope.lookup(name)
        text = type_text(model.Named(name), self._scope.package)
        if isinstance(known, model.Enum):
            return self._member(node, known, text)
        raise Problem(node.at, f"a struct has no default; write {text}? = none")

    def _member(self, node: syntax.Value, enum: model.Enum, text: str) -> str:
        if isinstance(node, syntax.Word) and node.text not in _WORDS:
            if member := _member_called(node.text, enum):
                return member
            hint = suggestion(node.text.rpartition(".")[2], [member.name for member in enum.members])
            raise Problem(node.at, f"{text} has no member {node.text!r}{hint}")
        raise Problem(node.at, f"expected a member of {text}, found {_described(node)}")

    def _of_one(self, node: syntax.Value, kind: model.Type) -> Any:
        """Returns the value for the first alternative that accepts it; whole numbers prefer integer types."""
        choices = alternatives_of(kind, self._scope.lookup)
        whole = isinstance(node, syntax.Literal) and type(node.value) is int
        order = sorted(choices, key=lambda choice: choice in _INEXACT) if whole else choices
        if isinstance(node, syntax.Word) and self._is_member(node.text, kind):
            takes_text = any(c == model.Scalar("string") or isinstance(c, model.Literal) for c in choices)
            if takes_text:
                raise Problem(node.at, "a member of an enum can't be the default where a string may stand")
        for choice in order:
            try:
                return self.value(node, choice)
            except Problem:  # noqa: PERF203
                continue
        raise self._mismatch(node, kind)

    def _items(self, node: syntax.Value, kind: model.List | model.Set | model.Tuple) -> tuple[Any, ...]:
        if not isinstance(node, syntax.ListValue):
            raise self._mismatch(node, kind)
        kinds = item_types(kind, len(node.items))
        if len(kinds) != len(node.items):
            raise Problem(node.at, f"expected {len(kinds)} items, found {len(node.items)}")
        values = tuple(self.value(item, inner) for item, inner in zip(node.items, kinds, strict=True))
        if isinstance(kind, model.Set):
            _must_differ(values, node.items)
        return values

    def _entries(
        self, node: syntax.Value, kind: model.Type, key: model.Type, item: model.Type
    ) -> dict[Any, Any]:
        if not isinstance(node, syntax.MapValue):
            raise self._mismatch(node, kind)
        keys = [self.value(k, key) for k, _ in node.entries]
        _must_differ(keys, [k for k, _ in node.entries])
        return {k: self.value(v, item) for k, (_, v) in zip(keys, node.entries, strict=True)}

    def _scalar(self, node: syntax.Value, kind: model.Scalar, name: str) -> Any:
        if name in _WITHOUT_DEFAULT:
            raise Problem(node.at, f"{name} has no literals; write {name}? = none")
        value = _literal(node)
        if name == "any":
            if isinstance(value, _Nothing):
                raise Problem(node.at, f"any has plain values as its default, not {_described(node)}")
            return value
        if type(value) not in _PYTHON.get(name, (int,)):
            raise self._mismatch(node, kind)
        if name in INTEGER_BOUNDS:
            low, high = INTEGER_BOUNDS[name]
            if not low <= value <= high:
                raise Problem(node.at, f"{value} doesn't fit {name}, which goes from {low} to {high}")
        if name in ("float", "f32", "complex"):
            return _float(node.at, value, name)
        return value


class _Nothing:
    """Marker for a node that isn't a literal."""


_PYTHON: dict[str, tuple[type, ...]] = {
    "none": (type(None),),
    "bool": (bool,),
    "float": (int, float),
    "f32": (int, float),
    "complex": (int, float),
    "string": (str,),
    "bytes": (bytes,),
}
_WITHOUT_DEFAULT = frozenset({"buffer", "datetime", "date", "time", "duration", "decimal", "uuid"})
_INEXACT = (model.Scalar("float"), model.Scalar("f32"), model.Scalar("complex"), model.Scalar("any"))


def _member_called(word: str, enum: model.Enum) -> str | None:
    """The member that ``L2``, ``Metric.L2`` or ``lab.Metric.L2`` names."""
    prefix, _, last = word.rpartition(".")
    names = ("", enum.name.rpartition(".")[2], enum.name)
    return last if prefix in names and any(member.name == last for member in enum.members) else None


def _literal(node: syntax.Value) -> Any:
    if isinstance(node, syntax.Literal):
        return node.value
    if isinstance(node, syntax.Word) and node.text in _WORDS:
        return _WORDS[node.text]
    return _Nothing()


def _float(at: At, value: int | float, name: str) -> float | complex:
    try:
        number = float(value)
        if name == "f32":
            struct.pack("<f", number)
    except OverflowError:
        raise Problem(at, f"too large for {name}") from None
    return complex(number) if name == "complex" else number


def _is_none(node: syntax.Value) -> bool:
    return isinstance(node, syntax.Word) and node.text == "none"


def _must_differ(values: Any, nodes: Any) -> None:
    seen: list[Any] = []
    for value, node in zip(values, nodes, strict=True):
        if value in seen:
            raise Problem(node.at, f"{_described(node)} stands here twice")
        seen.append(value)


def _expected(kind: model.Type, text: str) -> str:
    match kind:
        case model.Literal():
            return "one of " + text.removeprefix("literal<").removesuffix(">")
        case model.List() | model.Set() | model.Tuple():
            return f"a {text} ([...])"
        case model.Map():
            return f"a {text} ({{key: value}})"
    return text


def _described(node: syntax.Value) -> str:
    match node:
        case syntax.Literal(str() as text):
            return shown("STRING", f'"{text}"') if text.isprintable() else "a string"
        case syntax.Literal(bytes()):
            return "bytes"
        case syntax.Literal(value):
            return f"{value!r:.40}"
        case syntax.Word(text):
            return f"'{text}'"
        case syntax.ListValue():
            return "a list"
        case syntax.MapValue():
            return "a map"


def _node(value: Any, kind: model.Type, at: At, scope: Scope) -> syntax.Value:
    """The value of a constant as if it had been written in the constant's place."""
    choices = alternatives_of(kind, scope.lookup)
    if value is None or isinstance(value, bool):
        return syntax.Word({None: "none", True: "true", False: "false"}[value], at)
    if isinstance(value, complex):
        return syntax.Literal(value.real, at)
    if isinstance(value, tuple):
        kinds = item_types(list_among(choices), len(value))
        return syntax.ListValue(tuple(_node(v, k, at, scope) for v, k in zip(value, kinds, strict=False)), at)
    if isinstance(value, dict):
        of = map_among(choices)
        return syntax.MapValue(
            tuple((_node(k, of.key, at, scope), _node(v, of.value, at, scope)) for k, v in value.items()), at
        )
    if isinstance(value, str) and any(isinstance(c, model.Named) for c in choices):
        takes_text = any(c == model.Scalar("string") or isinstance(c, model.Literal) for c in choices)
        return syntax.Literal(value, at) if takes_text else syntax.Word(value, at)
    return syntax.Literal(value, at)
