"""Type of checks, the errors that they raise, and the names of values and annotations in messages."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np

from rrpc.codec import Record
from rrpc.types import Lending, Shape, Sized

Check = Callable[[Any], Any]
Compile = Callable[[Any], Check]
Builder = Callable[[Any, tuple[Any, ...], Compile], Check]
"""Makes the check of a generic annotation from (annotation, its arguments, what compiles those)."""

EXACT = (int, float, str, bool, type(None))
"""Annotations whose values need no more than this check before they are packed."""

ITERATORS = frozenset(
    getattr(collections.abc, start + kind)
    for start in ("", "Async")
    for kind in ("Iterator", "Iterable", "Generator")
)
"""Of an item type: a stream of such items."""


class AnnotationError(TypeError):
    """An annotation that can't be checked or sent."""


class Mismatch(Exception):
    """A value isn't what its annotation says; the path leads to it, outermost step first."""

    def __init__(self, expected: str, value: Any, hint: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        # Text and not the value: an error that somebody keeps would keep the caller's arrays.
        self.got = value_text(value)
        self.hint = hint
        self.path = ""

    def __str__(self) -> str:
        return f"expected {self.expected}, got {self.got}{f' ({self.hint})' if self.hint else ''}"


def value_text(value: Any) -> str:
    """Describes the type of a value briefly, for error messages."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    if value is None:
        return "None"
    if isinstance(value, Record):
        return value.type_name
    return type(value).__name__


def shown(value: Any) -> str:
    """Shows a value briefly; an int in it may have more digits than str() writes, which raises ValueError."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return number_text(value) if isinstance(value, int) else "one with very long numbers"


def number_text(number: Any) -> str:
    """Shows a number; a long int, which str() may refuse to write, by its length."""
    long = isinstance(number, int) and number.bit_length() >= 128
    return f"a number of {number.bit_length()} bits" if long else str(number)


def type_text(annotation: Any) -> str:
    """An annotation as a user would write it."""
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    if typing.get_origin(annotation) is np.ndarray:
        item = item_type(annotation)
        return f"NDArray[{'Any' if item is np.generic else type_text(item)}]"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _annotated_text(arguments[0], arguments[1:])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_text, arguments))
    if arguments and isinstance(origin, type) and origin is not np.dtype:
        inner = ", ".join("..." if item is Ellipsis else type_text(item) for item in arguments)
        return f"{origin.__name__}[{inner}]"
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def _annotated_text(base: Any, notes: tuple[Any, ...]) -> str:
    others = tuple(note for note in notes if not isinstance(note, Lending))
    if len(others) < len(notes):
        return f"rrpc.Borrowed[{_annotated_text(base, others)}]"
    # The first note counts, as it does in checks.
    for note in notes:
        if isinstance(note, Sized):
            return note.name
        if isinstance(note, Shape):
            return f"Annotated[{type_text(base)}, {note!r}]"
    return type_text(base)


def item_type(annotation: Any) -> Any:
    """float32 of NDArray[np.float32]."""
    arguments = typing.get_args(annotation)
    item = typing.get_args(arguments[-1]) if arguments else ()
    kind = item[0] if item else np.generic
    return np.generic if kind is Any or isinstance(kind, typing.TypeVar) else typing.get_origin(kind) or kind
