"""The syntax tree: what a file says, names not yet resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .diagnostics import At


@dataclass(frozen=True, slots=True)
class Word:
    """A name, simple or dotted."""

    text: str
    at: At


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal: str, bytes, int or float."""

    value: Any
    at: At


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list of values."""

    items: tuple[Value, ...]
    at: At


@dataclass(frozen=True, slots=True)
class MapValue:
    """A map of values."""

    entries: tuple[tuple[Value, Value], ...]
    at: At


Value = Word | Literal | ListValue | MapValue


@dataclass(frozen=True, slots=True)
class Named:
    """A type that is a name."""

    name: Word

    # A function, here and below: dataclasses of Python 3.13.15 with slots look into getters, and fail at an attrgetter.
    at = property(lambda self: self.name.at)


@dataclass(frozen=True, slots=True)
class Generic:
    """``name<arguments>[dims]``; a Marker among the arguments is ``...``."""

    name: Word
    arguments: tuple[TypeNode | Literal | Marker, ...]
    dims: tuple[Word | Literal, ...] | None
    dims_at: At | None

    at = property(lambda self: self.name.at)


@dataclass(frozen=True, slots=True)
class Optional:
    """A type with a question mark."""

    item: TypeNode

    at = property(lambda self: self.item.at)


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Types of which a value has one."""

    items: tuple[TypeNode, ...]

    @property
    def at(self) -> At:
        """Returns the place in the file."""
        return self.items[0].at


TypeNode = Named | Generic | Optional | Alternatives


@dataclass(frozen=True, slots=True)
class Marker:
    """``*``, ``/`` or ``...``."""

    text: str
    at: At


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute, such as ``[deprecated("...")]``."""

    name: Word
    text: str | None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct or an error."""

    doc: str
    number: Literal
    name: Word
    type: TypeNode
    default: Value | None
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Reserved:
    """Numbers, names or values that no member may use again."""

    items: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enum."""

    doc: str
    name: Word
    value: Value
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a method."""

    doc: str
    name: Word
    stream: bool
    type: TypeNode
    default: Value | None
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a method."""

    stream: bool
    type: TypeNode


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service."""

    doc: str
    name: Word
    parameters: tuple[Parameter | Marker, ...]
    result: Result | None
    throws: tuple[Word, ...]
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Package:
    """The file's package."""

    doc: str
    name: Word | None
    at: At


@dataclass(frozen=True, slots=True)
class Import:
    """An import of another file."""

    path: Literal

    at = property(lambda self: self.path.at)


@dataclass(frozen=True, slots=True)
class _Declared:
    doc: str
    name: Word
    attributes: tuple[Attribute, ...]

    at = property(lambda self: self.name.at)


@dataclass(frozen=True, slots=True)
class Const(_Declared):
    """A constant."""

    type: TypeNode
    value: Value


@dataclass(frozen=True, slots=True)
class Enum(_Declared):
    """An enum."""

    items: tuple[Member | Reserved, ...]


@dataclass(frozen=True, slots=True)
class Struct(_Declared):
    """A struct."""

    frozen: bool
    items: tuple[Field | Reserved, ...]


@dataclass(frozen=True, slots=True)
class Union(_Declared):
    """A one-of."""

    type: TypeNode


@dataclass(frozen=True, slots=True)
class Error(_Declared):
    """An error."""

    code: Word
    items: tuple[Field | Reserved, ...]


@dataclass(frozen=True, slots=True)
class Service(_Declared):
    """A service."""

    methods: tuple[Method, ...]


Declared = Const | Enum | Struct | Union | Error | Service
Statement = Package | Import | Declared


@dataclass(frozen=True, slots=True)
class File:
    """A file's statements."""

    statements: tuple[Statement, ...]
