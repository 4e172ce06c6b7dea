"""Borrowed arrays in the schema: from annotations and back, through reflection, and in places that can't have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc
from rrpc import schema as s
from rrpc._interface.mismatch import type_text
from rrpc.schema import from_data, to_data
from rrpc.schema.closure import holds_borrowed, owned
from rrpc.schema.compatibility import compare_services
from rrpc.schema.from_python import service_of
from rrpc.schema.idl_text import type_text as idl_text
from rrpc.schema.to_python import to_interface

ROWS = rrpc.Borrowed[NDArray[np.float32]]
SHAPED = rrpc.Borrowed[Annotated[NDArray[np.float32], rrpc.Shape("n", 64)]]


@rrpc.service(name="lab.Models")
class Models:
    @rrpc.method
    def shaped(self, rows: SHAPED, mask: ROWS | None = None) -> list[ROWS]:
        raise NotImplementedError

    @rrpc.method
    def mixed(self, rows: NDArray[np.float32]) -> tuple[ROWS, NDArray[np.float32], dict[str, ROWS]]:
        raise NotImplementedError

    @rrpc.method
    def around(self, rows: Annotated[ROWS, rrpc.Shape("n", 64)]) -> Iterator[int]:
        raise NotImplementedError


TEXTS = {
    "shaped": "borrowed<array<f32>[n, 64]>, borrowed<array<f32>>?, list<borrowed<array<f32>>>",
    "mixed": "array<f32>, tuple<borrowed<array<f32>>, array<f32>, map<string, borrowed<array<f32>>>>",
    "around": "borrowed<array<f32>[n, 64]>, int",
}


def texts(service: s.Service) -> dict[str, str]:
    return {
        method.name: ", ".join(map(idl_text, [*(p.type for p in method.parameters), method.result]))
        for method in service.methods
    }


def test_annotations_become_types_and_types_annotations() -> None:
    service = service_of(Models)
    assert texts(service) == TEXTS
    interface = to_interface(service)
    (rows, mask), result = interface.methods["shaped"].parameters, interface.methods["shaped"].result
    assert type_text(rows.annotation) == type_text(SHAPED)
    assert type_text(mask.annotation) == type_text(ROWS | None)
    assert type_text(result) == type_text(list[ROWS])
    assert texts(service_of(interface)) == TEXTS


def test_reflection_tells_of_it() -> None:
    data = to_data(service_of(Models))
    assert data["methods"][0]["parameters"][0]["type"] == {
        "array": "f32",
        "dims": ["n", 64],
        "borrowed": True,
    }
    assert data["methods"][1]["parameters"][0]["type"] == {"array": "f32"}
    assert texts(from_data(data)) == TEXTS


def test_it_is_no_part_of_the_contract() -> None:
    lent = service_of(Models)
    plain = s.Service(lent.name, tuple(map(_plain, lent.methods)), lent.declarations)
    assert not any("borrowed" in text for text in texts(plain).values())
    assert s.fingerprint(lent) == s.fingerprint(plain)
    assert compare_services(lent, plain) == compare_services(plain, lent) == []


def _plain(method: s.Method) -> s.Method:
    parameters = tuple(s.Parameter(p.name, owned(p.type), p.default) for p in method.parameters)
    return s.Method(method.name, parameters, owned(method.result), method.result_stream)


LENT: dict[str, Any] = {"array": "f32", "borrowed": True}
FIELD = {"number": 1, "name": "rows", "type": {"list": LENT}}


@pytest.mark.parametrize(
    "data",
    [
        {"declarations": {"Row": {"kind": "struct", "name": "Row", "fields": [FIELD]}}},
        {"declarations": {"E": {"kind": "error", "name": "E", "code": "internal", "fields": [FIELD]}}},
        {"declarations": {"U": {"kind": "oneof", "name": "U", "alternatives": ["int", LENT]}}},
        {"methods": [{"name": "m", "result": {"list": LENT}, "result_stream": True}]},
        {"methods": [{"name": "m", "result": {"union": [LENT, "int"]}}]},
        {"methods": [{"name": "m", "result": {"set": LENT}}]},
        {"methods": [{"name": "m", "result": {"frozenset": {"tuple": [LENT]}}}]},
        {"methods": [{"name": "m", "result": {"map": [LENT, "int"]}}]},
        {
            "methods": [
                {"name": "m", "result": "none", "parameters": [{"name": "p", "type": LENT, "stream": True}]}
            ]
        },
    ],
)
def test_where_this_version_can_not_borrow_an_array_is_read_as_another(data: dict[str, Any]) -> None:
    service = from_data({"name": "S"} | data)
    kinds = [
        kind for method in service.methods for kind in (method.result, *(p.type for p in method.parameters))
    ]
    kinds += [kind for each in service.declarations.values() for kind in s.closure.types_in(each)]
    assert kinds
    assert not any(map(holds_borrowed, kinds))


def test_what_is_no_flag_is_refused() -> None:
    data = {"name": "S", "methods": [{"name": "m", "result": LENT | {"borrowed": 1}}]}
    with pytest.raises(ValueError, match="expected bool, got int"):
        from_data(data)
