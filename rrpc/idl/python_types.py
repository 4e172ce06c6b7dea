"""Annotations as source text, with the imports and class definitions the text needs."""

from __future__ import annotations

import array
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from typing import Any

import numpy as np

from rrpc.service import AnnotationError

__all__ = ["Types", "docstring", "literal_text"]

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
_MODULES = {
    datetime.datetime: "datetime",
    datetime.date: "datetime",
    datetime.time: "datetime",
    datetime.timedelta: "datetime",
    decimal.Decimal: "decimal",
    uuid.UUID: "uuid",
}
_ARRAY_ALIAS = """if TYPE_CHECKING:
    AnyArray = array[Any]
else:
    AnyArray = array
"""


class Types:
    """Renders annotations and remembers what the file needs for them."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.names: dict[str, set[str]] = {}
        self.definitions: dict[str, str] = {}
        self._classes: dict[str, type] = {}

    def use(self, module: str, *names: str) -> None:
        """Import a module, or names from one."""
        if names:
            self.names.setdefault(module, set()).update(names)
        else:
            self.modules.add(module)

    def text(self, annotation: Any) -> str:
        """The annotation as source."""
        if annotation is None or annotation is type(None):
            return "None"
        if annotation is Any:
            self.use("typing", "Any")
            return "Any"
        if isinstance(annotation, typing.NewType):
            return self.text(annotation.__supertype__)
        origin = typing.get_origin(annotation)
        if origin is None:
            return self._class(annotation)
        return self._generic(annotation, origin, typing.get_args(annotation))

    def _generic(self, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
        if origin in (typing.Union, types.UnionType):
            return " | ".join(map(self.text, arguments))
        if origin is typing.Annotated:
            return self.text(arguments[0])
        if origin is typing.Literal:
            self.use("typing", "Literal")
            return f"Literal[{', '.join(map(self.default, arguments))}]"
        if origin is np.ndarray:
            return self._array(arguments)
        if isinstance(origin, type) and issubclass(origin, np.generic):
            return self._class(origin)
        inner = ", ".join("..." if argument is Ellipsis else self.text(argument) for argument in arguments)
        if origin in (collections.abc.Sequence, collections.abc.Mapping):
            self.use("collections.abc", origin.__name__)
        return f"{origin.__name__}[{inner or '()'}]"

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
        return self._defined(kind)

    def _numpy(self, kind: type[np.generic]) -> str:
        self.use("numpy")
        if kind in _ABSTRACT_NUMPY:
            self.use("typing", "Any")
            return f"np.{kind.__name__}[Any]"
        return "np.bool_" if kind is np.bool_ else f"np.{kind.__name__}"

    def _defined(self, kind: type) -> str:
        """A class of the service's own, defined again in the file."""
        name = kind.__name__
        known = self._classes.setdefault(name, kind)
        if known is not kind:
            raise AnnotationError(f"two classes are called {name}: {known.__module__} and {kind.__module__}")
        if name not in self.definitions:
            self.definitions[name] = ""  # a class may name itself
            definition = self._definition(kind)
            del self.definitions[name]  # so that it stands behind those it needs
            self.definitions[name] = definition
        return name

    def _definition(self, kind: type) -> str:
        if issubclass(kind, enum.Enum):
            return self._enum(kind)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple(kind)
        raise AnnotationError(f"{kind.__module__}.{kind.__qualname__} can't be written into a client")

    def _enum(self, kind: type[enum.Enum]) -> str:
        self.use("enum")
        bases = [enum.IntFlag, enum.Flag, enum.IntEnum]
        base = next((f"enum.{b.__name__}" for b in bases if issubclass(kind, b)), "enum.Enum")
        if issubclass(kind, str):
            base = "str, enum.Enum"
        # Python gives an enum without a docstring one of its own (up to 3.12).
        written = kind.__dict__.get("__doc__") not in (None, "An enumeration.")
        lines = [f"class {kind.__name__}({base}):", *docstring(kind.__doc__ if written else "", "    ")]
        lines += [f"    {name} = {literal_text(m.value)}" for name, m in kind.__members__.items()]
        return "\n".join(lines) + "\n"

    def _dataclass(self, kind: Any) -> str:
        self.use("dataclasses", "dataclass")
        hints = typing.get_type_hints(kind, include_extras=True)
        options = kind.__dataclass_params__
        set_options = [f"{name}=True" for name in ("order", "frozen") if getattr(options, name)]
        set_options += [] if options.eq else ["eq=False"]
        arguments = f"({', '.join(set_options)})" if set_options else ""
        # Without a docstring of its own a dataclass has its signature there.
        written = not (kind.__doc__ or "").startswith(f"{kind.__name__}(")
        lines = [f"@dataclass{arguments}", f"class {kind.__name__}:"]
        lines += docstring(kind.__doc__ if written else "", "    ")
        members = [
            self._field(kind, field, hints[field.name]) for field in dataclasses.fields(kind) if field.init
        ]
        return "\n".join(lines + (members or ["    pass"])) + "\n"

    def _field(self, kind: type, member: dataclasses.Field[Any], annotation: Any) -> str:
        what = f"{kind.__name__}.{member.name}"
        options = []
        if member.default_factory is not dataclasses.MISSING:
            factory: Any = member.default_factory
            if factory not in (list, dict, set, frozenset, tuple):
                raise AnnotationError(
                    f"{what}: a default_factory other than list, dict or set can't be written"
                )
            options.append(f"default_factory={factory.__name__}")
        elif member.default is not dataclasses.MISSING:
            options.append(self._default_of(what, member.default))
        if member.kw_only:
            options = [f"default={o}" if "=" not in o else o for o in options] + ["kw_only=True"]
        text = f"    {member.name}: {self.text(annotation)}"
        if not options:
            return text
        if len(options) == 1 and not options[0].startswith(("default_factory=", "kw_only=")):
            return f"{text} = {options[0]}"
        self.use("dataclasses", "field")
        return f"{text} = field({', '.join(options)})"

    def _named_tuple(self, kind: Any) -> str:
        self.use("typing", "NamedTuple")
        hints = typing.get_type_hints(kind, include_extras=True)
        written = not (kind.__doc__ or "").startswith(f"{kind.__name__}(")
        lines = [f"class {kind.__name__}(NamedTuple):", *docstring(kind.__doc__ if written else "", "    ")]
        for name in kind._fields:
            line = f"    {name}: {self.text(hints.get(name, Any))}"
            if name in kind._field_defaults:
                line += f" = {self._default_of(f'{kind.__name__}.{name}', kind._field_defaults[name])}"
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _default_of(self, what: str, value: Any) -> str:
        try:
            return self.default(value)
        except AnnotationError as error:
            raise AnnotationError(f"{what}: {error}") from None

    def default(self, value: Any) -> str:
        """A default value as source; AnnotationError if it has no literal."""
        if isinstance(value, enum.Enum):
            return f"{self._defined(type(value))}.{value.name}"
        return literal_text(value)


