"""Definitions of a service's classes as text: enums, dataclasses, typed dicts, named tuples.

Attrs classes and Pydantic models become dataclasses too.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import keyword
import typing
from typing import Any

from rrpc._interface import AnnotationError
from rrpc._interface.members import Member, has_members, hints_of, is_named_tuple, is_typed_dict, members_of
from rrpc.errors import RpcError, class_of
from rrpc.schema.to_python import DOCS

from .emit_text import broken, camel, docstring, literal_text
from .emit_types import Types, names_in

_BUILTIN_FACTORIES = (list, dict, set, frozenset, tuple)


def define(kind: type, types: Types) -> str:
    """The class's text; AnnotationError if it can't be written."""
    if issubclass(kind, enum.Enum):
        return _enum(kind, types)
    if is_typed_dict(kind):
        return _typed_dict(kind, types)
    if has_members(kind):
        _must_be_names(kind)
        return _Dataclass(kind, types).text()
    if is_named_tuple(kind):
        return _named_tuple(kind, types)
    raise AnnotationError(f"{kind.__module__}.{kind.__qualname__} can't be written into a client")


def _enum(kind: type[enum.Enum], types: Types) -> str:
    types.use("enum")
    bases = [enum.IntFlag, enum.Flag, enum.IntEnum]
    base = next((f"enum.{b.__name__}" for b in bases if issubclass(kind, b)), "enum.Enum")
    if issubclass(kind, str):
        base = "str, enum.Enum"
    # Python gives an enum without a docstring one of its own (up to 3.12).
    written = kind.__dict__.get("__doc__") not in (None, "An enumeration.")
    docs = _docs_of(kind)
    lines = [f"class {kind.__name__}({base}):", *docstring(kind.__doc__ if written else "", "    ")]
    for name, member in kind.__members__.items():
        lines += [f"    {name} = {literal_text(member.value)}", *_attribute_doc(docs, name)]
    reserved = getattr(kind, "__rrpc_reserved__", ())
    if reserved:
        lines.append(f"    __rrpc_reserved__ = {types.value(tuple(reserved))}")
    return "\n".join(lines) + "\n"


def _docs_of(kind: type) -> dict[str, str]:
    return typing.cast("dict[str, str]", kind.__dict__.get(DOCS, {}))


def _attribute_doc(docs: dict[str, str], name: str) -> list[str]:
    return docstring(docs.get(name), "    ")[:-1]


class _Dataclass:
    def __init__(self, kind: Any, types: Types) -> None:
        self._kind = kind
        self._name: str = kind.__name__
        self._types = types
        self._variables: tuple[Any, ...] = getattr(kind, "__parameters__", ())
        self._members = members_of(kind[self._variables] if self._variables else kind)
        self._hidden = {field.name for field in self._members}

    def text(self) -> str:
        kind, docs = self._kind, _docs_of(self._kind)
        # Without a docstring of its own a dataclass has its signature there.
        written = not (kind.__doc__ or "").startswith(f"{self._name}(")
        doc = docstring(kind.__doc__ if written else "", "    ")
        body = self._numbers()
        for member in self._members:
            body += [*self._field(member), *_attribute_doc(docs, member.name)]
        body = [*doc, *body] if body else doc[:-1] or ["    pass"]
        return "\n".join([*self._head(), *body]) + "\n"

    def _head(self) -> list[str]:
        if issubclass(self._kind, RpcError):
            self._types.use("rrpc")
            return ["@rrpc.error", f"class {self._name}(rrpc.{class_of(self._kind.code).__name__}):"]
        self._types.use("dataclasses", "dataclass")
        set_options = []
        options = getattr(self._kind, "__dataclass_params__", None)
        if options is not None:
            set_options = [f"{name}=True" for name in ("order", "frozen") if getattr(options, name)]
            set_options += [] if options.eq else ["eq=False"]
        arguments = f"({', '.join(set_options)})" if set_options else ""
        return [f"@dataclass{arguments}", f"class {self._name}{self._bases()}:"]

    def _bases(self) -> str:
        if not self._variables:
            return ""
        self._types.use("typing", "Generic")
        return f"(Generic[{', '.join(map(self._types.text, self._variables))}])"

    def _numbers(self) -> list[str]:
        lines = []
        for name, type_text in (
            ("rrpc_numbers", "dict[str, int]"),
            ("rrpc_reserved", "tuple[int | str, ...]"),
        ):
            value = getattr(self._kind, name, None)
            if value:
                self._types.use("typing", "ClassVar")
                start = f"    {name}: ClassVar[{type_text}] = "
                lines += self._types.value_lines(start, value, "    ")
        return [*lines, ""] if lines else []

    def _field(self, member: Member) -> list[str]:
        annotation = member.annotation
        hint = f"{self._name}{camel(member.name)}"
        options = self._options(member, annotation, hint)
        text = f"    {member.name}: {self._types.named(annotation, hint, self._hidden)}"
        if not options:
            return [text]
        if options.keys() == {"default"}:
            return [f"{text} = {options['default']}"]
        field = "field"
        if field in self._hidden:
            field = "dataclasses.field"
            self._types.use("dataclasses")
        else:
            self._types.use("dataclasses", field)
        return broken(
            f"{text} = {field}(", [f"{name}={value}" for name, value in options.items()], ")", "    "
        )

    def _options(self, member: Member, annotation: Any, hint: str) -> dict[str, str]:
        what = f"{self._name}.{member.name}"
        options = {}
        if member.default_factory is not dataclasses.MISSING:
            options["default_factory"] = self._factory(what, member.default_factory, annotation, hint)
        elif member.default is not dataclasses.MISSING:
            options["default"] = self._types.default(what, annotation, member.default, hint)
        for name, value in options.items():
            if names_in(value) & self._hidden:
                options[name] = self._types.renamed(value, f"{hint}Default")
        return options | ({"kw_only": "True"} if member.kw_only else {})

    def _factory(self, what: str, factory: Any, annotation: Any, hint: str) -> str:
        if factory in _BUILTIN_FACTORIES:
            return str(factory.__name__)
        if isinstance(factory, functools.partial) and len(factory.args) == 1 and not factory.keywords:
            made = typing.get_origin(factory.func) or factory.func
            if made in _BUILTIN_FACTORIES:
                self._types.use("functools")
                value = self._types.default(what, annotation, factory.args[0], hint)
                return f"functools.partial({made.__name__}, {value})"
        raise AnnotationError(f"{what}: a default_factory other than list, dict or set can't be written")


def _must_be_names(kind: type) -> None:
    for member in members_of(kind):
        if not member.name.isidentifier() or keyword.iskeyword(member.name):
            raise AnnotationError(
                f"{kind.__name__}: {member.name!r} can't be the name of a field in a client"
            )


def _typed_dict(kind: type, types: Types) -> str:
    """Writes optional keys in a class derived from that of the required ones: NotRequired came with Python 3.11."""
    _must_be_names(kind)
    variables: tuple[Any, ...] = getattr(kind, "__parameters__", ())
    if variables:
        raise AnnotationError(f"{kind.__name__}: a generic TypedDict can't be written into a client")
    types.use("typing", "TypedDict")
    members = members_of(kind)
    doc = docstring(kind.__doc__ if "__doc__" in kind.__dict__ else "", "    ")
    required = [f"    {m.name}: {types.text(m.annotation)}" for m in members if not m.optional]
    optional = [f"    {m.name}: {types.text(m.annotation)}" for m in members if m.optional]
    if not optional:
        return "\n".join([f"class {kind.__name__}(TypedDict):", *doc, *(required or ["    pass"])]) + "\n"
    base = "TypedDict"
    head: list[str] = []
    if required:
        base = f"_{kind.__name__}Required"
        head = [f"class {base}(TypedDict):", *required, "", ""]
    return "\n".join([*head, f"class {kind.__name__}({base}, total=False):", *doc, *optional]) + "\n"


def _named_tuple(kind: Any, types: Types) -> str:
    types.use("typing", "NamedTuple")
    hints = hints_of(kind)
    written = not (kind.__doc__ or "").startswith(f"{kind.__name__}(")
    lines = [f"class {kind.__name__}(NamedTuple):", *docstring(kind.__doc__ if written else "", "    ")]
    for name in kind._fields:
        line = f"    {name}: {types.text(hints.get(name, Any))}"
        if name in kind._field_defaults:
            line += f" = {_default_of(f'{kind.__name__}.{name}', kind._field_defaults[name], types)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _default_of(what: str, value: Any, types: Types) -> str:
    try:
        return types.value(value)
    except AnnotationError as error:
        raise AnnotationError(f"{what}: {error}") from None
