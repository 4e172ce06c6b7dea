"""Data out of JSON to schemas. The data may be a stranger's: it is checked throughout, for meaning too.

An array that is borrowed where this version can't borrow one, such as in a struct, is read as an array like any other:
how it travels is the sender's affair.
"""

# A client reads a server's description here while it connects. The data chooses among the functions of this module's
# tables, and nothing else of it is run or imported.

from __future__ import annotations

import base64
import keyword
import math
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rrpc._prose import without_orders

from . import model
from .closure import inner_types, owned, types_in

DEPTH_MAX = 40
"""Levels of a type or a value: each is at most two of the data, which the codec carries 128 deep."""


class BadData(Exception):
    """Error in the data. The path to the faulty place grows while the exception propagates."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path = ""

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')}: {self.args[0]}" if self.path else str(self.args[0])


_shown = reprlib.repr
"""Of any value: short, however deep it is."""


@contextmanager
def at(step: str) -> Iterator[None]:
    """Puts a step in front of the path of errors in the data."""
    try:
        yield
    except BadData as error:
        error.path = step + error.path
        raise


def _need(data: Any, key: str, *kinds: type) -> Any:
    """``data[key]``, of one of these kinds exactly."""
    if type(data) is not dict:
        raise BadData(f"expected a map, got {type(data).__name__}")
    if key not in data:
        raise BadData(f"there is no {key!r}")
    return _of(f".{key}", data[key], *kinds)


def _may(data: Any, key: str, default: Any) -> Any:
    """``data[key]``, of the default's kind; the default if there is none."""
    return _need(data, key, type(default)) if type(data) is not dict or key in data else default


def _of(step: str, value: Any, *kinds: type) -> Any:
    # By the very class: bool is an int to isinstance().
    if kinds and type(value) not in kinds:
        with at(step):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise BadData(f"expected {names}, got {type(value).__name__}")
    return value


