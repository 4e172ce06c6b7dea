"""JSON to the values that annotations ask for."""

from __future__ import annotations

import base64
import binascii
import collections.abc
import datetime
import decimal
import difflib
import enum
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from rrpc._interface.members import has_members, members_of
from rrpc._interface.mismatch import item_type, type_text
from rrpc.codec import numpy_kind
from rrpc.schema.canonical_read import BadData, at

TYPE_KEY = "$type"
"""A key in a JSON object that names its dataclass, for unions in which several would fit."""
_ARRAY_KEYS = {"dtype", "shape", "data"}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def from_json(data: Any, annotation: Any) -> Any:
    """Returns the value that ``data`` stands for.

    Data that needs no conversion stays as it is, and is checked later as every argument is. Arrays from files stand
    in ``data`` as they are.
    """
    kind = unwrapped(annotation)
    if kind is Any or isinstance(data, np.ndarray):
        return data
    if alternatives(kind):
        return _one_of(data, kind)
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        return _literal(data, typing.get_args(kind))
    convert = _CONVERT.get(origin)
    if convert is not None:
        return convert(data, kind)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return _member(data, origin)
    if has_members(kind):
        return _instance(data, kind)
    if isinstance(origin, type) and issubclass(origin, np.generic):
        return data
    raise BadData(f"a {type_text(kind)} can't be given as JSON")


def unwrapped(annotation: Any) -> Any:
    """Removes ``Annotated`` from an annotation."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Returns the alternatives of a union, and an empty tuple for any other annotation."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else ()


def hint(name: str, names: typing.Iterable[str]) -> str:
    """``; did you mean ...?`` where one of ``names`` is near."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _shown(data: Any) -> str:
    import json

    text = json.dumps(data, default=repr)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _wrong(expected: str, data: Any) -> BadData:
    return BadData(f"expected {expected}, got {_shown(data)}")


def _one_of(data: Any, kind: Any) -> Any:
    """Converts data to the first alternative of a union that takes it."""
    items = [item for item in alternatives(kind) if item is not type(None) or data is None]
    if isinstance(data, dict) and TYPE_KEY in data:
        items = [item for item in items if getattr(item, "__name__", "") == data[TYPE_KEY]] or items
    if len(items) == 1:
        return from_json(data, items[0])
    for item in items:
        try:
            value = from_json(data, item)
            _check(item, value, data)
            return value
        except BadData:  # noqa: PERF203
            continue
    raise _wrong(type_text(kind), data)


def _check(item: Any, value: Any, data: Any) -> None:
    from rrpc._interface import Mismatch, compile_check

    try:
        compile_check(item)(value)
    except Mismatch:
        raise _wrong(type_text(item), data) from None


