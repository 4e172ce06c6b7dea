"""Checks of single values: numbers, text, bytes, times, enums, literals, numpy scalars."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import functools
import pathlib
import typing
import uuid
from typing import Any

import numpy as np

from rrpc.codec import numpy_kind

from .foreign_arrays import view_of
from .mismatch import AnnotationError, Check, Compile, Mismatch, number_text, shown, type_text


def _int(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, (int, np.integer)):
        return value if isinstance(value, bool) else int(value)
    raise Mismatch("int", value)


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (float, int, np.floating, np.integer)):
        try:
            return float(value)
        except OverflowError:
            raise Mismatch("float", value, "too large") from None
    raise Mismatch("float", value)


def _bool(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise Mismatch("bool", value)


def _str(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):
        # Past the __str__ of a subclass, which may give another text.
        return str.__str__(value)
    raise Mismatch("str", value)


def _complex(value: Any) -> complex:
    if isinstance(value, (complex, float, int, np.number)):
        try:
            return complex(value)
        except OverflowError:
            raise Mismatch("complex", value, "too large") from None
    raise Mismatch("complex", value)


def _none(value: Any) -> None:
    if value is not None:
        raise Mismatch("None", value)


def _bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if (view := view_of(value)) is not None:
        return bytes(view)
    raise Mismatch("bytes", value, "use .encode()" if isinstance(value, str) else "")


def _bytearray(value: Any) -> bytearray:
    if isinstance(value, (bytes, memoryview)):
        return bytearray(value)
    view = view_of(value)
    return typing.cast(bytearray, _of(bytearray, value)) if view is None else bytearray(view)


def _memoryview(value: Any) -> memoryview:
    if isinstance(value, (bytes, bytearray)):
        return memoryview(value)
    view = view_of(value)
    return typing.cast(memoryview, _of(memoryview, value)) if view is None else view


def _of(kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    raise Mismatch(type_text(kind), value)


def instance_check(kind: type) -> Check:
    return functools.partial(_of, kind)


SIMPLE: dict[Any, Check] = {
    int: _int,
    float: _float,
    bool: _bool,
    str: _str,
    complex: _complex,
    type(None): _none,
    bytes: _bytes,
    bytearray: _bytearray,
    memoryview: _memoryview,
}
BARE = {
    list,
    tuple,
    dict,
    set,
    frozenset,
    array.array,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
}
PATHS = {pathlib.Path, pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath}


def path_check(kind: type[pathlib.PurePath]) -> Check:
    """Gives a path for a path or a text, which is what travels: where it leads, each end knows for itself."""

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, (str, pathlib.PurePath)):
            return kind(value)
        raise Mismatch(kind.__name__, value, "use .decode()" if isinstance(value, bytes) else "")

    return check


# Built-in types that a numpy type takes without loss of kind: no float becomes an integer.
_BUILTINS_FOR: tuple[tuple[type, tuple[type, ...]], ...] = (
    (np.bool_, (bool,)),
    (np.integer, (int, bool)),
    (np.floating, (int, float, bool)),
    (np.complexfloating, (int, float, bool, complex)),
)


def numpy_scalar_check(kind: type[np.generic]) -> Check:
    if kind is np.object_:
        raise AnnotationError("numpy.object_ isn't supported: Python objects can't be sent")
    exact, builtins = _builtins_for(kind)

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if type(value) in builtins:
            try:
                made = kind(value)
            except (OverflowError, TypeError, ValueError):
                raise Mismatch(kind.__name__, value, f"{number_text(value)} doesn't fit") from None
            if not exact or int(made) == value:  # ml_dtypes' integers wrap around
                return made
            raise Mismatch(kind.__name__, value, f"{number_text(value)} doesn't fit")
        raise Mismatch(kind.__name__, value)

    return check


def _builtins_for(kind: type[np.generic]) -> tuple[bool, tuple[type, ...]]:
    """Returns whether ``kind`` has exact values only, and the built-in types that it takes."""
    base = numpy_kind(kind)
    builtins = next((kinds for known, kinds in _BUILTINS_FOR if issubclass(base, known)), ())
    return base is not kind and base is np.int64, builtins


def enum_check(kind: type[enum.Enum]) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        try:
            return kind(value)
        except ValueError:
            raise Mismatch(kind.__name__, value, f"it is {shown(value)}") from None

    return check


def literal_check(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    # With the types, as 1 and True are equal.
    choices = {(type(a), a): a for a in arguments}
    # Enums travel as their values.
    choices |= {(type(a.value), a.value): a for a in arguments if isinstance(a, enum.Enum)}
    expected = "one of " + ", ".join(map(repr, arguments))

    def check(value: Any) -> Any:
        try:
            return choices[type(value), value]
        except (KeyError, TypeError):
            raise Mismatch(expected, value, f"it is {shown(value)}") from None

    return check