def _each(data: Any, key: str, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The items of the list ``data[key]``, none if it isn't there."""
    items = []
    for index, item in enumerate(_may(data, key, [])):
        with at(f".{key}[{index}]"):
            items.append(read(item))
    return tuple(items)


def _name(text: str, dotted: bool = False) -> str:
    parts = text.split(".") if dotted else [text]
    if not all(part.isidentifier() and not keyword.iskeyword(part) and not _special(part) for part in parts):
        raise BadData(f"{text!r:.60} is no name")
    return text


def _special(name: str) -> bool:
    """Names that mean something to Python, in the classes that are made of such data."""
    return name.startswith("__") and name.endswith("__")


def _described(data: Any, dotted: bool = False) -> dict[str, Any]:
    """Reads the name, the doc and, if there is one, the deprecation text."""
    name = _need(data, "name", str)
    with at(".name"):
        _name(name, dotted)
    described = {"name": name, "doc": without_orders(_may(data, "doc", ""))}
    if "deprecated" in data:
        described["deprecated"] = without_orders(_need(data, "deprecated", str))
    return described


def _once(what: str, keys: Iterator[Any]) -> None:
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            raise BadData(f"two {what} are called {key!r}")
        seen.add(key)


def read_service(data: Any) -> model.Service:
    """The service; ``BadData`` says what is wrong."""
    described = _described(data, dotted=True)
    methods = _each(data, "methods", _method)
    _once("methods", (method.name for method in methods))
    declarations: dict[str, model.Declaration] = {}
    for name, declared in _may(data, "declarations", {}).items():
        with at(f".declarations[{name!r}]"):
            declarations[name] = _declaration(declared)
            if declarations[name].name != name:
                raise BadData(f"it is called {declarations[name].name!r}")
    service = model.Service(methods=methods, declarations=declarations, **described)
    _names_exist(service)
    return service


def _method(data: Any) -> model.Method:
    parameters = _each(data, "parameters", _parameter)
    _once("parameters", (parameter.name for parameter in parameters))
    result, result_stream = _typed(data, "result"), _may(data, "result_stream", False)
    return model.Method(
        parameters=parameters,
        result=owned(result) if result_stream else result,
        result_stream=result_stream,
        errors=_each(data, "errors", _full_name),
        idempotent=_may(data, "idempotent", False),
        **_described(data),
    )


def _full_name(data: Any) -> str:
    return _name(_of("", data, str), dotted=True)


def _parameter(data: Any) -> model.Parameter:
    kind, stream = _typed(data, "type"), _may(data, "stream", False)
    return model.Parameter(
        type=owned(kind) if stream else kind,
        default=_default(data),
        keyword_only=_may(data, "keyword_only", False),
        positional_only=_may(data, "positional_only", False),
        stream=stream,
        **_described(data),
    )


def _default(data: Any) -> Any:
    if "default" not in data:
        return model.MISSING
    with at(".default"):
        return _value(data["default"])


def _declaration(data: Any) -> model.Declaration:
    kind = _need(data, "kind", str)
    if kind not in _DECLARATIONS:
        raise BadData(f"{kind!r:.60} is no kind of declaration")
    return _DECLARATIONS[kind](data)


def _struct(data: Any) -> model.Struct:
    reserved = _each(data, "reserved", _number_or_name)
    return model.Struct(
        fields=_fields(data), reserved=reserved, frozen=_may(data, "frozen", False), **_described(data, True)
    )


def _fields(data: Any) -> tuple[model.Field, ...]:
    fields = _each(data, "fields", _field)
    _once("fields", (field.name for field in fields))
    _once("fields", (field.number for field in fields))
    return fields


def _field(data: Any) -> model.Field:
    number = _need(data, "number", int)
    if number < 1:
        raise BadData(f"its number is {number}; numbers count from 1")
    return model.Field(
        number=number, type=owned(_typed(data, "type")), default=_default(data), **_described(data)
    )


def _number_or_name(data: Any) -> int | str:
    value: int | str = _of("", data, int, str)
    return value


def _enum(data: Any) -> model.Enum:
    members = _each(data, "members", _member)
    _once("members", (member.name for member in members))
    if len({type(member.value) for member in members}) > 1:
        raise BadData("some values are ints, some are strings")
    return model.Enum(
        members=members, reserved=_each(data, "reserved", _number_or_name), **_described(data, True)
    )


def _member(data: Any) -> model.EnumMember:
    return model.EnumMember(value=_need(data, "value", int, str), **_described(data))


def _oneof(data: Any) -> model.OneOf:
    alternatives = tuple(map(owned, _each(data, "alternatives", type_of_data)))
    if not alternatives:
        raise BadData("it has no alternatives")
    return model.OneOf(alternatives=alternatives, **_described(data, True))


def _error(data: Any) -> model.Error:
    reserved = _each(data, "reserved", _number_or_name)
    code = _need(data, "code", str)
    return model.Error(code=code, fields=_fields(data), reserved=reserved, **_described(data, True))


def _const(data: Any) -> model.Const:
    value = _need(data, "value")
    with at(".value"):
        value = _value(value)
    return model.Const(type=_typed(data, "type"), value=value, **_described(data, True))


_DECLARATIONS: dict[str, Callable[[Any], model.Declaration]] = {
    "struct": _struct,
    "enum": _enum,
    "oneof": _oneof,
    "error": _error,
    "const": _const,
}


# --- types -------------------------------------------------------------------------------------------


def _typed(data: Any, key: str) -> model.Type:
    inner = _need(data, key)
    with at(f".{key}"):
        return type_of_data(inner)


def type_of_data(data: Any, depth: int = 0) -> model.Type:
    """A type: a scalar's name, or a map whose one key (besides options) says what it is."""
    if depth > DEPTH_MAX:
        raise BadData(f"nested deeper than {DEPTH_MAX} levels")
    if type(data) is str:
        if data not in model.SCALARS:
            raise BadData(f"{_shown(data)} is no type")
        return model.Scalar(data)
    if type(data) is not dict:
        raise BadData(f"expected a type, got {type(data).__name__}")
    word = next((word for word in _TYPES if word in data), None)
    if word is None:
        raise BadData(f"no kind of type has {', '.join(map(repr, data))!s:.60}")
    with at(f".{word}"):
        return _TYPES[word](data, data[word], depth + 1)


def _array(data: Any, item: Any, depth: int) -> model.Type:
    # Its type comes first: a list can't be looked up in a set.
    if type(item) is not str or item not in model.ARRAY_ITEMS:
        raise BadData(f"there are no arrays of {_shown(item)}")
    dims = _each(data, "dims", _dim) if "dims" in data else None
    return model.Array(item, dims, _may(data, "borrowed", False))


def _dim(data: Any) -> str | int | None:
    dim: str | int | None = _of("", data, str, int, type(None))
    if (isinstance(dim, str) and not dim.isidentifier()) or (isinstance(dim, int) and dim < 0):
        raise BadData(f"a dimension can't be {_shown(dim)}")
    return dim


def _items(data: Any, depth: int) -> tuple[model.Type, ...]:
    if type(data) is not list:
        raise BadData(f"expected list, got {type(data).__name__}")
    items = []
    for index, item in enumerate(data):
        with at(f"[{index}]"):
            items.append(type_of_data(item, depth))
    return tuple(items)


def _map(data: Any, inner: Any, depth: int) -> model.Type:
    items = _items(inner, depth)
    if len(items) != 2:
        raise BadData(f"expected the types of key and value, got {len(items)}")
    key, value = items
    return model.Map(owned(key), value)


def _tuple(data: Any, inner: Any, depth: int) -> model.Type:
    items, variadic = _items(inner, depth), _may(data, "variadic", False)
    if variadic and len(items) != 1:
        raise BadData(f"any number of one type, yet {len(items)} are there")
    return model.Tuple(items, variadic)


def _union(data: Any, inner: Any, depth: int) -> model.Type:
    items = _items(inner, depth)
    if not items:
        raise BadData("it has no alternatives")
    return model.Union(tuple(map(owned, items)))


def _literal(data: Any, inner: Any, depth: int) -> model.Type:
    values = _each({"": _of("", inner, list)}, "", _value)
    if not values or any(type(value) not in (bool, int, str, bytes) for value in values):
        raise BadData("expected some values of bool, int, str or bytes")
    return model.Literal(values)


_TYPES: dict[str, Callable[[Any, Any, int], model.Type]] = {
    "array": _array,
    "list": lambda data, inner, depth: model.List(type_of_data(inner, depth)),
    "set": lambda data, inner, depth: model.Set(owned(type_of_data(inner, depth))),
    "frozenset": lambda data, inner, depth: model.Set(owned(type_of_data(inner, depth)), frozen=True),
    "map": _map,
    "tuple": _tuple,
    "optional": lambda data, inner, depth: model.Optional(type_of_data(inner, depth)),
    "union": _union,
    "literal": _literal,
    "named": lambda data, inner, depth: model.Named(_full_name(inner)),
    "opaque": lambda data, inner, depth: model.Opaque(_of("", inner, str)),
}


# --- values ------------------------------------------------------------------------------------------


def _value(data: Any, depth: int = 0) -> Any:
    if depth > DEPTH_MAX:
        raise BadData(f"nested deeper than {DEPTH_MAX} levels")
    if data is None or type(data) in (bool, int, str):
        return data
    # nan and the infinities, which JSON hasn't, have a form of their own.
    if type(data) is float and math.isfinite(data):
        return data
    if type(data) is list:
        return tuple(_value(item, depth + 1) for item in data)
    if type(data) is dict and len(data) == 1:
        ((word, inner),) = data.items()
        try:
            return _VALUES[word](inner, depth + 1)
        except (KeyError, TypeError, ValueError):
            # What the table's functions raise for data of another form.
            raise BadData(f"{_shown(data)} is no value") from None
    raise BadData(f"{_shown(data)} is no value")


def _pairs(data: Any, depth: int) -> dict[Any, Any]:
    return {_value(key, depth): _value(value, depth) for key, value in data}


def _float(data: Any) -> float:
    # A table of three, as float() takes many texts more.
    return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}[data])


