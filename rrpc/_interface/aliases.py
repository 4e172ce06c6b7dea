"""Aliases of types as statements make them: ``type Ids = list[int]``, ``type Pair[T] = tuple[T, T]`` (PEP 695)."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from .mismatch import Check, Compile


def is_alias(annotation: Any) -> bool:
    """Returns whether it is such an alias, Python's own or that of typing_extensions, with its arguments or without."""
    return type(typing.get_origin(annotation) or annotation).__name__ == "TypeAliasType"


def expanded(annotation: Any, within: tuple[Any, ...] = ()) -> Any:
    """Returns the annotation with what each alias stands for; where one names itself it stays."""
    if is_alias(annotation):
        return annotation if annotation in within else expanded(_value(annotation), (*within, annotation))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if not arguments or origin is typing.Literal:
        return annotation
    if origin is typing.Annotated:
        inner, *notes = arguments
        base = expanded(inner, within)
        return annotation if base is inner else typing.Annotated[(base, *notes)]
    found = tuple(expanded(argument, within) for argument in arguments)
    if all(new is old for new, old in zip(found, arguments, strict=True)):
        return annotation
    # types.UnionType can't be subscripted.
    if isinstance(origin, type) and origin.__module__ != "types":
        return origin[found]  # type: ignore[index]
    return typing.Union[found]  # noqa: UP007


def _value(annotation: Any) -> Any:
    alias: Any = typing.get_origin(annotation) or annotation
    meaning = dict(zip(alias.__type_params__, typing.get_args(annotation), strict=False))
    return substituted(alias.__value__, meaning)


def substituted(annotation: Any, meaning: Mapping[Any, Any]) -> Any:
    """Returns the annotation with its type variables as ``meaning`` has them, and Any for the others."""
    if isinstance(annotation, typing.TypeVar):
        return meaning.get(annotation, Any)
    variables = getattr(annotation, "__parameters__", ())
    if not variables or isinstance(annotation, type):
        return annotation
    return annotation[tuple(meaning.get(variable, Any) for variable in variables)]


def alias_check(annotation: Any, compile_inner: Compile) -> Check:
    """Makes the check for a recursive alias; the check is compiled at first use."""
    known: Check | None = None

    def check(value: Any) -> Any:
        nonlocal known
        if known is None:
            known = compile_inner(expanded(annotation))
        return known(value)

    return check
