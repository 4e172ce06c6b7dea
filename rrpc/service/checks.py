"""Annotations compiled to checks.

A check takes a value and gives it back, converted where the annotation asks for it (a map into its
dataclass, a value into its enum, an int into a float), or raises :class:`Mismatch`. Both sides use the
same checks: before a value is sent, and again when it has arrived.
"""

from __future__ import annotations

import array
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from rrpc.codec import Record

__all__ = ["AnnotationError", "Check", "Mismatch", "compile_check", "type_text"]

Check = Callable[[Any], Any]

EXACT = (int, float, str, bool, type(None))
"""Annotations whose values need no more than this check before they are packed."""


class AnnotationError(TypeError):
    """An annotation that can't be checked or sent."""


class Mismatch(Exception):
    """A value isn't what its annotation says; the path leads to it, outermost step first."""

    def __init__(self, expected: str, value: Any, hint: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.got = value_text(value)
        self.hint = hint
        self.path = ""

    def __str__(self) -> str:
        return f"expected {self.expected}, got {self.got}{f' ({self.hint})' if self.hint else ''}"


def value_text(value: Any) -> str:
    """What a value is, in few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    if value is None:
        return "None"
    if isinstance(value, Record):
        return value.type_name
    return type(value).__name__


def type_text(annotation: Any) -> str:
    """An annotation as a user would write it."""
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    if typing.get_origin(annotation) is np.ndarray:
        return f"NDArray[{type_text(_item_type(annotation))}]"
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def compile_check(annotation: Any) -> Check:
    """The check for ``annotation``; :class:`AnnotationError` if it can't be one of an rrpc method."""
    try:
        return _cached(annotation)
    except TypeError as error:
        if isinstance(error, AnnotationError):
            raise
        return _compile(annotation)  # unhashable, for example Literal[[...]]


def _compile(annotation: Any) -> Check:
    if annotation is Any or annotation is object:
        return lambda value: value
    if annotation is None:
        annotation = type(None)
    simple = _SIMPLE.get(annotation)
    if simple is not None:
        return simple
    origin = typing.get_origin(annotation)
    if origin is None:
        return _compile_class(annotation)
    builder = _GENERIC.get(origin)
    if builder is None:
        raise AnnotationError(f"{type_text(annotation)} isn't supported")
    return builder(annotation, typing.get_args(annotation))


_cached = functools.lru_cache(maxsize=1024)(_compile)


def _compile_class(kind: Any) -> Check:
    if isinstance(kind, typing.NewType):
        return compile_check(kind.__supertype__)
    if not isinstance(kind, type):
        raise AnnotationError(f"{type_text(kind)} isn't supported")
    if issubclass(kind, enum.Enum):
        return _enum(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if kind is np.ndarray:
        return _array(np.generic)
    if issubclass(kind, np.generic):
        return _numpy_scalar(kind)
    if kind in _BARE:
        return _instance(kind)
    raise AnnotationError(f"{type_text(kind)} isn't supported")


# Plain values


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
        return str.__str__(value)
    raise Mismatch("str", value)


def _complex(value: Any) -> complex:
    if isinstance(value, (complex, float, int, np.number)):
        return complex(value)
    raise Mismatch("complex", value)


def _none(value: Any) -> None:
    if value is not None:
        raise Mismatch("None", value)


def _bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise Mismatch("bytes", value, "use .encode()" if isinstance(value, str) else "")


def _bytearray(value: Any) -> bytearray:
    if isinstance(value, (bytes, memoryview)):
        return bytearray(value)
    return typing.cast(bytearray, _of(bytearray, value))


def _memoryview(value: Any) -> memoryview:
    if isinstance(value, (bytes, bytearray)):
        return memoryview(value)
    return typing.cast(memoryview, _of(memoryview, value))


def _of(kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    raise Mismatch(type_text(kind), value)


def _instance(kind: type) -> Check:
    return functools.partial(_of, kind)


_SIMPLE: dict[Any, Check] = {
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
_BARE = {
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


# Arrays


def _item_type(annotation: Any) -> Any:
    """float32 of NDArray[np.float32]."""
    arguments = typing.get_args(annotation)
    item = typing.get_args(arguments[-1]) if arguments else ()
    kind = item[0] if item else np.generic
    return np.generic if kind is Any or isinstance(kind, typing.TypeVar) else typing.get_origin(kind) or kind


def _array(kind: Any) -> Check:
    if kind is np.object_:
        raise AnnotationError("NDArray[object_] isn't supported: Python objects can't be sent")
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise AnnotationError(f"an array of {type_text(kind)} isn't supported")
    any_item = kind is np.generic
    expected = "array" if any_item else f"{kind.__name__} array"

    def check(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            item = value.dtype.type
            if any_item or item is kind or issubclass(item, kind) or _same(value.dtype, kind):
                return value
            raise Mismatch(expected, value, f"use .astype(np.{kind.__name__})")
        hint = f"use np.asarray(..., dtype=np.{kind.__name__})" if not any_item else "use np.asarray(...)"
        raise Mismatch(expected, value, hint if isinstance(value, (list, tuple, np.generic)) else "")

    return check


def _same(dtype: np.dtype[Any], kind: type[np.generic]) -> bool:
    # C's long and long long are two numpy types of one layout.
    return issubclass(kind, np.integer) and kind not in _ABSTRACT and dtype == np.dtype(kind)


_ABSTRACT = {np.integer, np.signedinteger, np.unsignedinteger}


def _ndarray(annotation: Any, arguments: tuple[Any, ...]) -> Check:
    return _array(_item_type(annotation))


def _numpy_scalar(kind: type[np.generic]) -> Check:
    if kind is np.object_:
        raise AnnotationError("numpy.object_ isn't supported: Python objects can't be sent")

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if type(value) in (int, float, bool) and issubclass(kind, np.number):
            try:
                return kind(value)
            except (OverflowError, TypeError, ValueError):
                raise Mismatch(kind.__name__, value, f"{value} doesn't fit") from None
        raise Mismatch(kind.__name__, value)

    return check


# Containers


def _each(check: Check, values: Any, exact: Any) -> Any:
    """The values checked; the same object if none changed."""
    if exact is not None and set(map(type, values)) <= {exact}:
        return values
    checked: list[Any] = []
    try:
        for value in values:
            checked.append(check(value))  # noqa: PERF401 - its length tells where it failed
    except Mismatch as mismatch:
        mismatch.path = f"[{len(checked)}]{mismatch.path}"
        raise
    return values if all(map(_identical, checked, values)) else checked


def _identical(a: Any, b: Any) -> bool:
    return a is b


def _homogeneous(kind: type | tuple[type, ...], build: Callable[[Any], Any]) -> _Builder:
    def builder(annotation: Any, arguments: tuple[Any, ...]) -> Check:
        inner = compile_check(arguments[0])
        exact = arguments[0] if arguments[0] in EXACT or arguments[0] is bytes else None
        expected = type_text(annotation)

        def check(value: Any) -> Any:
            if not isinstance(value, kind):
                raise Mismatch(expected, value)
            checked = _each(inner, value, exact)
            return value if checked is value else build(checked)

        return check

    return builder


def _sequence(annotation: Any, arguments: tuple[Any, ...]) -> Check:
    as_list = _homogeneous(list, list)(annotation, arguments)
    as_tuple = _homogeneous(tuple, tuple)(annotation, arguments)
    return lambda value: as_tuple(value) if isinstance(value, tuple) else as_list(value)


def _tuple(annotation: Any, arguments: tuple[Any, ...]) -> Check:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _homogeneous(tuple, tuple)(annotation, arguments)
    checks = [compile_check(argument) for argument in arguments]
    expected = type_text(annotation)

    def check(value: Any) -> Any:
        if not isinstance(value, tuple):
            hint = "use tuple(...)" if isinstance(value, list) else ""
            raise Mismatch(expected, value, hint)
        if len(value) != len(checks):
            raise Mismatch(f"{expected} of {len(checks)} items", value, f"it has {len(value)}")
        checked = []
        try:
            for check_item, item in zip(checks, value, strict=True):
                checked.append(check_item(item))
        except Mismatch as mismatch:
            mismatch.path = f"[{len(checked)}]{mismatch.path}"
            raise
        return value if all(map(_identical, checked, value)) else tuple(checked)

    return check


def _mapping(annotation: Any, arguments: tuple[Any, ...]) -> Check:
    check_key, check_value = compile_check(arguments[0]), compile_check(arguments[1])
    expected = type_text(annotation)

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Mismatch(expected, value)
        checked = {}
        key: Any = None
        try:
            for key, item in value.items():
                checked[check_key(key)] = check_value(item)
        except Mismatch as mismatch:
            mismatch.path = f"[{key!r:.60}]{mismatch.path}"
            raise
        return checked

    return check


def _union(annotation: Any, arguments: tuple[Any, ...]) -> Check:
    checks = [compile_check(argument) for argument in arguments]
    exact = {
        argument: check for argument, check in zip(arguments, checks, strict=True) if _is_class(argument)
    }
    named = {type_text(kind): check for kind, check in exact.items() if dataclasses.is_dataclass(kind)}
    expected = type_text(annotation)

    def check(value: Any) -> Any:
        by_type = exact.get(type(value)) or (named.get(value.type_name) if type(value) is Record else None)
        if by_type is not None:
            return by_type(value)
        mismatches = []
        for attempt in checks:
            try:
                return attempt(value)
            except Mismatch as mismatch:  # noqa: PERF203
                mismatches.append(mismatch)
        # Optional[X]: what X's own check found says more than the union does.
        telling = [m for m, kind in zip(mismatches, arguments, strict=True) if kind is not type(None)]
        if len(telling) == 1 and (telling[0].path or telling[0].hint):
            raise telling[0]
        raise Mismatch(expected, value)

    return check


def _is_class(annotation: Any) -> bool:
    return isinstance(annotation, type) and not typing.get_args(annotation)


def _literal(annotation: Any, arguments: tuple[Any, ...]) -> Check:
    plain = {(type(a), a): a for a in arguments}
    plain |= {(type(a.value), a.value): a for a in arguments if isinstance(a, enum.Enum)}
    expected = "one of " + ", ".join(map(repr, arguments))

    def check(value: Any) -> Any:
        try:
            return plain[type(value), value]
        except (KeyError, TypeError):
            raise Mismatch(expected, value, f"it is {value!r:.60}") from None

    return check


def _annotated(annotation: Any, arguments: tuple[Any, ...]) -> Check:
    return compile_check(arguments[0])


_Builder = Callable[[Any, tuple[Any, ...]], Check]
_GENERIC: dict[Any, _Builder] = {
    np.ndarray: _ndarray,
    list: _homogeneous(list, list),
    set: _homogeneous(set, set),
    frozenset: _homogeneous(frozenset, frozenset),
    collections.abc.Sequence: _sequence,
    tuple: _tuple,
    dict: _mapping,
    collections.abc.Mapping: _mapping,
    typing.Union: _union,
    types.UnionType: _union,
    typing.Literal: _literal,
    typing.Annotated: _annotated,
    np.dtype: lambda annotation, arguments: _unsupported(annotation),
}


def _unsupported(annotation: Any) -> Check:
    raise AnnotationError(f"{type_text(annotation)} isn't supported")


# Classes with members


def _enum(kind: type[enum.Enum]) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        try:
            return kind(value)
        except ValueError:
            raise Mismatch(kind.__name__, value, f"it is {value!r:.60}") from None

    return check


def _dataclass(kind: type) -> Check:
    return _DataclassCheck(kind)


class _DataclassCheck:
    """Gives an instance for an instance, a dict or a Record of the class's name."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._fields: dict[str, Check] | None = None
        self._required: set[str] = set()

    def _resolve(self) -> dict[str, Check]:
        # At first use: a dataclass may name itself, or one that is defined after it.
        try:
            hints = typing.get_type_hints(self._kind, include_extras=True)
        except NameError as error:
            raise AnnotationError(f"{self._kind.__name__}: {error}") from None
        members = [field for field in dataclasses.fields(self._kind) if field.init]
        fields = {field.name: compile_check(hints[field.name]) for field in members}
        missing = dataclasses.MISSING
        self._required = {f.name for f in members if f.default is missing and f.default_factory is missing}
        self._fields = fields
        return fields

    def __call__(self, value: Any) -> Any:
        kind = self._kind
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
            raise Mismatch(kind.__name__, value, f"with unknown {', '.join(sorted(map(str, unknown)))}")
        checked = _members(fields, members)
        if isinstance(value, kind) and all(checked[name] is members[name] for name in checked):
            return value
        try:
            return kind(**checked)
        except (TypeError, ValueError) as error:  # its own __post_init__
            raise Mismatch(kind.__name__, value, str(error)) from None


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


def _named_tuple(kind: Any) -> Check:
    hints = typing.get_type_hints(kind, include_extras=True)
    check_items = _tuple(kind, tuple(hints.get(name, Any) for name in kind._fields))

    def check(value: Any) -> Any:
        checked = check_items(value)
        return checked if type(checked) is kind else kind(*checked)

    return check
