"""Python annotations, classes and default values in the words of the schema."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import types
import typing
import uuid
from pathlib import PurePath
from typing import Any

import numpy as np

from rrpc._interface import AnnotationError, Mismatch, compile_check
from rrpc._interface.libraries import item_note, library_of
from rrpc._interface.members import Member, has_members, members_of
from rrpc._interface.mismatch import item_type, type_text
from rrpc.types import Lending, Shape, Sized

from . import model
from .closure import item_types
from .docstrings import DOCS, split_docstring

_ANY = model.Scalar("any")
_BY_CLASS: dict[Any, model.Type] = {
    None: model.Scalar("none"),
    type(None): model.Scalar("none"),
    Any: _ANY,
    object: _ANY,
    bool: model.Scalar("bool"),
    int: model.Scalar("int"),
    float: model.Scalar("float"),
    complex: model.Scalar("complex"),
    str: model.Scalar("string"),
    bytes: model.Scalar("bytes"),
    memoryview: model.Scalar("buffer"),
    datetime.datetime: model.Scalar("datetime"),
    datetime.date: model.Scalar("date"),
    datetime.time: model.Scalar("time"),
    datetime.timedelta: model.Scalar("duration"),
    decimal.Decimal: model.Scalar("decimal"),
    uuid.UUID: model.Scalar("uuid"),
    list: model.List(_ANY),
    set: model.Set(_ANY),
    frozenset: model.Set(_ANY, frozen=True),
    dict: model.Map(_ANY, _ANY),
    tuple: model.Tuple((_ANY,), variadic=True),
    np.ndarray: model.Array("any"),
}
TABLE = "pyarrow.Table"
"""How the schema calls all that travels as a table of Arrow, whatever it is at either end."""
_LITERALS = (bool, int, str, bytes)
_VALUES = (type(None), bool, int, float, complex, str, bytes)
_SHOWN = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


def _array_items() -> dict[type, str]:
    """float32: "f32" and so on; C's own integer types are there too."""
    names: dict[type, str] = {np.generic: "any", np.bool_: "bool"}
    for letter in "bhilqBHILQefdgFDG":
        dtype = np.dtype(letter)
        name = f"{dtype.kind}{8 * dtype.itemsize}"
        if name in model.ARRAY_ITEMS:
            names[dtype.type] = name
    return names


_ITEMS = _array_items()


def _item_of(kind: Any) -> str | None:
    name: str = kind.__name__
    return name if kind.__module__ == "ml_dtypes" and name in model.ARRAY_ITEMS else _ITEMS.get(kind)


def _array_of(kind: Any) -> model.Type:
    item = _item_of(kind)
    return model.Array(item) if item else model.Opaque(f"NDArray[{type_text(kind)}]")


