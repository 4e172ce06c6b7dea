"""Borrowed arrays: where ``rrpc.Borrowed`` stands in an annotation, and what it makes of values there."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np

from rrpc.codec import Lent, own
from rrpc.types import Lending

from .aliases import expanded, is_alias
from .mismatch import AnnotationError, type_text

OWN_FIELDS = "a field can't be borrowed: rrpc.Borrowed is for the parameters and results of methods"

_Step = Callable[[Any, Any], Any]
"""Gives what stands in a value's place, given the value and the caller's own array (``out=``), which stays as it is."""

_SEQUENCES = (list, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)


def is_lending(notes: tuple[Any, ...]) -> bool:
    """Returns whether notes of ``Annotated`` are those of ``rrpc.Borrowed``."""
    return any(isinstance(note, Lending) for note in notes)


def holds_borrowed(annotation: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Returns whether an annotation has ``rrpc.Borrowed`` in it; the fields of its classes are left out."""
    if isinstance(annotation, typing.NewType):
        return holds_borrowed(annotation.__supertype__, seen)
    if is_alias(annotation):
        return annotation not in seen and holds_borrowed(expanded(annotation), (*seen, annotation))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated and is_lending(arguments[1:]):
        return True
    return any(holds_borrowed(argument, seen) for argument in arguments)


def check_placement(annotation: Any) -> None:
    """Raises AnnotationError if ``rrpc.Borrowed`` is where it can't be."""
    lender(annotation)


def lender(annotation: Any) -> Callable[[Any], Any] | None:
    """Returns what marks the borrowed arrays of a checked value for the encoder; None if there can be none."""
    if not holds_borrowed(annotation):
        return None
    step = _step(annotation, _lent, _same)
    return lambda value: step(value, None)


def borrower(annotation: Any) -> _Step:
    """Returns what a receiver makes of a decoded value: borrowed arrays are read-only, the others its own."""
    return _step(annotation, _read_only, _own)


def freezer(annotation: Any) -> _Step:
    """Returns what makes the borrowed arrays of a checked value read-only."""
    return _step(annotation, _read_only, _same)


def _lent(value: Any, out: Any) -> Any:
    return Lent(value) if isinstance(value, np.ndarray) else value


def _read_only(value: Any, out: Any) -> Any:
    if value is out or not isinstance(value, np.ndarray) or not value.flags.writeable:
        return value
    # A view: the array itself may be somebody's own, who goes on writing to it.
    view = value.view()
    view.flags.writeable = False
    return view


def _same(value: Any, out: Any) -> Any:
    return value


def _own(value: Any, out: Any) -> Any:
    return own(value)


def _step(annotation: Any, borrowed: _Step, rest: _Step) -> _Step:
    """Makes the step for an annotation: ``borrowed`` for borrowed arrays, ``rest`` for everything beside them."""
    if not holds_borrowed(annotation):
        return rest
    if isinstance(annotation, typing.NewType):
        return _step(annotation.__supertype__, borrowed, rest)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return borrowed if is_lending(arguments[1:]) else _step(arguments[0], borrowed, rest)
    if origin in (typing.Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:  # no step changes None
            return _step(others[0], borrowed, rest)
        raise AnnotationError(f"{type_text(annotation)} isn't supported: an alternative can't be borrowed")
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _of_tuple([_step(argument, borrowed, rest) for argument in arguments], rest)
    if origin is tuple or origin in _SEQUENCES:
        return _of_items(_step(arguments[0], borrowed, rest), rest)
    if origin in _MAPPINGS and not holds_borrowed(arguments[0]):
        return _of_map(_step(arguments[1], borrowed, rest), rest)
    raise AnnotationError(
        f"{type_text(annotation)} isn't supported: rrpc.Borrowed stands alone, or in tuples, lists and dict values"
    )


def _of_tuple(inner: list[_Step], rest: _Step) -> _Step:
    def step(value: Any, out: Any) -> Any:
        # Borrowers run before the check, which refuses such a value.
        if not isinstance(value, tuple) or len(value) != len(inner):
            return rest(value, out)
        return tuple(each(item, out) for each, item in zip(inner, value, strict=True))

    return step


def _of_items(inner: _Step, rest: _Step) -> _Step:
    def step(value: Any, out: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return rest(value, out)
        items = (inner(item, out) for item in value)
        return tuple(items) if isinstance(value, tuple) else list(items)

    return step


def _of_map(inner: _Step, rest: _Step) -> _Step:
    def step(value: Any, out: Any) -> Any:
        if not isinstance(value, dict):
            return rest(value, out)
        return {key: inner(item, out) for key, item in value.items()}

    return step
