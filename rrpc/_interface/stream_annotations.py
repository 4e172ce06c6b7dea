"""Streams in signatures: ``Iterator[T]`` is any number of T, one after the other."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from .borrowed import holds_borrowed
from .mismatch import ITERATORS, AnnotationError
from .parameter import Parameter

_NOT_BORROWED = "the items of a stream can't be borrowed: their memory is used again; write NDArray[...]"

SENDS, RECEIVES = 2, 4
"""What the client does in a call, as the request says it: it sends a stream of items, it receives one."""


def item_of(annotation: Any) -> tuple[Any, bool]:
    """Returns the type that is sent for an annotation, and whether it is a stream of items of that type.

    Raises AnnotationError if an iterator has no item type.
    """
    origin = typing.get_origin(annotation)
    if origin in (
        typing.Union,
        types.UnionType,
    ):  # as asyncio clients have it: AsyncIterable[T] | Iterable[T]
        members = typing.get_args(annotation)
        if all(typing.get_origin(member) in ITERATORS for member in members):
            annotation, origin = members[0], typing.get_origin(members[0])
    if isinstance(annotation, type) and annotation in ITERATORS:
        origin = annotation
    if origin not in ITERATORS:
        return annotation, False
    arguments = typing.get_args(annotation)
    if not arguments:
        raise AnnotationError(f"{origin.__name__} of what? Write {origin.__name__}[...]")
    # Generator[T, S, R] is one too: the type of its items comes first.
    return arguments[0], True


def kind_of(parameters: Sequence[Parameter], result: Any) -> int:
    """Returns which streams a method has: ``SENDS``, ``RECEIVES``, both or 0."""
    sends = any(item_of(parameter.annotation)[1] for parameter in parameters)
    return SENDS * sends | RECEIVES * item_of(result)[1]


def check_streams(
    name: str, parameters: Sequence[Parameter], result: Any, function: Callable[..., Any]
) -> None:
    """``AnnotationError`` where a method's streams stand as they can't."""
    item, received = item_of(result)
    if received and holds_borrowed(item):
        raise AnnotationError(f"{name}(): result: {_NOT_BORROWED}")
    for parameter in parameters:
        item, sent = item_of(parameter.annotation)
        if not sent:
            continue
        what = f"{name}(): parameter {parameter.name!r}: "
        if holds_borrowed(item):
            raise AnnotationError(what + _NOT_BORROWED)
        if len(parameters) > 1:
            raise AnnotationError(f"{what}a method that takes a stream takes nothing else")
        if parameter.default is not inspect.Parameter.empty:
            raise AnnotationError(f"{what}a stream has no default")
        if parameter.keyword_only or parameter.positional_only:
            raise AnnotationError(f"{what}a stream stands alone, without '*' and '/'")
    generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if generates and not received:
        kind = "AsyncIterator" if inspect.isasyncgenfunction(function) else "Iterator"
        raise AnnotationError(f"{name}(): it yields, so that its result is a stream: write -> {kind}[...]")
