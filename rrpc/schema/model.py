"""The values that describe interfaces. Immutable, compared by meaning: positions and documentation don't count."""

# Nothing here is changed once it is made, so any thread may share it.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

_SIZED: Final = {"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64"}

SCALARS: Final = frozenset(
    {"none", "bool", "int", "float", "complex", "string", "bytes", "buffer", "any", "uuid", "decimal"}
    | {"datetime", "date", "time", "duration"}
    | _SIZED
)
"""``int`` has no bounds, ``float`` is f64 (which is its other name), ``buffer`` is bytes that aren't copied."""

ML_ITEMS: Final = frozenset(
    {"bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"}
    | {"float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"}
    | {"int2", "int4", "uint2", "uint4"}
)
"""Numbers of the package ml_dtypes, called as there."""

ARRAY_ITEMS: Final = frozenset({"any", "bool", "f16", "c64", "c128"} | _SIZED | ML_ITEMS)


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The default of a field or a parameter without one (None is a default)."""


@dataclass(frozen=True)
class Position:
    """Place in a file; ``line`` and ``column`` count from 1."""

    file: str
    line: int
    column: int


# --- types -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """One of ``SCALARS``."""

    name: str


@dataclass(frozen=True)
class Array:
    """A numpy array.

    ``item`` is one of ``ARRAY_ITEMS``; ``dims`` has a name (the same size wherever it stands in the call), a size, or
    None (any size) for each dimension; ``dims`` None: of any rank. A ``borrowed`` array may be read in its owner's
    memory; that is a way of transport, of which fingerprints and comparisons of versions take no notice.
    """

    item: str
    dims: tuple[str | int | None, ...] | None = None
    borrowed: bool = False


@dataclass(frozen=True)
class List:
    """A list of items of one type."""

    item: Type


@dataclass(frozen=True)
class Set:
    """A set of items of one type."""

    item: Type
    frozen: bool = False


@dataclass(frozen=True)
class Map:
    """A dict with keys and values of one type each."""

    key: Type
    value: Type


@dataclass(frozen=True)
class Tuple:
    """Tuple of these items in this order; if ``variadic``, of any number of the one item."""

    items: tuple[Type, ...]
    variadic: bool = False


@dataclass(frozen=True)
class Optional:
    """A value of a type, or None."""

    item: Type


@dataclass(frozen=True)
class Union:
    """One of several types, without a name of its own; None among them is an ``Optional`` around it."""

    items: tuple[Type, ...]


@dataclass(frozen=True)
class Literal:
    """One of these values: bool, int, str, bytes."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Named:
    """A struct, enum or one-of, by its full name: ``package.Name``, or ``Name`` without a package."""

    name: str


@dataclass(frozen=True)
class Opaque:
    """A Python type that the language has no word for; ``text`` is the annotation."""

    text: str


Type = Scalar | Array | List | Set | Map | Tuple | Optional | Union | Literal | Named | Opaque


# --- declarations ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Documented:
    doc: str = field(default="", compare=False)
    deprecated: str | None = field(default=None, compare=False)
    """Why not to use it any more, or None; may be an empty text."""
    position: Position | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Field(_Documented):
    """A field of a struct, an error or a one-of."""

    number: int
    name: str
    type: Type
    default: Any = MISSING
    """A value of a built-in type; of an enum the member's name, of a list a tuple."""


@dataclass(frozen=True)
class Struct(_Documented):
    """``reserved`` has the numbers and names of fields that were and must not come again."""

    name: str
    fields: tuple[Field, ...]
    reserved: tuple[int | str, ...] = field(default=(), compare=False)
    frozen: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class EnumMember(_Documented):
    """A member of an enum."""

    name: str
    value: int | str


@dataclass(frozen=True)
class Enum(_Documented):
    """All values are ints or all are strings; they, not the names, travel."""

    name: str
    members: tuple[EnumMember, ...]
    reserved: tuple[int | str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class OneOf(_Documented):
    """A named union. No two alternatives may look alike on the wire."""

    name: str
    alternatives: tuple[Type, ...]


@dataclass(frozen=True)
class Const(_Documented):
    """A constant."""

    name: str
    type: Type
    value: Any


@dataclass(frozen=True)
class Error(_Documented):
    """An error that methods declare; ``code`` is the name of its status code in lower case."""

    name: str
    code: str
    fields: tuple[Field, ...] = ()
    reserved: tuple[int | str, ...] = field(default=(), compare=False)


Declaration = Struct | Enum | OneOf | Const | Error


@dataclass(frozen=True)
class Parameter(_Documented):
    """A parameter of a method."""

    name: str
    type: Type
    default: Any = MISSING
    keyword_only: bool = False
    positional_only: bool = False
    stream: bool = False


@dataclass(frozen=True)
class Method(_Documented):
    """``name`` is short. A method with a stream parameter has no other; ``errors`` are full names."""

    name: str
    parameters: tuple[Parameter, ...]
    result: Type
    result_stream: bool = False
    errors: tuple[str, ...] = ()
    idempotent: bool = False


@dataclass(frozen=True)
class Service(_Documented):
    """``name`` is full, as on the wire; ``declarations`` has all that its methods name, by full name."""

    name: str
    methods: tuple[Method, ...]
    declarations: dict[str, Declaration] = field(default_factory=dict)


@dataclass(frozen=True)
class Module(_Documented):
    """One file, resolved: every name in it is full. ``imports`` are modules by the path as written."""

    package: str
    declarations: dict[str, Declaration]
    """Declarations of this file, by full name, in the order of the file."""
    services: dict[str, Service]
    imports: dict[str, Module] = field(default_factory=dict)
