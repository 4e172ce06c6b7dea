"""Values of any type of the schema, with the classes of a generated module, and whether two are the same."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from rrpc.schema import (
    MISSING,
    Array,
    Declaration,
    Enum,
    List,
    Literal,
    Map,
    Named,
    OneOf,
    Optional,
    Scalar,
    Set,
    Struct,
    Tuple,
    Type,
    Union,
)

_SIZES = {"dim_n": 2, "dim_m": 3}
_DTYPES = {"any": "int16", "bool": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_SCALARS: dict[str, Any] = {
    "none": None,
    "bool": True,
    "float": 2.5,
    "f32": 0.5,
    "f64": 2.5,
    "complex": 1 + 2j,
    "string": "text",
    "bytes": b"bytes",
    "buffer": memoryview(b"buffer"),
    "any": ["anything", 1],
    "uuid": uuid.UUID(int=7),
    "decimal": decimal.Decimal("1.50"),
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, 5),
    "date": datetime.date(2026, 1, 2),
    "time": datetime.time(3, 4, 5),
    "duration": datetime.timedelta(seconds=90),
}


class Values:
    """``module`` has the classes, by bare name."""

    def __init__(self, declared: Mapping[str, Declaration], module: Any) -> None:
        self._declared = declared
        self._module = module

    def of(self, kind: Type, depth: int = 0) -> Any:
        """A value; the same one each time."""
        match kind:
            case Scalar(name):
                return _SCALARS.get(name, 42)
            case Array(item, dims):
                shape = (2,) if dims is None else [_size(dim) for dim in dims]
                dtype = getattr(ml_dtypes, item, None) or _DTYPES.get(item) or _DTYPES[item[0]] + item[1:]
                return np.ones(shape, dtype)
            case Literal(values):
                return values[-1]
            case List(item):
                return [] if depth > 3 else [self.of(item, depth + 1)]
            case Set(item, frozen):
                return (frozenset if frozen else set)([self.of(item, depth + 1)])
            case Map(key, item):
                return {} if depth > 3 else {self.of(key, depth + 1): self.of(item, depth + 1)}
            case Tuple(items, variadic):
                return tuple(self.of(item, depth + 1) for item in (items * 2 if variadic else items))
            case Optional(item):
                return None if depth > 3 else self.of(item, depth + 1)
            case Union(items):
                return self.of(items[0], depth + 1)
            case Named(name):
                return self._named(name, self._declared[name], depth)
        raise AssertionError(kind)

    def _named(self, name: str, declared: Declaration, depth: int) -> Any:
        if isinstance(declared, OneOf):
            return self.of(declared.alternatives[-1], depth + 1)
        kind = getattr(self._module, name.rpartition(".")[2])
        if isinstance(declared, Enum):
            return kind[declared.members[-1].name]
        assert isinstance(declared, Struct)
        given = {f.name: self.of(f.type, depth + 1) for f in declared.fields if f.default is MISSING}
        return kind(**given)


def _size(dim: str | int | None) -> int:
    return _SIZES[dim] if isinstance(dim, str) else 2 if dim is None else dim


def same(a: Any, b: Any) -> bool:
    """Of one kind, with the same in them."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and bool(np.array_equal(a, b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)