def _part(data: Any) -> float:
    return data if type(data) is float else _float(data["float"])


_VALUES: dict[str, Callable[[Any, int], Any]] = {
    "float": lambda data, depth: _float(data),
    "bytes": lambda data, depth: base64.b64decode(data, validate=True),
    "complex": lambda data, depth: complex(*map(_part, data)),
    "map": _pairs,
    "opaque": lambda data, depth: model.Opaque(_of("", data, str)),
}


# --- meaning -----------------------------------------------------------------------------------------


def _names_exist(service: model.Service) -> None:
    """Every name leads to a declaration of the right kind."""
    for method in service.methods:
        what = f"method {method.name}"
        for error in method.errors:
            if not isinstance(service.declarations.get(error), model.Error):
                raise BadData(f"{what}: no error {error!r} is declared")
        for kind in (method.result, *(parameter.type for parameter in method.parameters)):
            _types_exist(what, kind, service.declarations)
    for name, declaration in service.declarations.items():
        for kind in types_in(declaration):
            _types_exist(name, kind, service.declarations)


def _types_exist(where: str, kind: model.Type, declarations: dict[str, model.Declaration]) -> None:
    if isinstance(kind, model.Named) and not isinstance(
        declarations.get(kind.name), (model.Struct, model.Enum, model.OneOf)
    ):
        raise BadData(f"{where}: no type {kind.name!r} is declared")
    for inner in inner_types(kind):
        _types_exist(where, inner, declarations)