def literal_text(value: Any) -> str:
    """A plain value as source, with double quotes where they'd be usual."""
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is bytes:
        return "b" + _quoted(repr(value)[2:-1]) if b'"' not in value and b"'" not in value else repr(value)
    if kind is float:
        return repr(value) if value - value == 0 else f'float("{value}")'
    if value is None or kind in (bool, int, complex):
        return repr(value)
    if kind is list:
        return f"[{', '.join(map(literal_text, value))}]"
    if kind is tuple:
        return f"({', '.join(map(literal_text, value))}{',' * (len(value) == 1)})"
    if kind is dict:
        return "{" + ", ".join(f"{literal_text(k)}: {literal_text(v)}" for k, v in value.items()) + "}"
    raise AnnotationError(f"the default {value!r:.60} has no literal")


def _quoted(text: str) -> str:
    body = repr(text)
    if body[0] == '"' or '"' in text:
        return body
    return f'"{body[1:-1]}"'


def docstring(text: str | None, indent: str) -> list[str]:
    """The lines of a docstring, none for no text."""
    if not text or not text.strip():
        return []
    from inspect import cleandoc

    lines = cleandoc(text).replace("\\", "\\\\").replace('"""', '\\"\\"\\"').splitlines()
    if len(lines) == 1:
        last = lines[0] + " " * lines[0].endswith('"')
        return [f'{indent}"""{last}"""', ""]
    body = [f'{indent}"""{lines[0]}', *(f"{indent}{line}".rstrip() for line in lines[1:])]
    return [*body, f'{indent}"""', ""]