class Declarations:
    """The schema's types of annotations, and the classes found in them, by full name."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._classes: dict[str, type] = {}
        self.found: dict[str, model.Declaration] = {}
        self._unfilled: list[tuple[str, type]] = []
        self._filling = False

    def type_of(self, annotation: Any) -> model.Type:
        """The type; AnnotationError for two classes of one name."""
        if isinstance(annotation, typing.NewType):
            return self.type_of(annotation.__supertype__)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            return self._annotated(arguments[0], arguments[1:])
        if origin is None:
            return _BY_CLASS.get(annotation) or self._class(annotation)
        return self._generic(annotation, origin, arguments)

    def _annotated(self, annotation: Any, notes: tuple[Any, ...]) -> model.Type:
        kind = self.type_of(annotation)
        if isinstance(kind, model.Array) and library_of(annotation) is not None:
            kind = _array_of(item_note(notes))
        for note in notes:
            if isinstance(note, Sized):
                return model.Scalar(note.name)
            if isinstance(note, Shape) and isinstance(kind, model.Array):
                kind = dataclasses.replace(kind, dims=note.dims)
            if isinstance(note, Lending) and isinstance(kind, model.Array):
                kind = dataclasses.replace(kind, borrowed=True)
        return kind

    def _generic(self, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> model.Type:
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if origin is typing.Literal:
            return _literal(annotation, arguments)
        if origin is np.ndarray:
            return _array_of(item_type(annotation))
        if origin is tuple:
            variadic = arguments[-1:] == (Ellipsis,)
            items = arguments[:1] if variadic else arguments
            return model.Tuple(tuple(map(self.type_of, items)), variadic)
        if origin in (dict, collections.abc.Mapping):
            return model.Map(self.type_of(arguments[0]), self.type_of(arguments[1]))
        if origin is list:
            return model.List(self.type_of(arguments[0]))
        if origin in (set, frozenset):
            return model.Set(self.type_of(arguments[0]), frozen=origin is frozenset)
        return model.Opaque(type_text(annotation))

    def _union(self, arguments: tuple[Any, ...]) -> model.Type:
        found = [self.type_of(a) for a in arguments if a is not type(None)]
        # Python doesn't tell a union in a union from one; notes on the inner one would.
        flat = [item for kind in found for item in (kind.items if isinstance(kind, model.Union) else (kind,))]
        items = tuple(dict.fromkeys(flat))
        kind = items[0] if len(items) == 1 else model.Union(items)
        return model.Optional(kind) if type(None) in arguments else kind

    def error_of(self, kind: Any) -> str:
        """The full name of an error that a method declares."""
        name = self._name(kind)
        if name not in self.found:
            as_struct = self._struct(name, kind)
            code = kind.code.name.lower()
            doc, deprecated = as_struct.doc, as_struct.deprecated
            self.found[name] = model.Error(
                name, code, as_struct.fields, as_struct.reserved, doc=doc, deprecated=deprecated
            )
        return name

    def _name(self, kind: type) -> str:
        name = f"{self._package}.{kind.__name__}" if self._package else kind.__name__
        known = self._classes.setdefault(name, kind)
        if known is not kind:
            raise AnnotationError(
                f"two classes are called {kind.__name__}: {known.__module__} and {kind.__module__}"
            )
        return name

    def _class(self, kind: Any) -> model.Type:
        if isinstance(kind, type) and issubclass(kind, PurePath):
            return model.Scalar("string")
        if (library := library_of(kind)) is not None:
            return model.Opaque(TABLE) if library.is_table else model.Array("any")
        if not (isinstance(kind, type) and (issubclass(kind, enum.Enum) or _is_struct(kind))):
            return model.Opaque(type_text(kind))
        name = self._name(kind)
        if name in self.found:
            return model.Named(name)
        if issubclass(kind, enum.Enum):
            declared = _enum(name, kind)
            if declared is None:
                return model.Opaque(type_text(kind))
            self.found[name] = declared
            return model.Named(name)
        self.found[name] = model.Struct(name, ())  # it may name itself
        self._unfilled.append((name, kind))
        if not self._filling:
            self._fill()
        return model.Named(name)

    def _fill(self) -> None:
        """Describes the classes that wait, and those that their fields need: by no recursion, as chains may be long."""
        self._filling = True
        try:
            while self._unfilled:
                name, kind = self._unfilled.pop()
                self.found[name] = self._struct(name, kind)
        finally:
            self._filling = False

    def _struct(self, name: str, kind: Any) -> model.Struct:
        members = members_of(kind)
        numbers, reserved = _numbers(kind, [member.name for member in members])
        fields = []
        for member in members:
            try:
                inner = self.type_of(member.annotation)
            except AnnotationError as error:
                raise AnnotationError(f"{kind.__name__}.{member.name}: {error}") from None
            if member.optional:
                inner = inner if isinstance(inner, model.Optional) else model.Optional(inner)
            default = None if member.optional else self._field_default(member, inner)
            docs = _docs_of(kind, member.name)
            fields.append(model.Field(numbers[member.name], member.name, inner, default, **docs))
        # Without a docstring of its own a dataclass has its signature there.
        written = not (kind.__doc__ or "").startswith(f"{kind.__name__}(")
        doc, deprecated = split_docstring(kind.__doc__ if written else "")
        frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
        return model.Struct(name, tuple(fields), reserved, frozen, doc=doc, deprecated=deprecated)

    def _field_default(self, member: Member, kind: model.Type) -> Any:
        if member.default is not dataclasses.MISSING:
            return self.default_of(member.default, member.annotation, kind)
        factory: Any = member.default_factory
        if factory is dataclasses.MISSING:
            return model.MISSING
        made: Any = factory.func if isinstance(factory, functools.partial) else factory
        if (typing.get_origin(made) or made) in (list, dict, set, frozenset, tuple):
            return self.default_of(factory(), member.annotation, kind)
        return model.Opaque(f"default_factory={getattr(factory, '__name__', type(factory).__name__)}")

    def default_of(self, value: Any, annotation: Any, kind: model.Type) -> Any:
        """The default as a value of built-in types; Opaque where it has no literal."""
        try:
            return self._built_in(compile_check(annotation)(value), kind)
        except Mismatch:  # a dataclass may promise what its own default doesn't keep
            return model.Opaque(f"{value!r:.60}" if type(value) in _VALUES else type(value).__name__)

    def _built_in(self, value: Any, kind: model.Type) -> Any:
        if isinstance(kind, model.Optional):
            return None if value is None else self._built_in(value, kind.item)
        if isinstance(value, enum.Enum):
            return self._member(value, kind)
        if type(value) in _VALUES:
            return value
        if isinstance(value, dict):
            key, item = (kind.key, kind.value) if isinstance(kind, model.Map) else (_ANY, _ANY)
            return {self._built_in(k, key): self._built_in(v, item) for k, v in value.items()}
        if type(value) in (set, frozenset):
            # Sets have no order of their own, and fingerprints need one.
            value = sorted(value, key=repr)
        if type(value) in (list, tuple):
            return tuple(
                self._built_in(item, inner)
                for item, inner in zip(value, item_types(kind, len(value)), strict=True)
            )
        return model.Opaque(repr(value) if type(value) in _SHOWN else type(value).__name__)

    def _member(self, value: enum.Enum, kind: model.Type) -> Any:
        """The member's name where the type says the enum, its value where that is all that travels."""
        choices = kind.items if isinstance(kind, model.Union) else (kind,)
        name = next((n for n, known in self._classes.items() if known is type(value)), "")
        if model.Named(name) not in choices:
            return self._built_in(value.value, _ANY)
        if model.Scalar("string") in choices:
            return model.Opaque(f"{type(value).__name__}.{value.name}")  # its name would look like a text
        return value.name


