"""What rrpc-call prints of a value is what it takes for it, whatever the interface."""

import datetime
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made import examples
from numpy.typing import NDArray
from schemas import INTS, modules

from rrpc._interface import compile_check
from rrpc.cli.calling.from_json import from_json
from rrpc.cli.calling.to_json import pretty, to_json
from rrpc.schema import (
    Array,
    Declaration,
    Enum,
    Literal,
    Map,
    Module,
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
from rrpc.schema.canonical_read import BadData
from rrpc.schema.closure import inner_types, types_in
from rrpc.schema.to_python import PythonTypes

EXAMPLES = 15
PHASES = [Phase.generate]  # interfaces are slow to shrink
_SECONDS = st.timedeltas(datetime.timedelta(days=-10_000), datetime.timedelta(days=10_000))
_FLOATS = st.floats(allow_nan=False)
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "none": st.none(),
    "bool": st.booleans(),
    "int": st.integers(),
    "float": _FLOATS,
    "f64": _FLOATS,
    "f32": st.floats(width=32, allow_nan=False),
    "complex": st.builds(complex, _FLOATS, _FLOATS),
    "string": st.text(st.characters(codec="utf-8")),
    "bytes": st.binary(),
    "buffer": st.binary().map(lambda data: memoryview(data)),
    "datetime": st.datetimes(timezones=st.none() | st.just(datetime.timezone.utc)),
    "date": st.dates(),
    "time": st.times(),
    "duration": _SECONDS,
    "decimal": st.decimals(allow_nan=False),
    "uuid": st.uuids(),
    "any": st.none(),
} | {
    name: st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    if sign == "i"
    else st.integers(0, (1 << bits) - 1)
    for name, (sign, bits) in INTS.items()
}


class Values:
    """Strategies for values of a schema's types."""

    def __init__(self, declared: Mapping[str, Declaration]) -> None:
        self.declared = declared
        self.types = PythonTypes(declared)

    def decided(self, kind: Type, seen: tuple[str, ...] = ()) -> bool:
        """Whether JSON tells what a value of the type is: not where a text may be a date too, say."""
        if isinstance(kind, Named):
            declaration = self.declared[kind.name]
            inner = () if kind.name in seen or isinstance(declaration, OneOf) else types_in(declaration)
            return not isinstance(declaration, OneOf) and all(
                self.decided(item, (*seen, kind.name)) for item in inner
            )
        if isinstance(kind, Literal):
            return not any(isinstance(value, bytes) for value in kind.values)
        return not isinstance(kind, Union) and all(self.decided(item, seen) for item in inner_types(kind))

    def of(self, kind: Type, depth: int = 0) -> st.SearchStrategy[Any]:
        if isinstance(kind, Scalar):
            return _SCALARS[kind.name]
        if isinstance(kind, Named):
            return self._named(kind, depth)
        if isinstance(kind, Array):
            return st.builds(self._array, st.just(kind), st.lists(st.integers(0, 100), max_size=4))
        if isinstance(kind, Literal):
            return st.sampled_from(kind.values)
        if isinstance(kind, Optional):
            return st.none() if depth > 3 else st.none() | self.of(kind.item, depth + 1)
        if isinstance(kind, Tuple) and not kind.variadic:
            return st.tuples(*(self.of(item, depth + 1) for item in kind.items))
        return self._several(kind, depth)

    def _several(self, kind: Type, depth: int) -> st.SearchStrategy[Any]:
        if isinstance(kind, Map):
            key, value = inner_types(kind)
            if depth > 3:
                return st.just({})
            return st.dictionaries(self.of(key, depth + 1), self.of(value, depth + 1), max_size=3)
        (item,) = inner_types(kind)
        items = st.just([]) if depth > 3 else st.lists(self.of(item, depth + 1), max_size=3)
        if isinstance(kind, Set):
            return items.map(frozenset if kind.frozen else set)
        return items.map(tuple) if isinstance(kind, Tuple) else items

    def _named(self, kind: Named, depth: int) -> st.SearchStrategy[Any]:
        declaration = self.declared[kind.name]
        if isinstance(declaration, Enum):
            return st.sampled_from(list(self.types[kind.name]))
        assert isinstance(declaration, Struct)
        fields = {
            field.name: st.deferred(lambda field=field: self.of(field.type, depth + 1))  # type: ignore[misc]
            for field in declaration.fields
        }
        return st.builds(self.types[kind.name], **fields)

    @staticmethod
    def _array(kind: Array, items: list[int]) -> Any:
        names = {"any": "i8", "bool": "?", "f16": "e", "f32": "f", "f64": "d", "c64": "F", "c128": "D"}
        codes = {f"{s}{8 * n}": f"{s}{n}" for s in "iu" for n in (1, 2, 4, 8)}
        shape = [
            4 if dim is None or isinstance(dim, str) else dim
            for dim in ((4,) if kind.dims is None else kind.dims)
        ]
        dtype = np.dtype(getattr(ml_dtypes, kind.item, None) or (names | codes)[kind.item])
        return np.resize(np.array(items or [1]), shape).astype(dtype)


def _same(a: Any, b: Any) -> bool:
    """As Python compares, arrays by dtype and items."""
    return repr(a) == repr(b) or to_json(a, whole=True) == to_json(b, whole=True)


@pytest.mark.parametrize("part", [float("inf"), float("-inf"), float("nan")])
def test_complex_numbers_that_are_not_finite(part: float) -> None:
    for value in (complex(-2.1e-124, part), complex(part, 1.0)):
        assert repr(from_json(to_json(value), complex)) == repr(value)
        array = np.array([value, 2j])
        taken = from_json(to_json(array, whole=True), NDArray[np.complex128])
        assert repr(taken.tolist()) == repr(array.tolist())


@settings(max_examples=examples(EXAMPLES), phases=PHASES)
@given(st.data(), modules(services_min=1))
def test_what_is_printed_is_taken(data: st.DataObject, module: Module) -> None:
    for service in module.services.values():
        values = Values(service.declarations)
        for method in service.methods:
            for kind in [parameter.type for parameter in method.parameters]:
                if not values.decided(kind):
                    continue
                annotation = values.types.annotation(kind)
                value = compile_check(annotation)(data.draw(values.of(kind)))
                printed = to_json(value, whole=True)
                for text in (json.dumps(printed, allow_nan=False), pretty(printed)):
                    taken = compile_check(annotation)(from_json(json.loads(text), annotation))
                    assert type(taken) is type(value)
                    assert _same(taken, value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(EXAMPLES), phases=PHASES)
@given(st.data(), modules(services_min=1))
def test_any_json_is_taken_or_refused_in_words(data: st.DataObject, module: Module) -> None:
    for service in module.services.values():
        types = PythonTypes(service.declarations)
        for method in service.methods:
            for parameter in method.parameters:
                given_json = data.draw(_json)
                with suppress(BadData):
                    from_json(given_json, types.annotation(parameter.type))


def test_strict_json_has_no_word_for_what_is_not_finite() -> None:
    shown = to_json([float("nan"), np.array([np.inf]), complex(0, -np.inf)], whole=True)
    assert shown == [
        "NaN",
        {"dtype": "float64", "shape": [1], "data": ["Infinity"]},
        [0.0, "-Infinity"],
    ]
    with pytest.raises(ValueError, match="not JSON compliant"):
        json.dumps(float("nan"), allow_nan=False)
