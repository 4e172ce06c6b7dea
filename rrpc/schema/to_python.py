"""Schemas as live Python: dataclasses, enums, annotations, and interfaces of services.

Nothing is generated or imported, so that a client that learns of a service only when it runs can use it too.
"""

# One thread at a time uses a `PythonTypes`, as making one class may make and fill others.

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import typing
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from rrpc import types
from rrpc._interface import MISSING as NO_DEFAULT
from rrpc._interface import AnnotationError, Interface, error
from rrpc._interface import Method as LiveMethod
from rrpc._interface import Parameter as LiveParameter
from rrpc.errors import StatusCode, class_of

from . import model
from .docstrings import DOCS, join_docstring
from .idl_text import bare

__all__ = ["DOCS", "OneOfName", "PythonTypes", "documentation", "to_interface"]

_SCALARS: dict[str, Any] = {
    "none": None,
    "bool": bool,
    "int": int,
    "float": float,
    "f64": float,
    "complex": complex,
    "string": str,
    "bytes": bytes,
    "buffer": memoryview,
    "any": Any,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "datetime": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "duration": datetime.timedelta,
    **{name: getattr(types, name) for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32")},
}
_ITEMS: dict[str, Any] = {
    "any": Any,
    "bool": np.bool_,
    **{f"i{bits}": getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(np, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": getattr(np, f"float{bits}") for bits in (16, 32, 64)},
    **{f"c{bits}": getattr(np, f"complex{bits}") for bits in (64, 128)},
}


@dataclass(frozen=True)
class OneOfName:
    """Note in an ``Annotated`` with the full name of the one-of that the union is."""

    name: str
    doc: str = dataclasses.field(default="", compare=False)


def to_interface(service: model.Service) -> Interface:
    """The interface of a service, with classes of its own."""
    return PythonTypes(service.declarations).interface(service)


class PythonTypes:
    """The Python of declarations, made when asked for: a class, an alias, a value each."""

    def __init__(self, declarations: Mapping[str, model.Declaration]) -> None:
        self._declarations = declarations
        self._made: dict[str, Any] = {}
        self._open: list[str] = []  # one-ofs that are being made
        self._unfilled: list[tuple[Any, model.Struct | model.Error]] = []
        self._filling = False

    def __getitem__(self, name: str) -> Any:
        """A struct's, enum's or error's class, a one-of's annotation, a constant's value. KeyError: there is none."""
        if name not in self._made:
            declaration = self._declarations[name]
            if isinstance(declaration, model.Struct):
                self._made[name] = self._struct(name, declaration)
            elif isinstance(declaration, model.Enum):
                self._made[name] = _enum(name, declaration)
            elif isinstance(declaration, model.OneOf):
                self._made[name] = self._one_of(name, declaration)
            elif isinstance(declaration, model.Error):
                self._made[name] = self._error(name, declaration)
            else:
                self._made[name] = self.value(declaration.type, declaration.value)
            if not self._open and not self._filling:
                self._fill_fields()
        return self._made[name]

    def _struct(self, name: str, struct: model.Struct) -> Any:
        # Any for now: a field's class may not be made yet.
        members = [(member, Any, field) for member, field in self._members(struct).items()]
        namespace = _namespace(name, struct)
        kind: Any = dataclasses.make_dataclass(bare(name), members, namespace=namespace, frozen=struct.frozen)
        kind.__module__ = namespace["__module__"]  # Python 3.12 and later put this module there
        self._unfilled.append((kind, struct))
        return kind

    def _error(self, name: str, declared: model.Error) -> Any:
        members = self._members(declared)
        namespace = {**_namespace(name, declared), **members, "__annotations__": dict.fromkeys(members, Any)}
        # A description of a later release may name a code that isn't known here.
        code = getattr(StatusCode, declared.code.upper(), StatusCode.UNKNOWN)
        kind: Any = error(type(bare(name), (class_of(code),), namespace))
        self._unfilled.append((kind, declared))
        return kind

    def _members(self, struct: model.Struct | model.Error) -> dict[str, Any]:
        """The fields as a dataclass has them."""
        after_default = False
        members = {}
        for member in struct.fields:
            options: dict[str, Any] = self._default(member)
            # Required, and behind one that isn't: Python wants its name then.
            options |= {"kw_only": True} if after_default and not options else {}
            after_default = after_default or bool(options)
            members[member.name] = dataclasses.field(**options)
        return members

    def _fill_fields(self) -> None:
        """Fills in the fields once all classes exist, since a struct may lead back to itself.

        Classes that the fields need join those that wait: a chain of structs may be long, so it isn't followed by
        recursion.
        """
        self._filling = True
        try:
            while self._unfilled:
                kind, struct = self._unfilled.pop()
                for member, described in zip(struct.fields, dataclasses.fields(kind), strict=True):
                    kind.__annotations__[member.name] = described.type = self.annotation(member.type)
        finally:
            self._filling = False

    def _default(self, member: model.Field) -> dict[str, Any]:
        if member.default is model.MISSING or isinstance(member.default, model.Opaque):
            return {}
        value = self.value(member.type, member.default)
        if not isinstance(value, (list, dict, set)):
            return {"default": value}
        # A copy of the default for each instance.
        return {"default_factory": functools.partial(type(value), value) if value else type(value)}

    def _one_of(self, name: str, one_of: model.OneOf) -> Any:
        if name in self._open:
            raise AnnotationError(f"{bare(name)} contains itself: put a struct in between")
        self._open.append(name)
        union = _of(typing.Union, tuple(map(self.annotation, one_of.alternatives)))
        self._open.pop()
        return Annotated[union, OneOfName(name, documentation(one_of))]

    def annotation(self, kind: model.Type) -> Any:
        """The Python annotation of a type."""
        if isinstance(kind, model.Scalar):
            return _SCALARS[kind.name]
        if isinstance(kind, model.Named):
            return self[kind.name]
        # Never evaluated: the text may be a stranger's.
        if isinstance(kind, model.Opaque):
            return Any
        if isinstance(kind, model.Literal):
            return typing.Literal[kind.values]
        if isinstance(kind, model.Array):
            array = _of(NDArray, _ITEMS.get(kind.item) or _ml_type(kind.item))
            shaped = array if kind.dims is None else Annotated[array, types.Shape(*kind.dims)]
            return _of(types.Borrowed, shaped) if kind.borrowed else shaped
        return self._container(kind)

    def _container(
        self, kind: model.List | model.Set | model.Map | model.Tuple | model.Optional | model.Union
    ) -> Any:
        if isinstance(kind, model.List):
            return _of(list, self.annotation(kind.item))
        if isinstance(kind, model.Set):
            return _of(frozenset if kind.frozen else set, self.annotation(kind.item))
        if isinstance(kind, model.Map):
            return _of(dict, (self.annotation(kind.key), self.annotation(kind.value)))
        if isinstance(kind, model.Optional):
            return _of(typing.Union, (self.annotation(kind.item), type(None)))
        items = tuple(map(self.annotation, kind.items))
        if isinstance(kind, model.Union):
            return _of(typing.Union, items)
        return _of(tuple, (*items, ...) if kind.variadic else items)

    def value(self, kind: model.Type, value: Any) -> Any:
        """A default's or a constant's value, of built-in types, as one of the type."""
        if isinstance(kind, model.Optional):
            return None if value is None else self.value(kind.item, value)
        if isinstance(kind, model.Named):
            declared = self._declarations[kind.name]
            if isinstance(declared, model.OneOf):
                return self.value(model.Union(declared.alternatives), value)
            return self[kind.name][value] if isinstance(declared, model.Enum) else value
        if isinstance(kind, model.Union):
            return self._value_of_one(kind, value)
        if isinstance(kind, (model.List, model.Set)):
            made: Any = list if isinstance(kind, model.List) else frozenset if kind.frozen else set
            return made(self.value(kind.item, item) for item in value)
        if isinstance(kind, model.Tuple):
            kinds = kind.items * len(value) if kind.variadic else kind.items
            return tuple(self.value(item, each) for item, each in zip(kinds, value, strict=True))
        if isinstance(kind, model.Map):
            return {self.value(kind.key, k): self.value(kind.value, v) for k, v in dict(value).items()}
        if isinstance(kind, model.Scalar) and kind.name in ("float", "f32", "f64") and type(value) is int:
            return float(value)
        return value

    def _value_of_one(self, kind: model.Union, value: Any) -> Any:
        """Makes the value by the first alternative that has such values."""
        for item in kind.items:
            declared = self._declarations.get(item.name) if isinstance(item, model.Named) else None
            if isinstance(declared, model.Enum) and any(member.name == value for member in declared.members):
                return self.value(item, value)
            if isinstance(item, (model.List, model.Set, model.Tuple, model.Map)) and isinstance(
                value, (tuple, dict)
            ):
                return self.value(item, value)
        return value

    def interface(self, service: model.Service) -> Interface:
        """The service as the decorator would describe it."""
        methods = {method.name: self._method(service.name, method) for method in service.methods}
        return Interface(service.name, documentation(service), methods)

    def _method(self, service: str, method: model.Method) -> LiveMethod:
        parameters = tuple(self._parameter(parameter) for parameter in method.parameters)
        result = self._streamed(method.result, method.result_stream)
        doc = self._method_doc(method)
        name = f"{service}.{method.name}"
        annotations = {parameter.name: parameter.annotation for parameter in parameters}

        # Never called: it carries the signature for whatever looks at a method's function.
        def function(self: object, *arguments: object, **named: object) -> None:
            raise NotImplementedError(name)

        function.__annotations__ = {**annotations, "return": result}
        function.__name__, function.__doc__ = method.name, doc
        errors = tuple(self[each] for each in method.errors)
        return LiveMethod(name, doc, parameters, result, function, method.idempotent, errors)

    def _parameter(self, parameter: model.Parameter) -> LiveParameter:
        default = parameter.default
        return LiveParameter(
            parameter.name,
            self._streamed(parameter.type, parameter.stream),
            NO_DEFAULT
            if default is model.MISSING or isinstance(default, model.Opaque)
            else self.value(parameter.type, default),
            parameter.keyword_only,
            parameter.positional_only,
        )

    def _streamed(self, kind: model.Type, stream: bool) -> Any:
        annotation = self.annotation(kind)
        return _of(collections.abc.Iterator, annotation) if stream else annotation

    def _method_doc(self, method: model.Method) -> str:
        arguments = [f"    {p.name}: {_one_line(documentation(p))}" for p in method.parameters if _has_doc(p)]
        raised = [f"    {self._error_line(name)}" for name in method.errors]
        parts = [documentation(method)]
        parts += ["\n".join(["Args:", *arguments])] if arguments else []
        parts += ["\n".join(["Raises:", *raised])] if raised else []
        return "\n\n".join(filter(None, parts))

    def _error_line(self, name: str) -> str:
        error = self._declarations.get(name)
        if not isinstance(error, model.Error):
            return bare(name)
        text = f"{bare(name)} ({error.code})"
        return f"{text}: {_one_line(documentation(error))}" if _has_doc(error) else text


def _ml_type(name: str) -> Any:
    """Any where ml_dtypes isn't installed: such an array can't arrive then."""
    try:
        import ml_dtypes
    except ImportError:
        return Any
    return getattr(ml_dtypes, name, Any)


def documentation(
    described: model.Declaration | model.Field | model.Parameter | model.Method | model.Service | Any,
) -> str:
    """The documentation, and the line that says what is deprecated."""
    return join_docstring(described.doc, described.deprecated)


def _of(generic: Any, arguments: Any) -> Any:
    """``generic[arguments]``, where both are known only now.

    Made anew: what typing keeps may have the members of a union in another order, since such unions are equal.
    """
    make = getattr(getattr(type(generic), "__getitem__", None), "__wrapped__", None)
    return generic[arguments] if make is None else make(generic, arguments)


def _has_doc(described: Any) -> bool:
    return bool(described.doc) or described.deprecated is not None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _docs(described: typing.Iterable[Any]) -> dict[str, str]:
    return {each.name: documentation(each) for each in described if _has_doc(each)}


def _namespace(name: str, struct: model.Struct | model.Error) -> dict[str, Any]:
    described = {"__doc__": documentation(struct), "__module__": _package(name)}
    return {**described, DOCS: _docs(struct.fields), **_numbers(struct)}


def _numbers(struct: model.Struct | model.Error) -> dict[str, Any]:
    """Returns class attributes for field numbers other than 1, 2, 3, ... and reserved numbers and names."""
    numbers = {member.name: member.number for member in struct.fields}
    said: dict[str, Any] = {}
    if list(numbers.values()) != list(range(1, len(numbers) + 1)):
        said["rrpc_numbers"] = numbers
    return said | ({"rrpc_reserved": struct.reserved} if struct.reserved else {})


def _enum(name: str, declared: model.Enum) -> Any:
    values = {member.name: member.value for member in declared.members}
    mixed_in: type = str if any(isinstance(value, str) for value in values.values()) else int
    if any(hasattr(mixed_in, member) for member in values):  # a member called title would hide str's
        mixed_in = object
    make: Any = enum.IntEnum if mixed_in is int else enum.Enum
    options = {"type": str} if mixed_in is str else {}
    kind = make(bare(name), values, module=_package(name), **options)
    kind.__doc__ = documentation(declared) or None
    setattr(kind, DOCS, _docs(declared.members))
    if declared.reserved:
        kind.__rrpc_reserved__ = declared.reserved
    return kind


def _package(name: str) -> str:
    return name.rpartition(".")[0] or __name__
