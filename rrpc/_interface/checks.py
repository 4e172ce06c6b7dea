"""Annotations compiled to checks.

A check takes a value and gives it back, converted where the annotation asks for it (a map into its
dataclass, a value into its enum, an int into a float), or raises ``Mismatch``. Both sides use the
same checks: before a value is sent, and again when it has arrived.
"""

# Checks have no state but what they compile at first use, so any thread may run them. `lru_cache` has a lock of its
# own.

from __future__ import annotations

import collections.abc
import enum
import functools
import types
import typing
from typing import Any

import numpy as np

from rrpc.codec import instead_of, is_model

from .aliases import alias_check, expanded, is_alias
from .arrays import array_check, ndarray_check
from .borrowed import OWN_FIELDS, holds_borrowed
from .containers import homogeneous, mapping_check, sequence_check, tuple_check, union_check
from .libraries import library_of
from .members import fields_of, has_members, is_named_tuple
from .mismatch import ITERATORS, AnnotationError, Builder, Check, Compile, type_text
from .records import class_check, named_tuple_check
from .scalars import (
    BARE,
    PATHS,
    SIMPLE,
    enum_check,
    instance_check,
    literal_check,
    numpy_scalar_check,
    path_check,
)
from .sized import annotated_check
from .table_checks import table_check
from .tensor_checks import tensor_check


def compile_check(annotation: Any) -> Check:
    """The check for ``annotation``; ``AnnotationError`` if it can't be one of an rrpc method."""
    try:
        return _cached(annotation)
    except TypeError as error:
        if isinstance(error, AnnotationError):
            raise
        return _compile(annotation)  # unhashable, for example Annotated[int, {}]


class _Part:
    """A part of an annotation that is to be verified: a field of a class, or what stands in another part."""

    __slots__ = ("annotation", "name", "outer")

    def __init__(self, annotation: Any, outer: _Part | None = None, name: str = "") -> None:
        self.annotation = annotation
        self.outer = outer
        self.name = name
        """The field's, if it is one; ``outer`` is its class."""

    def what(self) -> str:
        """Returns where it stands: ``Row.kind: Kind.name: ``."""
        names, part = [], self
        while part.outer is not None:
            if part.name:
                names.append(f"{type_text(part.outer.annotation)}.{part.name}: ")
            part = part.outer
        return "".join(reversed(names))

    def inner(self) -> list[_Part]:
        """Returns the parts that stand in it. Raises AnnotationError if the part itself is wrong."""
        annotation = self.annotation
        if self.name:
            compile_check(annotation)
        if is_alias(annotation):  # one that names itself
            meant = expanded(annotation)
            compile_check(meant)
            return [_Part(meant, self)]
        parts = [_Part(argument, self) for argument in typing.get_args(annotation)]
        if has_members(annotation):
            fields = fields_of(annotation)
            for name, member in fields.items():
                if holds_borrowed(member):
                    raise AnnotationError(f"{type_text(annotation)}.{name}: {OWN_FIELDS}")
            if not is_model(annotation):  # what a model's fields may be is Pydantic's affair
                parts += [_Part(member, self, name) for name, member in fields.items()]
        return parts


def verify(annotation: Any) -> None:
    """Compile what stands in the annotation's classes, now that every name must mean something.

    Each class is looked at once, wherever it is named. A chain of classes may be long, so it isn't followed by
    recursion.
    """
    seen: set[Any] = set()
    unhashable: list[Any] = []
    waiting = [_Part(annotation)]
    while waiting:
        part = waiting.pop()
        try:
            if part.annotation in seen:
                continue
            seen.add(part.annotation)
        except TypeError:  # for example Annotated[int, {}]
            if part.annotation in unhashable:
                continue
            unhashable.append(part.annotation)
        try:
            waiting += reversed(part.inner())
        except AnnotationError as error:
            raise AnnotationError(f"{part.what()}{error}") from None


def _compile(annotation: Any) -> Check:
    if annotation is Any or annotation is object:
        return lambda value: value
    if annotation is None:
        annotation = type(None)
    if is_alias(annotation):
        return alias_check(annotation, compile_check)
    origin = typing.get_origin(annotation)
    if origin is None:
        return SIMPLE.get(annotation) or _compile_class(annotation)
    if has_members(annotation):
        return class_check(annotation, compile_check)
    if is_named_tuple(origin):
        return named_tuple_check(annotation, compile_check)
    builder = _GENERIC.get(origin)
    if builder is None:
        raise _unsupported(annotation)
    return builder(annotation, typing.get_args(annotation), compile_check)


# Bounded: interfaces that are learned at run time bring classes of their own, which a cache would keep.
_cached = functools.lru_cache(maxsize=1024)(_compile)


def _compile_class(kind: Any) -> Check:
    if isinstance(kind, typing.NewType):
        return compile_check(kind.__supertype__)
    if not isinstance(kind, type):
        raise _unsupported(kind)
    if issubclass(kind, enum.Enum):
        return enum_check(kind)
    if issubclass(kind, BaseException):
        raise AnnotationError(f"{type_text(kind)} is an error, which is raised and never passed")
    if has_members(kind):
        return class_check(kind, compile_check)
    if is_named_tuple(kind):
        return named_tuple_check(kind, compile_check)
    if kind is np.ndarray:
        return array_check(np.generic)
    if issubclass(kind, np.generic):
        return numpy_scalar_check(kind)
    if kind in PATHS:
        return path_check(kind)
    if kind in BARE:
        return instance_check(kind)
    if (library := library_of(kind)) is not None:
        return table_check(library, kind) if library.is_table else tensor_check(library, kind)
    raise _unsupported(kind)


def _unsupported(annotation: Any) -> AnnotationError:
    way = instead_of(typing.get_origin(annotation) or annotation)
    return AnnotationError(f"{type_text(annotation)} isn't supported{way}")


def _bare_dtype(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    raise _unsupported(annotation)


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
    np.dtype: _bare_dtype,
}
