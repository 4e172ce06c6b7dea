"""The syntax tree: what a file says, names not yet resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .diagnostics import At

__all__ = [
    "Alternatives",
    "Attribute",
    "Const",
    "Enum",
    "Error",
    "Field",
    "File",
    "Generic",
    "Import",
    "ListValue",
    "MapValue",
    "Marker",
    "Member",
    "Method",
    "Named",
    "Optional",
    "Package",
    "Parameter",
    "Plain",
    "Reserved",
    "Result",
    "Service",
    "Statement",
    "Struct",
    "TypeNode",
    "Union",
    "Value",
    "Word",
]


@dataclass(frozen=True, slots=True)
class Word:
    """A name, simple or dotted."""

    text: str
    at: At


@dataclass(frozen=True, slots=True)
class Plain:
    """A literal: str, bytes, int or float."""

    value: Any
    at: At


@dataclass(frozen=True, slots=True)
class ListValue:
    items: tuple[Value, ...]
    at: At


@dataclass(frozen=True, slots=True)
class MapValue:
    entries: tuple[tuple[Value, Value], ...]
    at: At


Value = Word | Plain | ListValue | MapValue


@dataclass(frozen=True, slots=True)
class Named:
    name: Word

    @property
    def at(self) -> At:
        return self.name.at


@dataclass(frozen=True, slots=True)
class Generic:
    """``name<arguments>[dims]``; a Marker among the arguments is ``...``."""

    name: Word
    arguments: tuple[TypeNode | Plain | Marker, ...]
    dims: tuple[Word | Plain, ...] | None
    dims_at: At | None

    @property
    def at(self) -> At:
        return self.name.at


@dataclass(frozen=True, slots=True)
class Optional:
    item: TypeNode

    @property
    def at(self) -> At:
        return self.item.at


@dataclass(frozen=True, slots=True)
class Alternatives:
    items: tuple[TypeNode, ...]

    @property
    def at(self) -> At:
        return self.items[0].at


TypeNode = Named | Generic | Optional | Alternatives


@dataclass(frozen=True, slots=True)
class Marker:
    """``*``, ``/`` or ``...``."""

    text: str
    at: At


@dataclass(frozen=True, slots=True)
class Attribute:
    name: Word
    text: str | None


@dataclass(frozen=True, slots=True)
class Field:
    doc: str
    number: Plain
    name: Word
    type: TypeNode
    default: Value | None
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Reserved:
    items: tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Member:
    doc: str
    name: Word
    value: Value
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    doc: str
    name: Word
    stream: bool
    type: TypeNode
    default: Value | None
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Result:
    stream: bool
    type: TypeNode


@dataclass(frozen=True, slots=True)
class Method:
    doc: str
    name: Word
    parameters: tuple[Parameter | Marker, ...]
    result: Result | None
    throws: tuple[Word, ...]
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Package:
    doc: str
    name: Word | None
    at: At


@dataclass(frozen=True, slots=True)
class Import:
    path: Plain

    @property
    def at(self) -> At:
        return self.path.at


@dataclass(frozen=True, slots=True)
class _Declared:
    doc: str
    name: Word
    attributes: tuple[Attribute, ...]

    @property
    def at(self) -> At:
        return self.name.at


@dataclass(frozen=True, slots=True)
class Const(_Declared):
    type: TypeNode
    value: Value


@dataclass(frozen=True, slots=True)
class Enum(_Declared):
    items: tuple[Member | Reserved, ...]


@dataclass(frozen=True, slots=True)
class Struct(_Declared):
    frozen: bool
    items: tuple[Field | Reserved, ...]


@dataclass(frozen=True, slots=True)
class Union(_Declared):
    type: TypeNode


@dataclass(frozen=True, slots=True)
class Error(_Declared):
    code: Word
    items: tuple[Field | Reserved, ...]


@dataclass(frozen=True, slots=True)
class Service(_Declared):
    methods: tuple[Method, ...]


Declared = Const | Enum | Struct | Union | Error | Service
Statement = Package | Import | Declared


@dataclass(frozen=True, slots=True)
class File:
    statements: tuple[Statement, ...]
