"""Checks of dataclasses and named tuples."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import msgpack

from rrpc.codec import Message, Record, prepare, record_mark

from .containers import tuple_check
from .dimensions import Scope
from .mismatch import EXACT, AnnotationError, Check, Compile, Mismatch

__all__ = ["DataclassCheck", "fields_of", "named_tuple_check"]

_NOTHING: dict[str, Any] = {}


def fields_of(kind: Any) -> dict[str, Any]:
    """The fields that a dataclass's constructor takes, and their annotations."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise AnnotationError(f"{kind.__name__}: {error}") from None
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


class DataclassCheck:
    """Gives an instance for an instance, a dict or a Record of the class's name."""

    def __init__(self, kind: type, compile_inner: Compile) -> None:
        self._kind = kind
        self._compile = compile_inner
        self._fields: dict[str, Check] | None = None
        self._required: set[str] = set()
        self._scope: Scope | None = None
        self._names: tuple[str, ...] = ()
        self._plain: tuple[type, ...] = ()
        """The classes of the fields, where a value of exactly these needs no other look."""
        self._mark = record_mark(kind.__name__)
        self.prefix = b"\xc1\x92" + msgpack.packb(self._mark)
        """What a payload begins with that is an instance; the map of its fields is the rest."""

    def _resolve(self) -> dict[str, Check]:
        # At first use: a dataclass may name itself, or one that is defined after it.
        hints = fields_of(self._kind)
        fields = {name: self._compile(hint) for name, hint in hints.items()}
        members = [field for field in dataclasses.fields(self._kind) if field.init]
        missing = dataclasses.MISSING
        self._required = {f.name for f in members if f.default is missing and f.default_factory is missing}
        self._scope = Scope.of_fields(hints, self._compile)
        if len(members) == len(dataclasses.fields(self._kind)) and all(h in EXACT for h in hints.values()):
            self._names, self._plain = tuple(hints), tuple(hints.values())
        self._fields = fields
        return fields

    def send(self, value: Any, message: Message) -> Any:
        """An instance, checked and as the packer takes it."""
        members = self.plain_members(value)
        if members is None:
            return prepare(self(value), message)
        message.marked = True
        return [self._mark, members]

    def plain_members(self, value: Any) -> dict[str, Any] | None:
        """The fields of an instance, where they're packed as they are; else None."""
        if type(value) is not self._kind or not self._plain:
            return None
        members: dict[str, Any] = getattr(value, "__dict__", _NOTHING)
        good = tuple(members) == self._names and tuple(map(type, members.values())) == self._plain
        return members if good else None

    def of_plain(self, members: Any) -> Any:
        """The instance of fields that came as they were packed; None where they need another look."""
        if self._fields is None:
            self._resolve()
        if type(members) is not dict or tuple(members) != self._names:
            return None
        if not self._plain or tuple(map(type, members.values())) != self._plain:
            return None
        return self._made(members, members)

    def __call__(self, value: Any) -> Any:
        kind = self._kind
        if type(value) is Record and tuple(value) == self._names and self._is_plain(value):
            return self._made(value, value)
        fields = self._fields if self._fields is not None else self._resolve()
        if isinstance(value, kind):
            members = {name: getattr(value, name) for name in fields}
        elif isinstance(value, dict) and getattr(value, "type_name", kind.__name__) == kind.__name__:
            members = value
        else:
            raise Mismatch(kind.__name__, value)
        if missing := self._required - members.keys():
            raise Mismatch(kind.__name__, value, f"without {', '.join(sorted(missing))}")
        if unknown := members.keys() - fields.keys():
            if type(value) is not Record:
                raise Mismatch(kind.__name__, value, f"with unknown {', '.join(sorted(map(str, unknown)))}")
            members = {
                name: member for name, member in members.items() if name in fields
            }  # of a newer version
        checked = _members(fields, members)
        if self._scope is not None:
            self._scope.sizes([checked.get(name) for name in fields])
        if isinstance(value, kind) and all(checked[name] is members[name] for name in checked):
            return value
        return self._made(checked, value)

    def _is_plain(self, value: Record) -> bool:
        return value.type_name == self._kind.__name__ and tuple(map(type, value.values())) == self._plain

    def _made(self, members: dict[str, Any], value: Any) -> Any:
        try:
            return self._kind(**members)
        except (TypeError, ValueError) as error:  # its own __post_init__
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


def named_tuple_check(kind: Any, compile_inner: Compile) -> Check:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: hints.get(name, Any) for name in kind._fields}
    check_items = tuple_check(kind, tuple(fields.values()), compile_inner)
    scope = Scope.of_fields(fields, compile_inner)

    def check(value: Any) -> Any:
        checked = check_items(value)
        if scope is not None:
            scope.sizes(checked)
        return checked if type(checked) is kind else kind(*checked)

    return check
