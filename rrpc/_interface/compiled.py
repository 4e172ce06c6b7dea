"""Plans compiled into the core: a method's annotations as a tree that packs and reads values without running Python.

The tree takes the values that need no conversion, and gives up on all others, on what it doesn't know and on whatever
is wrong. The codec in Python then does the whole of it, so that bytes, values and errors are the same with the tree and
without (``RRPC_PURE_PYTHON=1``).
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

from rrpc.codec import HAS_COMPILED_PLANS, CompiledPlan, describe_dtype, parse_dtype
from rrpc.types import Shape, Sized

from .aliases import expanded
from .checks import compile_check
from .dimensions import is_integer, names_of
from .mismatch import AnnotationError, Mismatch
from .parameter import Parameter

__all__ = ["compiled"]

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
}
_ARGUMENTS_MAX, _NAMES_MAX, _NODES_MAX = 16, 8, 1000
_CONTAINERS = frozenset({list, dict, tuple})
_LOOKS = {"f32": "float", "tuple": "list", "tuple of": "list", "named tuple": "list", "record": "list"}
"""On the wire."""
_MANY_LOOKS = frozenset({"any", "enum", "literal", "optional", "union"})
_KEYS = frozenset({"int", "str", "bytes"})


class _Unknown(Exception):
    """The core has no node for an annotation, or the annotation would take too many of them."""


class _Place:
    """The place of an annotation: the classes around it, and the nodes that the plan has already."""

    def __init__(self, classes: tuple[type, ...] = (), nodes: list[int] | None = None) -> None:
        self.classes = classes
        self._nodes = [0] if nodes is None else nodes

    def inside(self, kind: type) -> _Place:
        return _Place((*self.classes, kind), self._nodes)

    def count(self) -> None:
        """Counts one more; a class that stands in many places is described in each."""
        self._nodes[0] += 1
        if self._nodes[0] > _NODES_MAX:
            raise _Unknown


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
        described = []
        for name, annotation in annotations.items():
            description = _describe(annotation, at)
            if name in names and is_integer(annotation):  # it gives the size of a dimension
                description = _naming(description, name)
            described.append(description)
        return CompiledPlan(tuple(described), _describe(result, at), list(names))
    except (_Unknown, AnnotationError, NameError, AttributeError, TypeError, ValueError, RuntimeError):
        # NameError: of a class that isn't defined yet; the others are of annotations that only Python's checks bear.
        return None


def _describe(annotation: Any, at: _Place) -> _Description:
    at.count()
    annotation = expanded(annotation)
    while isinstance(annotation, typing.NewType):
        annotation = annotation.__supertype__
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
    if origin is tuple and arguments[-1] is Ellipsis:
        return ("tuple of", _describe(arguments[0], at))
    inner = [_describe(argument, at) for argument in arguments]
    if origin is dict and inner[0][0] not in _KEYS:
        raise _Unknown
    return (origin.__name__, *inner)


def _class(kind: type, at: _Place) -> _Description:
    if dataclasses.is_dataclass(kind):
        return _record(kind, at)
    if issubclass(kind, enum.Enum):
        members = {member.value: member for member in kind}
        if {*map(type, members)} <= {int, str} and not issubclass(kind, enum.Flag):
            return ("enum", kind, members)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and not getattr(kind, "__parameters__", ()):
        hints = typing.get_type_hints(kind, include_extras=True)
        return ("named tuple", kind, *(_describe(hints.get(name, Any), at) for name in kind._fields))
    raise _Unknown


def _literal(arguments: tuple[Any, ...]) -> _Description:
    values = {value: value for value in arguments}
    if len(values) != len(arguments) or not {*map(type, arguments)} <= {int, str, bool}:
        raise _Unknown
    return ("literal", None, values)


def _naming(description: _Description, name: str) -> _Description:
    if description[0] == "optional":
        return ("optional", _naming(description[1], name))
    return (*description, name)


def _annotated(arguments: tuple[Any, ...], at: _Place) -> _Description:
    base, *notes = arguments
    if len(notes) != 1:
        raise _Unknown
    if isinstance(notes[0], Shape):
        inner = _describe(base, at)
        named = any(isinstance(dim, str) for dim in notes[0].dims)
        if inner[0] != "array" or (named and at.classes):  # the names in a class are its own
            raise _Unknown
        return (*inner, notes[0].dims)
    if not isinstance(notes[0], Sized):
        raise _Unknown
    size = notes[0].name
    if size == "f32" and base is float:
        return ("f32",)
    if base is not int:
        raise _Unknown
    bits = int(size[1:])
    return ("int", 0, (1 << bits) - 1) if size[0] == "u" else ("int", -(1 << bits - 1), (1 << bits - 1) - 1)


def _union(arguments: tuple[Any, ...], at: _Place) -> _Description:
    """Describes a union whose alternatives look different on the wire, so that what arrives tells which it is."""
    others = [_describe(argument, at) for argument in arguments if argument is not type(None)]
    looks = [_LOOKS.get(description[0], description[0]) for description in others]
    if len({*looks}) != len(looks) or (len(looks) > 1 and not {*looks}.isdisjoint(_MANY_LOOKS)):
        raise _Unknown
    described = others[0] if len(others) == 1 else ("union", *others)
    return described if len(others) == len(arguments) else ("optional", described)


def _record(kind: type, at: _Place) -> _Description:
    """Describes a dataclass without type variables or named dimensions, each of whose fields its constructor takes."""
    fields = dataclasses.fields(kind)
    if not all(field.init for field in fields) or hasattr(kind, "__parameters__"):
        raise _Unknown
    hints = typing.get_type_hints(kind, include_extras=True)
    members = [_describe(hints[field.name], at) for field in fields]
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
