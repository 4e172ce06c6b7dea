"""Rules for the names of declarations and their parts. Each check returns a name's problem, or None."""

from __future__ import annotations

import keyword

from rrpc._interface import OF_EVERY_ERROR
from rrpc._interface.interface import RESERVED_METHODS, RESERVED_PARAMETERS
from rrpc.errors import StatusCode
from rrpc.schema import ARRAY_ITEMS, SCALARS

__all__ = [
    "CONTAINERS",
    "ENUM_NAMES",
    "ERROR_CODES",
    "ERROR_NAMES",
    "FIELD_NUMBER_MAX",
    "GENERATED_NAMES",
    "RANK_MAX",
    "RESERVED_METHODS",
    "RESERVED_PARAMETERS",
    "STRUCT_NAMES",
    "VALUE_WORDS",
    "declaration_name",
    "error_field_name",
    "field_name",
    "member_name",
    "method_name",
    "parameter_name",
    "python_name",
    "type_hint",
]

FIELD_NUMBER_MAX = 65535
RANK_MAX = 64
CONTAINERS = {
    "array": 1,
    "list": 1,
    "set": 1,
    "frozenset": 1,
    "map": 2,
    "tuple": None,
    "literal": None,
    "borrowed": 1,
}
"""With the number of types each holds, if that is fixed."""

ERROR_CODES = [code.name.lower() for code in StatusCode if code is not StatusCode.OK]

_PYTHON = frozenset(keyword.kwlist)
VALUE_WORDS = frozenset({"none", "true", "false", "inf", "nan"})
_TYPE_WORDS = frozenset({*SCALARS, *ARRAY_ITEMS, *CONTAINERS, "stream", "throws", *VALUE_WORDS})
# What generated modules say themselves.
GENERATED_NAMES = frozenset(
    {"Annotated", "Any", "ClassVar", "Final", "Literal", "NDArray", "TYPE_CHECKING", "TypeAlias"}
    | {"AsyncIterable", "AsyncIterator", "Iterable", "Iterator"}
    | {
        "abc",
        "annotations",
        "collections",
        "dataclass",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "field",
        "functools",
        "ml_dtypes",
        "np",
        "numpy",
        "rrpc",
    }
    | {"typing", "uuid", "dict", "memoryview", "object", "str"}
)
ENUM_NAMES = frozenset({"mro", "name", "value"})
STRUCT_NAMES = frozenset({"rrpc_numbers", "rrpc_reserved"})
ERROR_NAMES = OF_EVERY_ERROR

_ALIASES = {
    "str": "string",
    "text": "string",
    "dict": "map",
    "integer": "int",
    "long": "i64",
    "short": "i16",
    "byte": "u8",
    "boolean": "bool",
    "double": "float",
    "number": "float",
    "void": "none",
    "null": "none",
    "None": "none",
    "object": "any",
    "Any": "any",
    "timestamp": "datetime",
    "timedelta": "duration",
    "memoryview": "buffer",
    "vec": "list",
    "vector": "list",
    "ndarray": "array",
    "tensor": "array",
    "optional": "T?",
    "union": "A | B",
    **{f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)},
    "bool8": "bool",
    "complex64": "c64",
    "complex128": "c128",
}


def type_hint(name: str) -> str:
    """Returns a hint with this language's name for a type of another language, or an empty string."""
    return f"; here it is {_ALIASES[name]}" if name in _ALIASES else ""


def python_name(name: str, what: str) -> str | None:
    """Names of anything."""
    if name in _PYTHON:
        return f"{name!r} is a word of Python's: choose another name for {what}"
    if name.startswith("__"):
        return f"{what} can't be called {name!r}: names that begin with '__' are Python's own"
    if name == "_":
        return f"{what} can't be called '_'"
    return None


def declaration_name(name: str) -> str | None:
    """Names of structs, enums, unions, errors, constants and services."""
    if name in _TYPE_WORDS:
        return f"{name!r} is a word of the language: choose another name"
    if name in GENERATED_NAMES:
        return f"{name!r} has a meaning of its own in generated code: choose another name"
    return python_name(name, "a declaration")


def field_name(name: str) -> str | None:
    """Returns why a field of a struct can't have the name, or None."""
    if name in STRUCT_NAMES:
        return f"a field can't be called {name!r}: generated classes have that themselves"
    return python_name(name, "a field")


def error_field_name(name: str) -> str | None:
    """Returns why a field of an error can't have the name, or None."""
    if name in ERROR_NAMES:
        return f"a field of an error can't be called {name!r}: every error has that itself"
    return field_name(name)


def member_name(name: str) -> str | None:
    """Returns why a member of an enum can't have the name, or None."""
    if name in VALUE_WORDS:
        return f"{name!r} is a value of its own: choose another name for a member"
    if name in ENUM_NAMES or name.startswith("_"):
        return f"a member can't be called {name!r}: Python's enums keep that for themselves"
    return python_name(name, "a member")


def method_name(name: str) -> str | None:
    """Returns why a method can't have the name, or None."""
    if name in RESERVED_METHODS or name.startswith("_"):
        return f"a method can't be called {name!r}: a client has that itself"
    return python_name(name, "a method")


def parameter_name(name: str) -> str | None:
    """Returns why a parameter can't have the name, or None."""
    if name in RESERVED_PARAMETERS or name == "self":
        return f"a parameter can't be called {name!r}: every call has that itself"
    return python_name(name, "a parameter")