def _is_struct(kind: Any) -> bool:
    """Returns whether its fields have names that the language can write."""
    return has_members(kind) and all(member.name.isidentifier() for member in members_of(kind))


def _literal(annotation: Any, arguments: tuple[Any, ...]) -> model.Type:
    values = tuple(a for a in arguments if a is not None)
    if any(type(value) not in _LITERALS for value in values):
        return model.Opaque(type_text(annotation))
    kind: model.Type = model.Literal(values)
    if not values:
        return model.Scalar("none")
    return model.Optional(kind) if None in arguments else kind


def _numbers(kind: Any, names: list[str]) -> tuple[dict[str, int], tuple[int | str, ...]]:
    """The fields' numbers and what is reserved: from the class itself, or in order from 1."""
    given: Any = getattr(kind, "rrpc_numbers", {})
    reserved: Any = getattr(kind, "rrpc_reserved", ())
    if type(given) is not dict or type(reserved) is not tuple:
        raise AnnotationError(f"{kind.__name__}: rrpc_numbers must be a dict, rrpc_reserved a tuple")
    if unknown := given.keys() - set(names):
        raise AnnotationError(f"{kind.__name__}.rrpc_numbers has no field {', '.join(sorted(unknown))}")
    numbers = {name: given.get(name, place) for place, name in enumerate(names, 1)}
    fields: dict[int, str] = {}
    for name, number in numbers.items():
        if type(number) is not int or number < 1:
            raise AnnotationError(f"{kind.__name__}.{name}: its number is {number!r}; numbers count from 1")
        if number in reserved or name in reserved:
            raise AnnotationError(f"{kind.__name__}.{name} (number {number}) is in rrpc_reserved")
        if fields.setdefault(number, name) != name:
            raise AnnotationError(f"{kind.__name__}: {fields[number]} and {name} have the number {number}")
    return numbers, reserved


def _docs_of(kind: type, name: str) -> dict[str, Any]:
    """Returns the doc and the deprecation text of a field or a member."""
    doc, deprecated = split_docstring(kind.__dict__.get(DOCS, {}).get(name))
    return {"doc": doc, "deprecated": deprecated}


def _enum(name: str, kind: type[enum.Enum]) -> model.Enum | None:
    """Describes an enum; None if the language can't: flags, values of several kinds, or no values."""
    kinds = {type(member.value) for member in kind}
    if issubclass(kind, enum.Flag) or kinds not in ({int}, {str}):
        return None
    # Python gives an enum without a docstring one of its own (up to 3.12).
    written = kind.__dict__.get("__doc__") not in (None, "An enumeration.")
    doc, deprecated = split_docstring(kind.__doc__ if written else "")
    members = tuple(model.EnumMember(m.name, m.value, **_docs_of(kind, m.name)) for m in kind)
    reserved: tuple[int | str, ...] = getattr(
        kind, "__rrpc_reserved__", ()
    )  # any other name would be a member
    return model.Enum(name, members, reserved, doc=doc, deprecated=deprecated)
