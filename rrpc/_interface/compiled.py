"""Plans compiled into the core: a method's annotations as a tree that packs and reads values without running Python.

The tree takes the values that need no conversion, and gives up on all others and on whatever is wrong. The codec in
Python then does the whole of it, so that bytes, values and errors are the same with the tree and without
(``RRPC_PURE_PYTHON=1``). Of a type that the tree has no node for, each value is handed over to Python, and the rest of
the message stays in the core.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rrpc.codec import HAS_COMPILED_PLANS, SENT_AS_TEXT, CompiledPlan, Lent, describe_dtype, parse_dtype
from rrpc.types import INTEGER_BOUNDS, Lending, Shape, Sized

from .aliases import expanded
from .checks import compile_check
from .dimensions import is_integer, names_of
from .handed_over import can_be_handed_over, handed_over
from .libraries import library_of
from .members import is_named_tuple
from .mismatch import AnnotationError, Mismatch
from .parameter import Parameter

PURE_PYTHON = not HAS_COMPILED_PLANS or os.environ.get("RRPC_PURE_PYTHON", "") not in ("", "0")

_Description = tuple[Any, ...]
_INT_ANY = (-(1 << 63), (1 << 64) - 1)
_SIMPLE: dict[Any, _Description] = {
    None: ("none",),
    type(None): ("none",),
    bool: ("bool",),
    int: ("int", *_INT_ANY),
    float: ("float",),
    str: ("str",),
    bytes: ("bytes",),
    complex: ("complex",),
    **{kind: ("text", kind, *sent) for kind, sent in SENT_AS_TEXT.items()},
}
_ARGUMENTS_MAX, _NAMES_MAX, _NODES_MAX = 16, 8, 1000
_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})
_LOOKS = {
    "borrowed": "array",
    "f32": "float",
    "tuple": "list",
    "tuple of": "list",
    "set": "list",
    "frozenset": "list",
    "named tuple": "list",
    "record": "list",
}
"""On the wire."""
_MANY_LOOKS = frozenset({"any", "enum", "literal", "optional", "python", "union"})
_KEYS = frozenset({"int", "str", "bytes"})
_SET_ITEMS = frozenset(
    {"none", "bool", "int", "float", "f32", "str", "bytes", "complex", "text", "tuple", "tuple of"}
)
"""Kinds of which no value changes when it is checked, so that a set of them is gone through in the same order."""


class _Unknown(Exception):
    """The core has no node for an annotation; Python has."""


class _LeftToPython(Exception):
    """The codec in Python has to do the whole method."""


_FAULTS = (_LeftToPython, AnnotationError, NameError, AttributeError, TypeError, ValueError, RuntimeError)
"""NameError: of a class that isn't defined yet. The others are of annotations that only Python's checks bear."""


class _Place:
    """The place of an annotation: the levels and classes around it, and the nodes that the plan has already."""

    def __init__(
        self, classes: tuple[type, ...] = (), depth: int = 0, nodes: list[int] | None = None
    ) -> None:
        self.classes = classes
        self.depth = depth
        # Shared by all places of one plan, so it counts the nodes of the whole plan.
        self._nodes = [0] if nodes is None else nodes

    def inside(self, kind: type | None = None) -> _Place:
        """Returns the place of what is in a container; ``kind`` is its class where that has fields."""
        classes = self.classes if kind is None else (*self.classes, kind)
        return _Place(classes, self.depth + 1, self._nodes)

    def count(self) -> None:
        """Counts one more; a class that stands in many places is described in each."""
        self._nodes[0] += 1
        if self._nodes[0] > _NODES_MAX:
            raise _LeftToPython


def compiled(parameters: Sequence[Parameter], result: Any) -> CompiledPlan | None:
    """Returns the compiled plan for these parameters and a result of this annotation; None where Python does it all."""
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    names = dict.fromkeys(
        name for annotation in (*annotations.values(), result) for name in names_of(annotation)
    )
    if PURE_PYTHON or len(annotations) > _ARGUMENTS_MAX or len(names) > _NAMES_MAX:
        return None
    at = _Place()
    try:
        described: list[_Description] = []
        for name, annotation in annotations.items():
            description = _describe(annotation, at)
            if name in names and is_integer(annotation):  # it gives the size of a dimension
                description = _naming(description, name)
            described.append(description)
        return CompiledPlan(tuple(described), _describe(result, at), list(names))
    except _FAULTS:
        return None


def compiled_item(annotation: Any) -> CompiledPlan | None:
    """Returns the compiled plan whose result is an item of a stream; None where Python does it all.

    An item that would be handed over as a whole is Python's: nothing of it would be left to the core.
    """
    if PURE_PYTHON:
        return None
    try:
        description = _describe(annotation, _Place())
        return None if _is_handed_over(description) else CompiledPlan((), description, [])
    except _FAULTS:
        return None


def _describe(annotation: Any, at: _Place) -> _Description:
    at.count()
    annotation = expanded(annotation)
    while isinstance(annotation, typing.NewType):
        annotation = annotation.__supertype__
    try:
        return _native(annotation, at)
    except _Unknown:
        if not can_be_handed_over(annotation):
            raise _LeftToPython from None
        return handed_over(annotation, at.depth)


def _is_handed_over(description: _Description) -> bool:
    inner = description[1] if description[0] == "optional" else description
    return bool(inner[0] == "python")


def _native(annotation: Any, at: _Place) -> _Description:
    try:
        simple = _SIMPLE.get(annotation)
    except TypeError:  # it can't be hashed
        simple = None
    if simple is not None:
        return simple
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is np.ndarray or origin is np.ndarray:
        return ("array", _adopter(compile_check(annotation)))
    if origin is typing.Annotated:
        return _annotated(arguments, at)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, at)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin in _CONTAINERS and arguments:
        return _container(origin, arguments, at)
    if annotation is Any or annotation is object:
        return ("any", _adopter(lambda value: value))
    if isinstance(annotation, type) and annotation not in at.classes:
        return _class(annotation, at.inside(annotation))
    raise _Unknown


def _container(origin: Any, arguments: tuple[Any, ...], at: _Place) -> _Description:
    several = origin is tuple and arguments[-1] is Ellipsis
    inner = [_describe(argument, at.inside()) for argument in (arguments[:1] if several else arguments)]
    if _is_handed_over(inner[-1]) if origin is dict else all(map(_is_handed_over, inner)):
        raise _Unknown  # one crossing for all items, not one for each
    if origin is dict and inner[0][0] not in _KEYS:
        raise _Unknown
    if origin in (set, frozenset) and not _is_set_item(inner[0]):
        raise _Unknown
    return ("tuple of" if several else origin.__name__, *inner)


def _is_set_item(description: _Description) -> bool:
    kind = description[0]
    return kind in _SET_ITEMS and (
        kind not in ("tuple", "tuple of") or all(map(_is_set_item, description[1:]))
    )


def _class(kind: Any, at: _Place) -> _Description:
    if dataclasses.is_dataclass(kind):
        return _record(kind, at)
    if issubclass(kind, enum.Enum):
        members = {member.value: member for member in kind}
        # Members of a Flag combine, so its values aren't only these.
        if {*map(type, members)} <= {int, str} and not issubclass(kind, enum.Flag):
            return ("enum", kind, members)
    if is_named_tuple(kind) and not getattr(kind, "__parameters__", ()):
        hints = typing.get_type_hints(kind, include_extras=True)
        return ("named tuple", kind, *_members([hints.get(name, Any) for name in kind._fields], at))
    raise _Unknown


def _members(annotations: Sequence[Any], at: _Place) -> list[_Description]:
    described = [_describe(annotation, at) for annotation in annotations]
    if described and all(map(_is_handed_over, described)):
        raise _Unknown  # one crossing for the instance, not one for each field
    return described


def _literal(arguments: tuple[Any, ...]) -> _Description:
    values = {value: value for value in arguments}
    # Of equal values, such as 1 and True, the dict has kept one.
    if len(values) != len(arguments) or not {*map(type, arguments)} <= {int, str, bool}:
        raise _Unknown
    return ("literal", None, values)


def _naming(description: _Description, name: str) -> _Description:
    if description[0] == "optional":
        return ("optional", _naming(description[1], name))
    if description[0] != "int":
        raise _LeftToPython
    return (*description, name)


def _annotated(arguments: tuple[Any, ...], at: _Place) -> _Description:
    base, *notes = arguments
    others = [note for note in notes if not isinstance(note, Lending)]
    if len(others) < len(notes):
        return _borrowed(_annotated((base, *others), at) if others else _describe(base, at), at)
    notes = [note for note in notes if isinstance(note, (Shape, Sized))][:1]  # the first one counts
    if not notes:
        if library_of(base) is not None:  # its other notes are dtypes
            raise _Unknown
        return _describe(base, at)
    if isinstance(notes[0], Shape):
        inner = _describe(base, at)
        named = any(isinstance(dim, str) for dim in notes[0].dims)
        if named and at.classes:  # the names in a class are its own
            raise _LeftToPython
        if inner[0] != "array":
            raise _Unknown
        return (*inner, notes[0].dims)
    size = notes[0].name
    if size == "f32" and base is float:
        return ("f32",)
    if base is not int or size not in INTEGER_BOUNDS:
        raise _Unknown
    return ("int", *INTEGER_BOUNDS[size])


def _borrowed(description: _Description, at: _Place) -> _Description:
    if description[0] != "array" or at.classes:  # the fields of a class are never borrowed
        raise _LeftToPython
    return ("borrowed", Lent, description)


def _union(arguments: tuple[Any, ...], at: _Place) -> _Description:
    """Describes a union whose alternatives look different on the wire, so that what arrives tells which it is."""
    others = [_describe(argument, at) for argument in arguments if argument is not type(None)]
    looks = [_look(description) for description in others]
    if len({*looks}) != len(looks) or (len(looks) > 1 and not {*looks}.isdisjoint(_MANY_LOOKS)):
        raise _Unknown
    described = others[0] if len(others) == 1 else ("union", *others)
    return described if len(others) == len(arguments) else ("optional", described)


def _look(description: _Description) -> Any:
    name = description[0]
    return description[2] if name == "text" else _LOOKS.get(name, name)


def _record(kind: Any, at: _Place) -> _Description:
    """Describes a dataclass without type variables or named dimensions, each of whose fields its constructor takes."""
    fields = dataclasses.fields(kind)
    if not all(field.init for field in fields) or hasattr(kind, "__parameters__"):
        raise _Unknown
    hints = typing.get_type_hints(kind, include_extras=True)
    if any(True for hint in hints.values() for _ in names_of(hint)):
        raise _Unknown
    members = _members([hints[field.name] for field in fields], at)
    names = tuple(sys.intern(field.name) for field in fields)
    return ("record", kind, kind.__name__, names, *members)


def _adopter(check: Callable[[Any], Any]) -> Callable[[Any], tuple[np.dtype[Any], bytes, int] | None]:
    """Makes the function by which a node learns of a dtype, given it or its name on the wire: whether it takes it."""

    def adopt(asked: np.dtype[Any] | bytes) -> tuple[np.dtype[Any], bytes, int] | None:
        dtype = parse_dtype(asked) if isinstance(asked, bytes) else asked
        # One of those that numpy has a single object of, which is what the node compares.
        if dtype.isbuiltin != 1 or dtype.hasobject or dtype is not np.dtype(dtype.str) or not dtype.itemsize:
            return None
        empty = np.empty(0, dtype)
        try:
            return (dtype, describe_dtype(dtype), dtype.itemsize) if check(empty) is empty else None
        except Mismatch:
            return None

    return adopt
