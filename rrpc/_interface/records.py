"""Checks of classes with fields: dataclasses, attrs classes, Pydantic models, typed dicts, named tuples."""

from __future__ import annotations

import typing
from typing import Any

from rrpc.codec import Record, is_model

from .borrowed import OWN_FIELDS, holds_borrowed
from .containers import tuple_check
from .dimensions import Scope
from .members import hints_of, is_typed_dict, members_of
from .mismatch import EXACT, AnnotationError, Check, Compile, Mismatch


def class_check(annotation: Any, compile_inner: Compile) -> Check:
    """Makes the check for any class that has members, such as ``Pair`` or ``Pair[int]``."""
    kind = typing.get_origin(annotation) or annotation
    if is_typed_dict(kind):
        return _TypedDictCheck(annotation, compile_inner)
    return _model_check(kind) if is_model(kind) else RecordCheck(annotation, compile_inner)


class RecordCheck:
    """Gives an instance of a dataclass or an attrs class for an instance, a dict or a Record of the class's name."""

    def __init__(self, annotation: Any, compile_inner: Compile) -> None:
        kind: Any = typing.get_origin(annotation) or annotation
        self._annotation = annotation
        self._kind = kind
        self._compile = compile_inner
        self._fields: dict[str, Check] | None = None
        self._attributes: dict[str, str] = {}
        self._required: set[str] = set()
        self._scope: Scope | None = None
        self._names: tuple[str, ...] = ()
        self._kinds: tuple[type, ...] = ()
        """The classes of the fields, where a value of exactly these needs no other look."""

    def _resolve(self) -> dict[str, Check]:
        # At first use: a class may name itself, or one that is defined after it.
        members = members_of(self._annotation)
        hints = {member.name: member.annotation for member in members}
        fields = {name: self._compile(hint) for name, hint in hints.items()}
        self._attributes = {member.name: member.attribute for member in members}
        self._required = {member.name for member in members if member.required}
        self._scope = Scope.of_fields(hints, self._compile)
        if all(hint in EXACT for hint in hints.values()):
            self._names, self._kinds = tuple(hints), tuple(hints.values())
        # Set last: a thread that finds it finds all other results too.
        self._fields = fields
        return fields

    def __call__(self, value: Any) -> Any:
        kind = self._kind
        if type(value) is Record and tuple(value) == self._names and self._is_exact(value):
            return self._made(value, value)
        fields = self._fields if self._fields is not None else self._resolve()
        if isinstance(value, kind):
            members = {name: getattr(value, attribute) for name, attribute in self._attributes.items()}
        elif isinstance(value, dict) and getattr(value, "type_name", kind.__name__) == kind.__name__:
            members = value
        else:
            raise Mismatch(kind.__name__, value, _another_class(value, kind))
        if missing := self._required - members.keys():
            raise Mismatch(kind.__name__, value, f"without {', '.join(sorted(missing))}")
        if unknown := members.keys() - fields.keys():
            if type(value) is not Record:
                raise Mismatch(kind.__name__, value, f"with unknown {', '.join(sorted(map(str, unknown)))}")
            members = {
                name: member for name, member in members.items() if name in fields
            }  # of a newer version
        checked = _members(fields, members)
        # Names of dimensions within a class are its own, so each instance is looked at by itself.
        if self._scope is not None:
            self._scope.sizes([checked.get(name) for name in fields])
        if isinstance(value, kind) and all(checked[name] is members[name] for name in checked):
            return value
        return self._made(checked, value)

    def _is_exact(self, value: Record) -> bool:
        return value.type_name == self._kind.__name__ and tuple(map(type, value.values())) == self._kinds

    def _made(self, members: dict[str, Any], value: Any) -> Any:
        try:
            return self._kind(**members)
        except (TypeError, ValueError) as error:  # its own __post_init__, or a validator of attrs
            raise Mismatch(self._kind.__name__, value, str(error)) from None