def _literal(data: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if type(choice) is type(data) and choice == data:
            return choice
        if isinstance(choice, bytes) and data == choice.decode("latin-1"):
            return choice
    raise _wrong(f"one of {', '.join(map(repr, choices))}", data)


def _member(data: Any, kind: type[enum.Enum]) -> enum.Enum:
    for member in kind:
        if data == member.name or (type(data) is type(member.value) and data == member.value):
            return member
    near = hint(data, kind.__members__) if isinstance(data, str) else ""
    raise BadData(f"expected {kind.__name__} ({', '.join(kind.__members__)}), got {_shown(data)}{near}")


def _instance(data: Any, kind: Any) -> Any:
    if not isinstance(data, dict) or data.get(TYPE_KEY, kind.__name__) != kind.__name__:
        raise _wrong(f"{kind.__name__}, an object", data)
    members = members_of(kind)
    fields = {member.name: member.annotation for member in members}
    values = {}
    for name, item in data.items():
        if name == TYPE_KEY:
            continue
        if name not in fields:
            raise BadData(f"{kind.__name__} has no field {name!r}{hint(name, fields)}")
        with at(f".{name}"):
            values[name] = from_json(item, fields[name])
    if missing := [member.name for member in members if member.required and member.name not in values]:
        raise BadData(f"{kind.__name__} without {', '.join(missing)}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:  # its own __post_init__
        raise BadData(f"{kind.__name__}: {error}") from None


def _items(make: Callable[[list[Any]], Any]) -> Callable[[Any, Any], Any]:
    def convert(data: Any, kind: Any) -> Any:
        if not isinstance(data, list):
            raise _wrong(f"{type_text(kind)}, a list", data)
        (item,) = typing.get_args(kind) or (Any,)
        try:
            return make([_item(i, each, item) for i, each in enumerate(data)])
        except TypeError:  # no item of a set
            raise _wrong(type_text(kind), data) from None

    return convert


def _item(index: int, data: Any, kind: Any) -> Any:
    with at(f"[{index}]"):
        return from_json(data, kind)


def _tuple(data: Any, kind: Any) -> Any:
    if not isinstance(data, list):
        raise _wrong(f"{type_text(kind)}, a list", data)
    kinds = typing.get_args(kind) or (Any, ...)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(data)
    if len(kinds) != len(data):
        raise _wrong(f"{type_text(kind)}, a list of {len(kinds)}", data)
    return tuple(_item(i, each, item) for i, (each, item) in enumerate(zip(data, kinds, strict=True)))


def _mapping(data: Any, kind: Any) -> Any:
    """Converts an object, or a list of pairs for keys that aren't text, to a mapping."""
    key, value = typing.get_args(kind) or (Any, Any)
    pairs = data
    if isinstance(data, dict):
        text_keys = str in (unwrapped(key), *alternatives(unwrapped(key))) or unwrapped(key) is Any
        pairs = [[name if text_keys else _parsed(name), item] for name, item in data.items()]
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise _wrong(f"{type_text(kind)}, an object or a list of pairs", data)
    found = {}
    for name, item in pairs:
        with at(f"[{_shown(name)}]"):
            try:
                found[from_json(name, key)] = from_json(item, value)
            except TypeError:
                raise _wrong(f"{type_text(key)} as a key", name) from None
    return found


def _parsed(name: str) -> Any:
    import json

    try:
        return json.loads(name)
    except ValueError:
        return name


def _binary(data: Any, kind: Any) -> Any:
    if isinstance(data, (bytes, bytearray)):
        return kind(data)
    if not isinstance(data, dict) or data.keys() != {"base64"}:
        raise _wrong('{"base64": "..."} or a file', data)
    try:
        return kind(base64.b64decode(data["base64"], validate=True))
    except (TypeError, ValueError, binascii.Error):
        raise _wrong("base64", data["base64"]) from None


def _text_form(parse: Callable[[str], Any], form: str) -> Callable[[Any, Any], Any]:
    def convert(data: Any, kind: Any) -> Any:
        try:
            if isinstance(data, str):
                return parse(data)
        except (ValueError, ArithmeticError):
            pass
        raise _wrong(f"{type_text(kind)}, such as {form}", data)

    return convert


def _iso(kind: Any) -> Callable[[str], Any]:
    # Before Python 3.11 a Z isn't understood.
    return lambda text: kind.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


def _number_or_text(kind: Any) -> Callable[[Any, Any], Any]:
    from_text = _text_form(kind, '"1.25"')
    return lambda data, annotation: (
        kind(repr(data))
        if isinstance(data, (int, float)) and not isinstance(data, bool)
        else from_text(data, annotation)
    )


def _duration(data: Any, kind: Any) -> datetime.timedelta:
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        raise _wrong("a timedelta, in seconds", data)
    try:
        return datetime.timedelta(seconds=data)
    except (OverflowError, ValueError):
        raise _wrong("a timedelta, in seconds", data) from None


def _complex(data: Any, kind: Any) -> Any:
    parts = _finite_or_not(data)
    if isinstance(parts, list) and len(parts) == 2 and all(type(part) in (int, float) for part in parts):
        return complex(*parts)
    if isinstance(data, str):
        try:
            return complex(data)
        except ValueError:
            pass
    if type(data) in (int, float):
        return complex(data)
    raise _wrong("complex, such as [1.0, -2.0]", data)


def _array(data: Any, kind: Any) -> Any:
    """Nested lists; or ``dtype``, ``shape`` and ``data``, as arrays in results are shown."""
    item = item_type(kind)
    concrete = item if item not in _ABSTRACT else None
    if isinstance(data, dict) and data.keys() <= _ARRAY_KEYS and "data" in data:
        try:
            concrete = np.dtype(data.get("dtype", concrete))
            array = np.asarray(_array_of(data["data"], concrete))
            return array.reshape(data.get("shape", array.shape))
        except (TypeError, ValueError) as error:
            raise BadData(f"no array: {error}") from None
    if isinstance(data, bool) or not isinstance(data, (list, int, float)):
        raise _wrong(f"{type_text(kind)}, nested lists or @file.npy", data)
    return _array_of(data, concrete)


_ABSTRACT = {np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger} | {
    np.inexact,
    np.floating,
    np.complexfloating,
}


def _array_of(data: Any, dtype: Any) -> Any:
    wanted = None if dtype is None else np.dtype(dtype)
    try:
        found = np.asarray(_finite_or_not(data))
    except ValueError:
        raise BadData("no array: its rows differ in length") from None
    if found.dtype.kind not in "biuf":
        raise BadData("no array: it has items that aren't numbers")
    if wanted is None:
        return found
    numpy_type = numpy_kind(wanted.type)
    numbers = np.dtype(numpy_type).kind
    if numbers == "c":
        return _complex_of(found).astype(wanted)
    with np.errstate(all="ignore"):
        converted = found.astype(wanted)
    lossy = numbers != "f" and not np.array_equal(
        converted if numpy_type is wanted.type else converted.astype(numpy_type), found
    )
    if found.size and (lossy or (wanted.kind == "b") != (found.dtype.kind == "b")):
        raise BadData(f"no {wanted} array: it has items that aren't {wanted}")
    return converted


def _complex_of(found: Any) -> Any:
    """JSON has them as pairs."""
    if not found.size:
        return found
    if found.ndim == 0 or found.shape[-1] != 2:
        raise BadData("no complex array: each item is a pair, [1.0, -2.0]")
    made = np.empty(found.shape[:-1], np.complex128)
    made.real, made.imag = found[..., 0], found[..., 1]  # to add them would make NaNs of what isn't finite
    return made


def _finite_or_not(data: Any) -> Any:
    """Replaces the texts for infinities and NaN, which JSON lacks, by numbers."""
    if isinstance(data, list):
        return [_finite_or_not(item) for item in data]
    return float(data) if isinstance(data, str) and data in _NOT_FINITE else data


def _as_is(data: Any, kind: Any) -> Any:
    return data


_CONVERT: dict[Any, Callable[[Any, Any], Any]] = {
    **dict.fromkeys((type(None), None, bool, int, str), _as_is),
    float: lambda data, kind: _finite_or_not(data),
    **dict.fromkeys((list, collections.abc.Sequence), _items(list)),
    set: _items(set),
    frozenset: _items(frozenset),
    tuple: _tuple,
    dict: _mapping,
    collections.abc.Mapping: _mapping,
    **dict.fromkeys((bytes, bytearray, memoryview), _binary),
    np.ndarray: _array,
    complex: _complex,
    datetime.datetime: _text_form(_iso(datetime.datetime), '"2026-01-31T12:00:00Z"'),
    datetime.date: _text_form(_iso(datetime.date), '"2026-01-31"'),
    datetime.time: _text_form(_iso(datetime.time), '"12:30:00"'),
    datetime.timedelta: _duration,
    decimal.Decimal: _number_or_text(decimal.Decimal),
    uuid.UUID: _text_form(uuid.UUID, '"12345678-1234-5678-1234-567812345678"'),
}
