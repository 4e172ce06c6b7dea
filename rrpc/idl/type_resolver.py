"""Types as a file has them to types of the schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rrpc._options import suggestion
from rrpc.schema import model
from rrpc.schema.closure import holds_borrowed
from rrpc.types import INTEGER_BOUNDS

from . import syntax
from .diagnostics import At
from .rules import CONTAINERS, RANK_MAX, python_name, type_hint
from .scope import Problem, Reported, Scope

_ITEMS = ", ".join(
    sorted(model.ARRAY_ITEMS - model.ML_ITEMS, key=lambda name: ("abiufc".index(name[0]), len(name), name))
)
_ITEM_ALIASES = {"float": "f64", "int": "i64", "complex": "c128"}
_TYPES = ("struct", "enum", "union")


def is_integer(kind: model.Type) -> bool:
    """Returns whether a type is a whole number, of any size."""
    return isinstance(kind, model.Scalar) and (kind.name == "int" or kind.name in INTEGER_BOUNDS)


class Types:
    """Resolves types, and remembers those that are looked at again once everything is known."""

    def __init__(self, scope: Scope, constant: Callable[[str], model.Const | None]) -> None:
        self._scope = scope
        self._constant = constant
        self.unions: list[tuple[model.Union, At]] = []
        self.keys: list[tuple[model.Type, str, At]] = []

    def resolve(self, node: syntax.TypeNode, may_borrow: bool = False) -> model.Type | None:
        """Returns None if it was reported. Only with ``may_borrow`` may it have borrowed arrays."""
        try:
            kind = self._type(node)
            if holds_borrowed(kind) and not may_borrow:
                raise Problem(
                    node.at,
                    "only a method's parameters and results are borrowed: not fields, and not a stream's items",
                )
            return kind
        except Problem as problem:
            self._scope.add_problem(problem)
            return None

    def _type(self, node: syntax.TypeNode) -> model.Type:
        match node:
            case syntax.Named(name):
                return self._named(name)
            case syntax.Generic():
                return self._generic(node)
            case syntax.Optional(item):
                return self._optional(item)
            case syntax.Alternatives(items):
                return self._union(items, node.at)

    def _named(self, word: syntax.Word) -> model.Type:
        if word.text in model.SCALARS:
            return model.Scalar("float" if word.text == "f64" else word.text)
        if word.text in CONTAINERS:
            raise Problem(word.at, f"{word.text} of what? Write {_FORMS[word.text]}")
        return model.Named(self._scope.reference(word, _TYPES, "type"))

    def _optional(self, node: syntax.TypeNode) -> model.Type:
        item = self._type(node)
        if item == model.Scalar("none"):
            raise Problem(node.at, "none is none already, with or without '?'")
        return item if isinstance(item, model.Optional) else model.Optional(item)

    def _union(self, nodes: tuple[syntax.TypeNode, ...], at: At) -> model.Type:
        """Flat, and with none among the alternatives an Optional around the others."""
        items: list[model.Type] = []
        optional = False
        for node in nodes:
            kind = self._type(node)
            if isinstance(kind, model.Optional):
                optional, kind = True, kind.item
            if kind == model.Scalar("none"):
                optional = True
                continue
            for item in kind.items if isinstance(kind, model.Union) else (kind,):
                if item in items:
                    raise Problem(node.at, "an alternative twice")
                items.append(item)
        if not items:
            raise Problem(at, "none alone is no union")
        union: model.Type = items[0]
        if len(items) > 1:
            union = model.Union(tuple(items))
            if holds_borrowed(union):
                raise Problem(at, "an alternative can't be borrowed")
            self.unions.append((union, at))
        return model.Optional(union) if optional else union

    def _generic(self, node: syntax.Generic) -> model.Type:
        name = node.name.text
        if name not in CONTAINERS:
            hint = type_hint(name) or suggestion(name, CONTAINERS)
            if name in model.SCALARS or self._scope.find(name):
                raise Problem(node.at, f"{name!r} takes no types in '<>'")
            raise Problem(node.at, f"there is no type called {name!r}{hint}")
        if node.dims is not None and name != "array":
            at = node.dims_at or node.at
            raise Problem(at, f"{name} has no dimensions; attributes have a space before their '['")
        if name == "literal":
            return model.Literal(_literals(node))
        if name == "tuple":
            return self._tuple(node)
        if name == "array":
            return self._array(node)
        if name == "borrowed":
            return self._borrowed(node)
        return self._container(node)

    def _arguments(self, node: syntax.Generic) -> list[syntax.TypeNode]:
        """The types in ``<>``, as many as the container holds."""
        types: list[syntax.TypeNode] = []
        for argument in node.arguments:
            if isinstance(argument, (syntax.Literal, syntax.Marker)):
                raise Problem(argument.at, f"expected a type in {node.name.text}<...>")
            types.append(argument)
        count = CONTAINERS[node.name.text]
        if count is not None and len(types) != count:
            form = _FORMS[node.name.text]
            raise Problem(
                node.at, f"{form} takes {count} type{'s' * (count > 1)}, not {len(types) or 'none'}"
            )
        return types

    def _container(self, node: syntax.Generic) -> model.Type:
        name = node.name.text
        nodes = self._arguments(node)
        items = [self._type(item) for item in nodes]
        if name == "list":
            return model.List(items[0])
        what = "a map's key" if name == "map" else f"in a {name}"
        self.keys.append((items[0], what, nodes[0].at))
        return (
            model.Map(items[0], items[1])
            if name == "map"
            else model.Set(items[0], frozen=name == "frozenset")
        )

    def _tuple(self, node: syntax.Generic) -> model.Type:
        *_, last = node.arguments or (None,)
        if not isinstance(last, syntax.Marker):
            return model.Tuple(tuple(self._type(item) for item in self._arguments(node)))
        first = node.arguments[0]
        if len(node.arguments) != 2 or isinstance(first, (syntax.Literal, syntax.Marker)):
            raise Problem(last.at, "'...' stands behind one type: tuple<T, ...>")
        return model.Tuple((self._type(first),), variadic=True)

    def _array(self, node: syntax.Generic) -> model.Type:
        (item,) = self._arguments(node)
        name = item.name.text if isinstance(item, syntax.Named) else ""
        if name not in model.ARRAY_ITEMS:
            alias = _ITEM_ALIASES.get(name)
            hint = f"; here it is {alias}" if alias else type_hint(name)
            raise Problem(
                item.at, f"an array's items are one of {_ITEMS}, or of ml_dtypes, as bfloat16{hint}"
            )
        if node.dims is None:
            return model.Array(name)
        if len(node.dims) > RANK_MAX:
            raise Problem(node.dims_at or node.at, f"an array has at most {RANK_MAX} dimensions")
        return model.Array(name, tuple(map(self._dim, node.dims)))

    def _borrowed(self, node: syntax.Generic) -> model.Array:
        (item,) = self._arguments(node)
        kind = self._type(item)
        if not isinstance(kind, model.Array) or kind.borrowed:
            raise Problem(item.at, f"only an array can be borrowed: {_FORMS['borrowed']}")
        return replace(kind, borrowed=True)

    def _dim(self, dim: syntax.Word | syntax.Literal) -> str | int | None:
        if isinstance(dim, syntax.Literal):
            if dim.value < 0:
                raise Problem(dim.at, f"a dimension's size can't be {dim.value}")
            return int(dim.value)
        if dim.text == "_":
            return None
        found = self._scope.find(dim.text)
        if any(self._scope.kind_of(name) == "const" for name in found):
            return self._constant_dim(dim)
        if wrong := python_name(dim.text, "a dimension"):
            raise Problem(dim.at, wrong)
        return dim.text

    def _constant_dim(self, dim: syntax.Word) -> int:
        constant = self._constant(self._scope.reference(dim, ("const",), "const"))
        if constant is None:
            raise Reported(dim.at)
        if not is_integer(constant.type) or constant.value < 0:
            raise Problem(dim.at, f"the constant {dim.text} is no size")
        return int(constant.value)


_FORMS = {
    "array": "array<f32>",
    "list": "list<T>",
    "set": "set<T>",
    "frozenset": "frozenset<T>",
    "map": "map<K, V>",
    "tuple": "tuple<A, B>",
    "literal": 'literal<"a", 3>',
    "borrowed": "borrowed<array<f32>>",
}
_BOOLEANS = {"true": True, "false": False}


def _literals(node: syntax.Generic) -> tuple[Any, ...]:
    values: list[Any] = []
    for argument in node.arguments:
        if isinstance(argument, syntax.Literal):
            value = argument.value
        elif isinstance(argument, syntax.Named) and argument.name.text in _BOOLEANS:
            value = _BOOLEANS[argument.name.text]
        else:
            raise Problem(argument.at, "expected a string, bytes, an integer, true or false in literal<...>")
        if any(type(known) is type(value) and known == value for known in values):
            raise Problem(argument.at, "a value twice in literal<...>")
        values.append(value)
    if not values:
        raise Problem(node.at, 'literal<> allows nothing: name the values, as literal<"a", 3>')
    return tuple(values)
