"""Annotations and values as source text, with the imports and definitions that the text needs."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import re
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from rrpc._interface import AnnotationError
from rrpc._interface.aliases import is_alias
from rrpc._interface.libraries import item_note, library_of
from rrpc._interface.members import has_members, members_of
from rrpc._interface.scalars import PATHS
from rrpc.schema.to_python import OneOfName
from rrpc.types import Lending, Shape, Sized

from .emit_text import WIDTH, broken, camel, docstring, literal_text, tuple_text

_ABSTRACT_NUMPY = {np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact, np.floating}
_ABSTRACT_NUMPY |= {np.complexfloating}
_BARE = {
    list: "list[Any]",
    set: "set[Any]",
    frozenset: "frozenset[Any]",
    dict: "dict[Any, Any]",
    tuple: "tuple[Any, ...]",
    np.ndarray: "NDArray[Any]",
}
_MODULES: dict[type, str] = {
    datetime.datetime: "datetime",
    datetime.date: "datetime",
    datetime.time: "datetime",
    datetime.timedelta: "datetime",
    decimal.Decimal: "decimal",
    uuid.UUID: "uuid",
    **dict.fromkeys(PATHS, "pathlib"),
}
_ARRAY_ALIAS = """if TYPE_CHECKING:
    AnyArray = array[Any]
else:
    AnyArray = array
