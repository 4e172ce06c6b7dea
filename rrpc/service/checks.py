"""Annotations compiled to checks.

A check takes a value and gives it back, converted where the annotation asks for it (a map into its
dataclass, a value into its enum, an int into a float), or raises :class:`Mismatch`. Both sides use the
same checks: before a value is sent, and again when it has arrived.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import types
import typing
from typing import Any

import numpy as np

from .arrays import array_check, ndarray_check
from .containers import homogeneous, mapping_check, sequence_check, tuple_check, union_check
from .mismatch import ITERATORS, AnnotationError, Builder, Check, Compile, type_text
from .records import DataclassCheck, fields_of, named_tuple_check
from .scalars import BARE, SIMPLE, enum_check, instance_check, literal_check, numpy_scalar_check
from .sized import annotated_check

__all__ = ["compile_check", "verify"]


def compile_check(annotation: Any) -> Check:
    """The check for ``annotation``; :class:`AnnotationError` if it can't be one of an rrpc method."""
    try:
        return _cached(annotation)
    except TypeError as error:
        if isinstance(error, AnnotationError):
            raise
        return _compile(annotation)  # unhashable, for example Annotated[int, {}]


def verify(annotation: Any, seen: tuple[type, ...] = ()) -> None:
    """Compile what stands in the annotation's dataclasses, now that every name must mean something."""
    for argument in typing.get_args(annotation):
        verify(argument, seen)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) and annotation not in seen:
        for name, member in fields_of(annotation).items():
            _verify_member(f"{annotation.__name__}.{name}", member, (*seen, annotation))


def _verify_member(what: str, annotation: Any, seen: tuple[type, ...]) -> None:
    try:
        compile_check(annotation)
        verify(annotation, seen)
    except AnnotationError as error:
        raise AnnotationError(f"{what}: {error}") from None


def _compile(annotation: Any) -> Check:
    if annotation is Any or annotation is object:
        return lambda value: value
    if annotation is None:
        annotation = type(None)
    origin = typing.get_origin(annotation)
    if origin is None:
        return SIMPLE.get(annotation) or _compile_class(annotation)
    builder = _GENERIC.get(origin)
    if builder is None:
        raise AnnotationError(f"{type_text(annotation)} isn't supported")
    return builder(annotation, typing.get_args(annotation), compile_check)


_cached = functools.lru_cache(maxsize=1024)(_compile)


def _compile_class(kind: Any) -> Check:
    if isinstance(kind, typing.NewType):
        return compile_check(kind.__supertype__)
    if not isinstance(kind, type):
        raise AnnotationError(f"{type_text(kind)} isn't supported")
    if issubclass(kind, enum.Enum):
        return enum_check(kind)
    if issubclass(kind, BaseException):
        raise AnnotationError(f"{type_text(kind)} is an error, which is raised and never passed")
    if dataclasses.is_dataclass(kind):
        return DataclassCheck(kind, compile_check)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return named_tuple_check(kind, compile_check)
    if kind is np.ndarray:
        return array_check(np.generic)
    if issubclass(kind, np.generic):
        return numpy_scalar_check(kind)
    if kind in BARE:
        return instance_check(kind)
    raise AnnotationError(f"{type_text(kind)} isn't supported")


def _unsupported(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    raise AnnotationError(f"{type_text(annotation)} isn't supported")


def _stream(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    raise AnnotationError(f"{type_text(annotation)} is a stream: it stands alone, not within another type")


_GENERIC: dict[Any, Builder] = {
    **dict.fromkeys(ITERATORS, _stream),
    np.ndarray: ndarray_check,
    list: homogeneous(list, list),
    set: homogeneous(set, set),
    frozenset: homogeneous(frozenset, frozenset),
    collections.abc.Sequence: sequence_check,
    tuple: tuple_check,
    dict: mapping_check,
    collections.abc.Mapping: mapping_check,
    typing.Union: union_check,
    types.UnionType: union_check,
    typing.Literal: literal_check,
    typing.Annotated: annotated_check,
    np.dtype: _unsupported,
}
