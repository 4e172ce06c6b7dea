"""Checks of lists, tuples, sets, maps and unions."""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rrpc.codec import Record, has_fields

from .libraries import library_of
from .mismatch import EXACT, AnnotationError, Builder, Check, Compile, Mismatch, shown, type_text


def _each(check: Check, values: Any, exact: Any) -> Any:
    """The values checked; the same object if none changed."""
    # One look at the types takes the place of a check of each value.
    if exact is not None and set(map(type, values)) <= {exact}:
        return values
    checked: list[Any] = []
    try:
        for value in values:
            checked.append(check(value))  # noqa: PERF401 - its length tells where it failed
    except Mismatch as mismatch:
        mismatch.path = f"[{len(checked)}]{mismatch.path}"
        raise
    return values if all(map(operator.is_, checked, values)) else checked


def homogeneous(kind: type | tuple[type, ...], build: Callable[[Any], Any]) -> Builder:
    def builder(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
        inner = compile_inner(arguments[0])
        if kind in (set, frozenset):
            _must_be_hashable(annotation, arguments[0])
        exact = arguments[0] if arguments[0] in (*EXACT, bytes, memoryview) else None
        expected = type_text(annotation)

        def check(value: Any) -> Any:
            if not isinstance(value, kind):
                raise Mismatch(expected, value)
            checked = _each(inner, value, exact)
            return value if checked is value else build(checked)

        return check

    return builder


def _must_be_hashable(annotation: Any, key: Any) -> None:
    kind = typing.get_origin(key) or key
    if has_fields(kind) or kind in (list, dict, set, bytearray, np.ndarray) or library_of(kind):
        raise AnnotationError(
            f"{type_text(annotation)} isn't supported: {type_text(key)} can't be a dict's key or in a set"
        )


def sequence_check(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    as_list = homogeneous(list, list)(annotation, arguments, compile_inner)
    as_tuple = homogeneous(tuple, tuple)(annotation, arguments, compile_inner)
    return lambda value: as_tuple(value) if isinstance(value, tuple) else as_list(value)


def tuple_check(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return homogeneous(tuple, tuple)(annotation, arguments, compile_inner)
    checks = [compile_inner(argument) for argument in arguments]
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
        return value if all(map(operator.is_, checked, value)) else tuple(checked)

    return check


def mapping_check(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    check_key, check_value = compile_inner(arguments[0]), compile_inner(arguments[1])
    _must_be_hashable(annotation, arguments[0])
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
            mismatch.path = f"[{shown(key)}]{mismatch.path}"
            raise
        return checked

    return check


def union_check(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    # An int goes to what is of ints before a float takes it, or a complex.
    arguments = tuple(sorted(arguments, key=_converts))
    checks = [compile_inner(argument) for argument in arguments]
    exact = {
        argument: check for argument, check in zip(arguments, checks, strict=True) if _is_class(argument)
    }
    named = {type_text(kind): check for kind, check in exact.items() if has_fields(kind)}
    expected = type_text(annotation)

    def check(value: Any) -> Any:
        # An alternative of just this class says best what is wrong with the value, so the others aren't tried.
        by_type = exact.get(type(value)) or (named.get(value.type_name) if type(value) is Record else None)
        if by_type is not None:
            return by_type(value)
        found: list[Mismatch] = []
        try:
            for attempt in checks:
                try:
                    return attempt(value)
                except Mismatch as mismatch:  # noqa: PERF203
                    found.append(mismatch.with_traceback(None))  # whose frames have the value
            raise _telling(found, arguments) or Mismatch(expected, value)
        finally:
            found.clear()  # what is raised knows this frame

    return check


def _telling(found: Sequence[Mismatch], arguments: Sequence[Any]) -> Mismatch | None:
    """Gives what the check of X found for Optional[X], where that says more than the union does."""
    telling = [m for m, kind in zip(found, arguments, strict=True) if kind is not type(None)]
    return telling[0] if len(telling) == 1 and (telling[0].path or telling[0].hint) else None


def _converts(annotation: Any) -> int:
    base = annotation
    if typing.get_origin(annotation) is typing.Annotated:
        base = typing.get_args(annotation)[0]
    return 2 if base is complex else 1 if base is float else 0


def _is_class(annotation: Any) -> bool:
    return isinstance(annotation, type) and not typing.get_args(annotation)