"""
_UNIONS = (typing.Union, types.UnionType)
_ANNOTATION_MAX = 60
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", dict: "{}", set: "{}"}
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_STRINGS = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")


class Types:
    """Renders annotations and remembers what the file needs for them.

    ``homes`` has the module of each class, and by its OneOfName of each one-of, that another generated file
    defines; ``define`` gives a class's definition.
    """

    def __init__(self, define: Callable[[type, Types], str], homes: Mapping[Any, str]) -> None:
        self.modules: set[str] = set()
        self.names: dict[str, set[str]] = {}
        self.definitions: dict[str, str] = {}
        """Classes and constants, in the order in which they can stand."""
        self.aliases: dict[str, str] = {}
        """Aliases, which stand behind the classes."""
        self.taken: set[str] = set()
        """Names that the file has besides."""
        self._define = define
        self._homes = homes
        self._known: dict[str, Any] = {}
        self._hoisted: dict[tuple[str, str], str] = {}

    def use(self, module: str, *names: str) -> None:
        """Import a module, or names from one."""
        if names:
            self.names.setdefault(module, set()).update(names)
        else:
            self.modules.add(module)

    def text(self, annotation: Any) -> str:
        """Returns the annotation as source."""
        if annotation is None or annotation is type(None):
            return "None"
        if annotation is Any or is_alias(annotation):  # one that names itself
            self.use("typing", "Any")
            return "Any"
        if isinstance(annotation, typing.NewType):
            return self.text(annotation.__supertype__)
        if isinstance(annotation, typing.TypeVar):
            return self._variable(annotation)
        origin = typing.get_origin(annotation)
        if origin is None:
            return self._class(annotation)
        return self._generic(origin, typing.get_args(annotation))

    def _generic(self, origin: Any, arguments: tuple[Any, ...]) -> str:
        if origin in _UNIONS:
            return " | ".join(map(self.text, arguments))
        if origin is typing.Annotated:
            return self._annotated(arguments[0], arguments[1:])
        if origin is typing.Literal:
            self.use("typing", "Literal")
            return f"Literal[{', '.join(map(self.value, arguments))}]"
        if origin is np.ndarray:
            return self._array(arguments)
        if isinstance(origin, type) and issubclass(origin, np.generic):
            return self._class(origin)
        items = ", ".join(self._arguments(arguments))
        if origin.__module__ == "collections.abc":
            self.use("collections.abc", origin.__name__)
        name = self._defined(origin) if has_members(origin) else origin.__name__
        return f"{name}[{items or '()'}]"

    def _arguments(self, arguments: tuple[Any, ...]) -> list[str]:
        return ["..." if argument is Ellipsis else self.text(argument) for argument in arguments]

    def _variable(self, variable: typing.TypeVar) -> str:
        name, new = self._name(variable, f"_{variable.__name__.lstrip('_')}")
        if new:
            self.use("typing", "TypeVar")
            self.definitions[name] = f'{name} = TypeVar("{name}")\n'
        return name

    def _annotated(self, annotation: Any, notes: Sequence[Any]) -> str:
        others = [note for note in notes if not isinstance(note, Lending)]
        if len(others) < len(notes):
            self.use("rrpc")
            array = typing.Annotated[(annotation, *others)] if others else annotation
            return f"rrpc.Borrowed[{self.text(array)}]"
        for note in notes:
            if isinstance(note, OneOfName):
                return self._one_of(annotation, note)
            if isinstance(note, Sized):
                self.use("rrpc")
                return f"rrpc.{note.name}"
        parts = self._array_notes(annotation, notes)
        if not parts:
            return self.text(annotation)
        self.use("typing", "Annotated")
        return f"Annotated[{', '.join([self.text(annotation), *parts])}]"

    def _array_notes(self, annotation: Any, notes: Sequence[Any]) -> list[str]:
        """Returns the notes of an array or a tensor as text: the item type of a tensor, and the shape."""
        parts = []
        if library_of(annotation) is not None and (item := item_note(notes)) is not np.generic:
            parts.append(self._numpy(item))
        for note in notes:
            if isinstance(note, Shape):
                self.use("rrpc")
                return [*parts, _shape(note)]
        return parts

    def _one_of(self, union: Any, note: OneOfName) -> str:
        name, new = self._name(note, note.name)
        if new:
            self.use("typing", "TypeAlias")
            self.aliases[name] = ""  # a struct between may lead back here
            text = self._defined_alias(name, union)
            del self.aliases[name]
            self.aliases[name] = "\n".join([text, *docstring(note.doc, "")[:-1]]) + "\n"
        return name

    def _array(self, arguments: tuple[Any, ...]) -> str:
        self.use("numpy.typing", "NDArray")
        items = typing.get_args(arguments[-1]) or (Any,)
        item = Any if isinstance(items[0], typing.TypeVar) or items[0] is np.generic else items[0]
        return f"NDArray[{self.text(item)}]"

    def _class(self, kind: Any) -> str:
        if kind in _BARE:
            self.use("numpy.typing", "NDArray") if kind is np.ndarray else None
            self.use("typing", "Any")
            return _BARE[kind]
        if kind is array.array:
            self.use("array", "array")
            self.use("typing", "TYPE_CHECKING", "Any")
            self.definitions["AnyArray"] = _ARRAY_ALIAS
            return "AnyArray"
        if kind in _MODULES:
            self.use(_MODULES[kind])
            return f"{_MODULES[kind]}.{kind.__name__}"
        if kind.__module__ == "builtins":
            return str(kind.__name__)
        if issubclass(kind, np.generic):
            return self._numpy(kind)
        if (library := library_of(kind)) is not None:
            self.use(library.module)
            return f"{library.alias}.{library.name}"
        return self._defined(kind)

    def _numpy(self, kind: type[np.generic]) -> str:
        if kind.__module__ == "ml_dtypes":
            self.use("ml_dtypes")
            return f"ml_dtypes.{kind.__name__}"
        self.use("numpy")
        if kind in _ABSTRACT_NUMPY:
            self.use("typing", "Any")
            return f"np.{kind.__name__}[Any]"
        return "np.bool_" if kind is np.bool_ else f"np.{kind.__name__}"

    def _defined(self, kind: type) -> str:
        """A class of the service's own, defined again in the file."""
        name, new = self._name(kind, kind.__name__)
        if new:
            self._define_with_inner(name, kind)
        return name

    def _define_with_inner(self, name: str, kind: type) -> None:
        """Defines a class behind those that its fields need: by no recursion, as a chain of them may be long."""
        self.definitions[name] = ""  # a class may name itself
        opened = [(name, kind, _classes_of(kind))]
        while opened:
            name, kind, inner = opened[-1]
            for needed in inner:
                needed_name, new = self._name(needed, needed.__name__)
                if new:
                    self.definitions[needed_name] = ""
                    opened.append((needed_name, needed, _classes_of(needed)))
                    break
            else:
                opened.pop()
                definition = self._define(kind, self)
                del self.definitions[name]  # so that it stands behind those it needs
                self.definitions[name] = definition

    def _name(self, thing: Any, full_name: str) -> tuple[str, bool]:
        """Returns the name of ``thing`` in the file, and whether its definition must be written there."""
        name = full_name.rpartition(".")[2]
        home = self._homes.get(thing)
        known = self._known.setdefault(name, thing)
        if known != thing and home is not None:
            name = f"{camel(home)}{name}"
            known = self._known.setdefault(name, thing)
        if known != thing:
            where = " and ".join(_home(each) for each in (known, thing))
            raise AnnotationError(f"two classes are called {name}: {where}")
        if home is not None:
            short = full_name.rpartition(".")[2]
            self.use(f".{home}", short if name == short else f"{short} as {name}")
        return name, home is None and name not in self.definitions and name not in self.aliases

    # Names for what isn't written where it is used

    def named(self, annotation: Any, hint: str, hidden: Set[str] = frozenset()) -> str:
        """Returns the annotation as source, or the name of an alias if it is long.

        It is an alias too if the annotation uses a name that is ``hidden`` where it stands: by a method called
        ``list``, say.
        """
        text = self.text(annotation)
        if len(text) <= _ANNOTATION_MAX and not names_in(text) & hidden:
            return text
        return self._hoist("alias", text, hint, lambda name: self._defined_alias(name, annotation))

    def constant(self, annotation: Any, value: Any, hint: str) -> str:
        """Returns the name of a module-level constant with this value."""

        def define(name: str) -> str:
            return "\n".join(self.value_lines(f"{name}: {self.text(annotation)} = ", value))

        return self._hoist("constant", self.value(value), hint, define)

    def renamed(self, text: str, hint: str) -> str:
        """Returns another name for the value of source text, where a field hides its own."""
        self.use("typing", "Any")
        return self._hoist("constant", text, hint, lambda name: f"{name}: Any = {text}")

    def _hoist(self, kind: str, text: str, hint: str, define: Callable[[str], str]) -> str:
        if (kind, text) not in self._hoisted:
            name, number = f"_{hint}", 1
            while name in self.taken:
                number += 1
                name = f"_{hint}{number}"
            self.taken.add(name)
            definition = define(name) + "\n"
            (self.aliases if kind == "alias" else self.definitions)[name] = definition
            self._hoisted[kind, text] = name
        return self._hoisted[kind, text]

    def _defined_alias(self, name: str, annotation: Any) -> str:
        """Returns ``name: TypeAlias = ...``. A long union or tuple has one type a line."""
        self.use("typing", "TypeAlias")
        start, text = f"{name}: TypeAlias = ", self.text(annotation)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is tuple and arguments:
            return "\n".join(broken(f"{start}tuple[", self._arguments(arguments), "]"))
        if origin in _UNIONS and len(start) + len(text) > WIDTH:
            first, *others = self._arguments(arguments)
            return "\n".join([f"{start}(", f"    {first}", *(f"    | {other}" for other in others), ")"])
        return start + text

    # Values

    def value(self, value: Any) -> str:
        """Returns a value as source. Raises AnnotationError if it has no literal."""
        if isinstance(value, enum.Enum):
            return f"{self._defined(type(value))}.{value.name}"
        kind = type(value)
        if kind is tuple:
            return tuple_text(self._items(value))
        if kind is frozenset:
            return f"frozenset({self.value(set(value)) if value else ''})"
        if kind is set and not value:
            return "set()"
        if kind in _BRACKETS:
            return f"{_BRACKETS[kind][0]}{', '.join(self._items(value))}{_BRACKETS[kind][1]}"
        return literal_text(value)

    def default(self, what: str, annotation: Any, value: Any, hint: str) -> str:
        """Returns the default of ``what`` as source: a literal, or the name of a constant."""
        try:
            text = self.value(value)
        except AnnotationError as error:
            raise AnnotationError(f"{what}: {error}") from None
        # The code never changes these lists; linters warn of any list that is a default.
        return (
            self.constant(annotation, value, f"{hint}Default") if type(value) in (list, dict, set) else text
        )

    def _items(self, value: Any) -> list[str]:
        if type(value) is dict:
            return [f"{self.value(key)}: {self.value(item)}" for key, item in value.items()]
        texts = map(self.value, value)
        return sorted(texts) if type(value) is set else list(texts)

    def value_lines(self, start: str, value: Any, indent: str = "") -> list[str]:
        """Returns ``start value`` on one line, or with one item a line if that is longer than a line."""
        text = start + self.value(value)
        if len(text) <= WIDTH or not value or type(value) not in _BRACKETS:
            return [text]
        return broken(
            start + _BRACKETS[type(value)][0], self._items(value), _BRACKETS[type(value)][1], indent
        )


def names_in(text: str) -> set[str]:
    """The names that source text looks up."""
    return set(_NAMES.findall(_STRINGS.sub("", text)))


def _classes_of(kind: type) -> Iterator[type]:
    """Yields the classes that stand in the annotations of a class's fields, as far as files define them."""
    if has_members(kind):
        for member in members_of(kind):
            yield from _classes_in(member.annotation)


def _classes_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, typing.NewType):
        annotation = annotation.__supertype__
    for argument in () if typing.get_origin(annotation) is typing.Literal else typing.get_args(annotation):
        yield from _classes_in(argument)
    kind = typing.get_origin(annotation) or annotation
    if isinstance(kind, type) and (has_members(kind) or issubclass(kind, enum.Enum)):
        yield kind


def _shape(shape: Shape) -> str:
    return f"rrpc.Shape({', '.join(map(literal_text, shape.dims))})"


def _home(thing: Any) -> str:
    return thing.name.rpartition(".")[0] if isinstance(thing, OneOfName) else str(thing.__module__)
