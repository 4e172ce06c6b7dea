"""Members of enums, fields of structs and errors, and what all declarations have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rrpc._options import suggestion
from rrpc.schema import MISSING, Enum, EnumMember, Error, Field, Position, Struct, Type
from rrpc.types import INTEGER_BOUNDS

from . import rules, syntax
from .diagnostics import At
from .scope import Problem, Scope
from .type_checks import size_problems
from .type_resolver import Types
from .values import Values

_I64 = INTEGER_BOUNDS["i64"]


class Members:
    """Resolves enums, structs, one-ofs and errors to the schema."""

    def __init__(self, scope: Scope, types: Types, values: Values) -> None:
        self._scope = scope
        self._types = types
        self._values = values

    # --- what all have

    def position(self, at: At) -> Position:
        """Returns the place in the file."""
        return Position(self._scope.source.name, at.line, at.column)

    def notes(self, doc: str, attributes: Sequence[syntax.Attribute], at: At) -> dict[str, Any]:
        """The arguments doc, deprecated and position of a schema's value."""
        return {
            "doc": doc,
            "deprecated": self.attributes(attributes).get("deprecated"),
            "position": self.position(at),
        }

    def attributes(
        self, attributes: Sequence[syntax.Attribute], allowed: Sequence[str] = ("deprecated",)
    ) -> dict[str, str]:
        """Returns the texts of the valid attributes by name; reports unknown, repeated and misused ones."""
        found: dict[str, str] = {}
        for attribute in attributes:
            name = attribute.name.text
            if name in found:
                self._scope.add(attribute.name.at, f"the attribute {name} stands here twice")
            elif name not in allowed:
                self._scope.add(attribute.name.at, _unknown_attribute(name, allowed))
            elif name == "idempotent" and attribute.text is not None:
                self._scope.add(attribute.name.at, "idempotent takes no text")
            else:
                found[name] = attribute.text or ""
        return found

    def default(self, node: syntax.Value | None, kind: Type, what: str) -> Any:
        """The value; MISSING if there is none, or if it was reported."""
        if node is None:
            return MISSING
        try:
            return self._values.value(node, kind)
        except Problem as problem:
            self._scope.add_problem(problem, f"{what}: ")
            return MISSING

    def check_name(self, word: syntax.Word, rule: Callable[[str], str | None]) -> None:
        """Adds a diagnostic if a rule forbids the name."""
        if wrong := rule(word.text):
            self._scope.add(word.at, wrong)

    # --- enums

    def enum(self, name: str, node: syntax.Enum) -> Enum | None:
        """Resolves an enum. Returns None if it has no usable member."""
        members = [item for item in node.items if isinstance(item, syntax.Member)]
        reserved = self._reserved(node.items)
        if not members:
            self._scope.add(node.at, "an enum has at least one member")
        kind = (
            type(members[0].value.value) if members and isinstance(members[0].value, syntax.Literal) else int
        )
        made = [self._member(member, kind) for member in members]
        known = [member for member in made if member is not None]
        self._distinct([(m.name.text, m.name.at) for m in members], "the name", reserved)
        values = [(m.value.value, m.value.at) for m in members if isinstance(m.value, syntax.Literal)]
        self._distinct(values, "the value", reserved)
        notes = self.notes(node.doc, node.attributes, node.at)
        return Enum(name, tuple(known), reserved, **notes) if known else None

    def _member(self, node: syntax.Member, kind: type) -> EnumMember | None:
        self.check_name(node.name, rules.member_name)
        notes = self.notes(node.doc, node.attributes, node.name.at)
        value: Any = node.value.value if isinstance(node.value, syntax.Literal) else None
        if wrong := _wrong_member(value, kind):
            self._scope.add(node.value.at, wrong)
            return None
        return EnumMember(node.name.text, value, **notes)

    def _distinct(self, items: Sequence[tuple[Any, At]], what: str, reserved: tuple[int | str, ...]) -> None:
        seen: set[Any] = set()
        for item, at in items:
            if item in seen:
                self._scope.add(at, f"{what} {_shown(item)} is taken already")
            elif item in reserved:
                self._scope.add(at, f"{what} {_shown(item)} is reserved")
            seen.add(item)

    # --- fields

    def struct(self, name: str, node: syntax.Struct) -> Struct:
        """Resolves a struct."""
        fields, reserved = self._fields(node.items, rules.field_name)
        notes = self.notes(node.doc, node.attributes, node.at)
        return Struct(name, fields, reserved, node.frozen, **notes)

    def error(self, name: str, node: syntax.Error) -> Error:
        """Resolves an error."""
        fields, reserved = self._fields(node.items, rules.error_field_name)
        code = node.code.text
        if code not in rules.ERROR_CODES:
            hint = suggestion(code, rules.ERROR_CODES) or f"; there are {', '.join(rules.ERROR_CODES)}"
            self._scope.add(node.code.at, f"there is no status code {code!r}{hint}")
        return Error(name, code, fields, reserved, **self.notes(node.doc, node.attributes, node.at))

    def _fields(
        self, items: Sequence[syntax.Field | syntax.Reserved], rule: Callable[[str], str | None]
    ) -> tuple[tuple[Field, ...], tuple[int | str, ...]]:
        nodes = [item for item in items if isinstance(item, syntax.Field)]
        reserved = self._reserved(items)
        self._distinct([(node.number.value, node.number.at) for node in nodes], "the number", reserved)
        self._distinct([(node.name.text, node.name.at) for node in nodes], "the name", reserved)
        fields = [self._field(node, rule) for node in nodes]
        made = tuple(field for field in fields if field is not None)
        for wrong, message in size_problems([(field.name, field.type) for field in made]):
            self._scope.add(next(node.name.at for node in nodes if node.name.text == wrong), message)
        return made, reserved

    def _field(self, node: syntax.Field, rule: Callable[[str], str | None]) -> Field | None:
        self.check_name(node.name, rule)
        if not 1 <= node.number.value <= rules.FIELD_NUMBER_MAX:
            self._scope.add(node.number.at, f"a field's number is one of 1 to {rules.FIELD_NUMBER_MAX}")
        kind = self._types.resolve(node.type)
        notes = self.notes(node.doc, node.attributes, node.name.at)
        if kind is None:
            return None
        default = self.default(node.default, kind, f"the default of {node.name.text!r}")
        return Field(node.number.value, node.name.text, kind, default, **notes)

    def _reserved(self, items: Sequence[Any]) -> tuple[int | str, ...]:
        found: list[int | str] = []
        for node in (inner for item in items if isinstance(item, syntax.Reserved) for inner in item.items):
            if node.value in found:
                self._scope.add(node.at, f"{_shown(node.value)} is reserved twice")
            found.append(node.value)
        return tuple(dict.fromkeys(found))


def _wrong_member(value: Any, kind: type) -> str | None:
    if not isinstance(value, (int, str)):
        return "a member's value is a whole number or a string"
    if not isinstance(value, kind):
        return "the values of an enum are all whole numbers or all strings"
    if isinstance(value, int) and not _I64[0] <= value <= _I64[1]:
        return f"{value!r:.40} doesn't fit an enum: its values are of 64 bits"
    return None


def _shown(value: Any) -> str:
    return f"{value!r}"


def _unknown_attribute(name: str, allowed: Sequence[str]) -> str:
    if name == "idempotent":
        return "only methods are idempotent"
    hint = suggestion(name, allowed)
    if not hint:
        hint = f"; there is {' and '.join(allowed)}. Dimensions follow '>' without a space: array<f32>[n]"
    return f"there is no attribute {name!r}{hint}"
