"""Schemas as data for JSON, and back: what reflection sends.

A type is a word (``"i32"``) or a map with one key that says what it is (``{"list": "i32"}``), a value is
itself or, where JSON has no word for it, such a map too. What is empty or false is left out. Positions are left out
as well: the paths of a server are nobody's business. What ``from_data`` doesn't know it ignores, so that
newer servers can say more.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

from . import model
from .canonical_read import DEPTH_MAX, BadData, read_service
from .fingerprints import fingerprint

Data = dict[str, Any]


def from_data(data: Any) -> model.Service:
    """The service that ``to_data`` turned into ``data``. ValueError says what is wrong with it, and where.

    It raises TooIntricate, which is one, where the types expand to more than ``fingerprint`` works through: whatever
    is made of a service expands them in the same way.
    """
    return with_fingerprint(data)[0]


def with_fingerprint(data: Any) -> tuple[model.Service, str]:
    """Does what ``from_data`` does, and returns the service's fingerprint too."""
    try:
        service = read_service(data)
    except BadData as error:
        raise ValueError(f"not a service's description: {error}") from None
    return service, fingerprint(service)


def to_data(service: model.Service) -> Data:
    """The service as maps, lists, strings, numbers, booleans and None; the same for the same service."""
    return _described(
        service,
        methods=[_method(method) for method in service.methods],
        declarations={name: _declaration(each) for name, each in service.declarations.items()},
    )


def _described(thing: Any, **more: Any) -> Data:
    """Name and documentation, and what of ``more`` says something."""
    data: Data = {"name": thing.name}
    if thing.doc:
        data["doc"] = thing.doc
    if thing.deprecated is not None:
        data["deprecated"] = thing.deprecated
    # 0 equals False and would be left out, so nothing that may be 0 is given here; numbers of fields begin at 1.
    return data | {key: value for key, value in more.items() if value not in ("", [], {}, False)}


def _method(method: model.Method) -> Data:
    return _described(
        method,
        parameters=[_parameter(parameter) for parameter in method.parameters],
        result=type_to_data(method.result),
        result_stream=method.result_stream,
        errors=list(method.errors),
        idempotent=method.idempotent,
    )


def _parameter(parameter: model.Parameter) -> Data:
    data = _described(
        parameter,
        type=type_to_data(parameter.type),
        keyword_only=parameter.keyword_only,
        positional_only=parameter.positional_only,
        stream=parameter.stream,
    )
    return data | _default(parameter.default)


def _default(value: Any) -> Data:
    return {} if value is model.MISSING else {"default": _value(value)}


def _declaration(declaration: model.Declaration) -> Data:
    if isinstance(declaration, model.Struct):
        fields = [_field(field) for field in declaration.fields]
        reserved = list(declaration.reserved)
        return _described(
            declaration, kind="struct", fields=fields, reserved=reserved, frozen=declaration.frozen
        )
    if isinstance(declaration, model.Enum):
        members = [_member(member) for member in declaration.members]
        return _described(declaration, kind="enum", members=members, reserved=list(declaration.reserved))
    if isinstance(declaration, model.OneOf):
        return _described(
            declaration, kind="oneof", alternatives=[*map(type_to_data, declaration.alternatives)]
        )
    if isinstance(declaration, model.Error):
        fields = [_field(field) for field in declaration.fields]
        reserved = list(declaration.reserved)
        return _described(declaration, kind="error", code=declaration.code, fields=fields, reserved=reserved)
    return _const(declaration)


def _const(const: model.Const) -> Data:
    # The value stands apart, as it may be 0, False or empty.
    return _described(const, kind="const", type=type_to_data(const.type)) | {"value": _value(const.value)}


def _field(field: model.Field) -> Data:
    return _described(field, number=field.number, type=type_to_data(field.type)) | _default(field.default)


def _member(member: model.EnumMember) -> Data:
    return _described(member) | {"value": member.value}


def type_to_data(kind: model.Type, depth: int = 0) -> Any:
    """A type alone, as it stands within ``to_data``'s result."""
    if depth > DEPTH_MAX:
        raise ValueError(f"a type is nested deeper than {DEPTH_MAX} levels")
    return _TYPES[type(kind)](kind, lambda inner: type_to_data(inner, depth + 1))


_Inner = Callable[[model.Type], Any]


def _array(kind: model.Array, inner: _Inner) -> Data:
    data: Data = {"array": kind.item}
    if kind.dims is not None:
        data["dims"] = list(kind.dims)
    return data | ({"borrowed": True} if kind.borrowed else {})


def _tuple(kind: model.Tuple, inner: _Inner) -> Data:
    return {"tuple": [*map(inner, kind.items)]} | ({"variadic": True} if kind.variadic else {})


_TYPES: dict[type, Callable[[Any, _Inner], Any]] = {
    model.Scalar: lambda kind, inner: kind.name,
    model.Array: _array,
    model.List: lambda kind, inner: {"list": inner(kind.item)},
    model.Set: lambda kind, inner: {"frozenset" if kind.frozen else "set": inner(kind.item)},
    model.Map: lambda kind, inner: {"map": [inner(kind.key), inner(kind.value)]},
    model.Tuple: _tuple,
    model.Optional: lambda kind, inner: {"optional": inner(kind.item)},
    model.Union: lambda kind, inner: {"union": [*map(inner, kind.items)]},
    model.Literal: lambda kind, inner: {"literal": [*map(_value, kind.values)]},
    model.Named: lambda kind, inner: {"named": kind.name},
    model.Opaque: lambda kind, inner: {"opaque": kind.text},
}


def _value(value: Any, depth: int = 0) -> Any:
    """A default, a constant or a literal's choice."""
    if depth > DEPTH_MAX:
        raise ValueError(f"a value is nested deeper than {DEPTH_MAX} levels")
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"complex": [_value(value.real), _value(value.imag)]}
    if isinstance(value, (tuple, list)):
        return [_value(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {"map": [[_value(k, depth + 1), _value(v, depth + 1)] for k, v in value.items()]}
    if isinstance(value, model.Opaque):
        return {"opaque": value.text}
    raise ValueError(f"{value!r:.60} is no value of the schema")