def _members(fields: dict[str, Check], members: dict[str, Any]) -> dict[str, Any]:
    checked = {}
    name = ""
    try:
        for name, value in members.items():
            checked[name] = fields[name](value)
    except Mismatch as mismatch:
        mismatch.path = f".{name}{mismatch.path}"
        raise
    return checked


def _another_class(value: Any, kind: Any) -> str:
    """Returns the hint that tells two classes of the same name apart; empty if the names differ."""
    found = type(value)
    if found.__name__ != kind.__name__:
        return ""
    return f"its class is {found.__module__}.{found.__name__}, not {kind.__module__}.{kind.__name__}"


def _model_check(kind: Any) -> Check:
    """Makes the check for a Pydantic model, which uses the model's own validation."""
    expected = kind.__name__

    def check(value: Any) -> Any:
        if type(value) is kind:
            return value
        if isinstance(value, kind):  # of a subclass: what the peer knows of it
            value = value.model_dump(round_trip=True, by_alias=True)
        elif not isinstance(value, dict) or getattr(value, "type_name", expected) != expected:
            raise Mismatch(expected, value, _another_class(value, kind))
        try:
            return kind.model_validate(value)
        except ValueError as error:
            raise Mismatch(expected, value, _faults(error)) from None

    return check


def _faults(error: Any) -> str:
    """Summarizes Pydantic's ValidationError in one line, with at most three faults."""
    if not hasattr(error, "errors"):
        return str(error)
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}" for fault in faults[:3]]
    return "; ".join(shown + [f"and {len(faults) - 3} more"] * (len(faults) > 3))


class _TypedDictCheck:
    """Gives a dict. Keys that the class doesn't name stay as they are: typed dicts may have more than it says.

    https://typing.python.org/en/latest/spec/typeddict.html
    """

    def __init__(self, annotation: Any, compile_inner: Compile) -> None:
        self._name: str = (typing.get_origin(annotation) or annotation).__name__
        self._annotation = annotation
        self._compile = compile_inner
        self._fields: dict[str, Check] | None = None
        self._required: set[str] = set()
        self._never_none: set[str] = set()
        self._scope: Scope | None = None

    def _resolve(self) -> dict[str, Check]:
        members = members_of(self._annotation)
        hints = {member.name: member.annotation for member in members}
        fields = {name: self._compile(hint) for name, hint in hints.items()}
        self._required = {member.name for member in members if member.required}
        self._never_none = {m.name for m in members if m.optional and not _takes_none(fields[m.name])}
        self._scope = Scope.of_fields(hints, self._compile)
        # Set last: a thread that finds it finds all other results too.
        self._fields = fields
        return fields

    def __call__(self, value: Any) -> Any:
        fields = self._fields if self._fields is not None else self._resolve()
        if not isinstance(value, dict):
            raise Mismatch(self._name, value)
        if type(value) is Record:  # of a client whose class has None for a key that isn't there
            value = {name: v for name, v in value.items() if v is not None or name not in self._never_none}
        if missing := self._required - value.keys():
            raise Mismatch(self._name, value, f"without {', '.join(sorted(missing))}")
        known = _members(fields, {name: item for name, item in value.items() if name in fields})
        if self._scope is not None:
            self._scope.sizes([known.get(name) for name in fields])
        return {name: known.get(name, item) for name, item in value.items()}


def _takes_none(check: Check) -> bool:
    try:
        return check(None) is None
    except Mismatch:
        return False


def named_tuple_check(annotation: Any, compile_inner: Compile) -> Check:
    kind: Any = typing.get_origin(annotation) or annotation
    hints = hints_of(annotation)
    fields = {name: hints.get(name, Any) for name in kind._fields}
    if borrowed := [name for name, hint in fields.items() if holds_borrowed(hint)]:
        raise AnnotationError(f"{kind.__name__}.{borrowed[0]}: {OWN_FIELDS}")
    check_items = tuple_check(kind, tuple(fields.values()), compile_inner)
    scope = Scope.of_fields(fields, compile_inner)

    def check(value: Any) -> Any:
        checked = check_items(value)
        if scope is not None:
            scope.sizes(checked)
        return checked if type(checked) is kind else kind(*checked)

    return check
