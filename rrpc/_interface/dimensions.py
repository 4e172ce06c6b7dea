"""Named dimensions: one size wherever the name stands.

Within a call the arguments and the result share their names, and an integer parameter of a dimension's name
gives its size. A dataclass or named tuple has names of its own: they are one size within each instance and have
nothing to do with those outside of it.

This runs after the checks of the single values, and only for what has named dimensions at all.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rrpc.errors import Internal, InvalidArgument, RpcError
from rrpc.types import Shape

from .mismatch import Compile, Mismatch, shown

Sizes = dict[str, tuple[int, str, bool]]
"""Of each dimension the size, where it was found, and whether a number says so there."""

_Visit = Callable[[Any, str, Sizes], None]


class _Clash(Mismatch):
    """A dimension that has another size elsewhere; the path is where this one stands."""

    def __init__(self, where: str, dimension: str, size: int, known: tuple[int, str, bool]) -> None:
        super().__init__("", None)
        self.path = where
        other, place, said = known
        elsewhere = f"{place} says {other}" if said else f"in {place} it is {other}"
        self._text = f"dimension {dimension} is {size}, {elsewhere}"

    def __str__(self) -> str:
        return self._text


class Scope:
    """Named values that share the names of their dimensions: arguments, a dataclass's fields.

    ``label`` says in messages which it is, as in ``.{}``; ``also`` are names that stand elsewhere.
    """

    def __init__(
        self, annotations: Mapping[str, Any], label: str, compile_inner: Compile, also: Iterable[str] = ()
    ) -> None:
        self.names = {*also, *(name for annotation in annotations.values() for name in names_of(annotation))}
        places = [(label.format(name), name, annotation) for name, annotation in annotations.items()]
        self._numbers = [
            (index, where, name)
            for index, (where, name, annotation) in enumerate(places)
            if name in self.names and is_integer(annotation)
        ]
        visitors = [_visitor(annotation, compile_inner) for annotation in annotations.values()]
        self._visits = [(i, places[i][0], visit) for i, visit in enumerate(visitors) if visit is not None]

    def sizes(self, values: Sequence[Any]) -> Sizes:
        """The sizes in ``values``, in the order of the annotations, None for what isn't there.

        ``Mismatch`` says where two differ.
        """
        sizes: Sizes = {}
        # Numbers come first, so that messages tell which number an array doesn't fit.
        for index, where, name in self._numbers:
            if values[index] is not None:
                sizes[name] = (int(values[index]), where, True)
        for index, where, visit in self._visits:
            if values[index] is not None:
                visit(values[index], where, sizes)
        return sizes

    @staticmethod
    def of_fields(annotations: Mapping[str, Any], compile_inner: Compile) -> Scope | None:
        """Makes the scope of a dataclass or named tuple; returns None if no dimension has a name."""
        scope = Scope(annotations, ".{}", compile_inner)
        return scope if scope.names else None


class Dimensions:
    """Named dimensions of a method; false if it has none.

    ``label`` names the method's result in error messages.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any],
        result: Any,
        compile_inner: Compile,
        label: str = "the result",
    ) -> None:
        self._name = name
        self._label = label
        self._arguments = Scope(parameters, "argument {!r}", compile_inner, also=names_of(result))
        self._visit_result = _visitor(result, compile_inner)

    def __bool__(self) -> bool:
        return bool(self._arguments.names)

    def of_arguments(self, values: Sequence[Any]) -> Sizes:
        """The sizes that the arguments have; InvalidArgument where they don't fit together."""
        try:
            return self._arguments.sizes(values)
        except Mismatch as clash:
            raise InvalidArgument(f"{self._name}(): {clash.path}: {clash}") from None

    def check_result(self, value: Any, sizes: Sizes | None, fault: type[RpcError] = Internal) -> None:
        """``fault`` where the result fits neither itself nor the arguments."""
        if self._visit_result is None:
            return
        try:
            # Copied, as names that only the result has are added.
            self._visit_result(value, self._label, dict(sizes or {}))
        except Mismatch as clash:
            raise fault(f"{self._name}(): {clash.path} isn't as declared: {clash}") from None


def _shape(notes: Sequence[Any]) -> Shape | None:
    return next((note for note in notes if isinstance(note, Shape)), None)


def names_of(annotation: Any) -> Iterator[str]:
    """Yields the names of dimensions in an annotation, those within its classes left out."""
    if isinstance(annotation, typing.NewType):
        yield from names_of(annotation.__supertype__)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated and (shape := _shape(arguments[1:])) is not None:
        yield from (dim for dim in shape.dims if isinstance(dim, str))
    else:
        for argument in arguments:
            yield from names_of(argument)


def is_integer(annotation: Any) -> bool:
    """Returns whether a parameter of this annotation gives the size of the dimension that has its name."""
    if isinstance(annotation, typing.NewType):
        return is_integer(annotation.__supertype__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return all(kind is type(None) or is_integer(kind) for kind in arguments)
    if origin is typing.Annotated:
        return is_integer(arguments[0])
    return annotation is int


def _visitor(annotation: Any, compile_inner: Compile) -> _Visit | None:
    """Makes the function that records the sizes in a checked value; None if no dimension has a name."""
    if isinstance(annotation, typing.NewType):
        return _visitor(annotation.__supertype__, compile_inner)
    if not set(names_of(annotation)):
        return None
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        shape = _shape(arguments[1:])
        return _visitor(arguments[0], compile_inner) if shape is None else _visit_array(shape)
    if origin in (typing.Union, types.UnionType):
        return _visit_union(arguments, compile_inner)
    inner = [_visitor(argument, compile_inner) for argument in arguments]
    if origin in (dict, collections.abc.Mapping):
        return _visit_map(inner[1])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _visit_tuple(inner)
    return _visit_items(inner[0])


def _visit_array(shape: Shape) -> _Visit:
    named = [(axis, name) for axis, name in enumerate(shape.dims) if isinstance(name, str)]

    def visit(value: Any, where: str, sizes: Sizes) -> None:
        for axis, name in named:
            size = value.shape[axis]
            # The first place decides, and messages name it.
            known = sizes.setdefault(name, (size, where, False))
            if known[0] != size:
                raise _Clash(where, name, size, known)

    return visit


def _visit_union(arguments: tuple[Any, ...], compile_inner: Compile) -> _Visit:
    choices = [(compile_inner(argument), _visitor(argument, compile_inner)) for argument in arguments]

    def visit(value: Any, where: str, sizes: Sizes) -> None:
        for check, inner in choices:
            # A checked value doesn't say which alternative it is, so the checks find out again.
            try:
                check(value)
            except Mismatch:
                continue
            if inner is not None:
                inner(value, where, sizes)
            return

    return visit


def _visit_tuple(inner: Sequence[_Visit | None]) -> _Visit:
    def visit(value: Any, where: str, sizes: Sizes) -> None:
        for index, visit_item in enumerate(inner):
            if visit_item is not None:
                visit_item(value[index], f"{where}[{index}]", sizes)

    return visit


def _visit_items(inner: _Visit | None) -> _Visit | None:
    if inner is None:
        return None

    def visit(value: Any, where: str, sizes: Sizes) -> None:
        for index, item in enumerate(value):
            inner(item, f"{where}[{index}]", sizes)

    return visit


def _visit_map(inner: _Visit | None) -> _Visit | None:
    if inner is None:
        return None

    def visit(value: Any, where: str, sizes: Sizes) -> None:
        for key, item in value.items():
            inner(item, f"{where}[{shown(key)}]", sizes)

    return visit
