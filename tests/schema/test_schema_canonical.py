"""Schemas as plain data: round trips, exact form, and what is refused."""

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import examples

from rrpc import schema
from rrpc._prose import without_orders
from rrpc.codec import Message, decode, encode
from rrpc.schema import from_data, to_data

NAMES = st.sampled_from(["a", "b1", "Row", "Metric", "füllung", "x_y"])
FULL = st.sampled_from(["lab.Row", "lab.Metric", "lab.Pick"])
TEXTS = st.text(max_size=8)
SCALARS = st.sampled_from(sorted(schema.SCALARS)).map(schema.Scalar)
DIMS = st.none() | st.lists(st.none() | NAMES | st.integers(0, 9), max_size=3).map(tuple)
LITERALS = st.booleans() | st.integers() | TEXTS | st.binary(max_size=4)
PLAIN = st.none() | LITERALS | st.floats() | st.complex_numbers() | st.builds(schema.Opaque, TEXTS)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(LITERALS, inner, max_size=2),
    max_leaves=6,
)
LEAVES = (
    SCALARS
    | st.builds(schema.Array, st.sampled_from(sorted(schema.ARRAY_ITEMS)), DIMS)
    | st.builds(schema.Literal, st.lists(LITERALS, min_size=1, max_size=3).map(tuple))
    | st.builds(schema.Named, FULL)
    | st.builds(schema.Opaque, TEXTS)
)


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return (
        st.builds(schema.List, inner)
        | st.builds(schema.Set, inner, st.booleans())
        | st.builds(schema.Map, inner, inner)
        | st.builds(schema.Tuple, several)
        | st.builds(lambda item: schema.Tuple((item,), variadic=True), inner)
        | st.builds(schema.Optional, inner)
        | st.builds(schema.Union, several)
    )


TYPES = st.recursive(LEAVES, _composed, max_leaves=6)
DEFAULTS = st.just(schema.MISSING) | VALUES
# What a terminal would obey isn't read: tests/cli/test_terminal.py.
DOCS = TEXTS.map(without_orders)
DESCRIBED: dict[str, Any] = {"doc": DOCS, "deprecated": st.none() | DOCS}
RESERVED = st.lists(st.integers(1, 9) | NAMES, max_size=2).map(tuple)
FIELDS = st.lists(
    st.builds(schema.Field, st.integers(1), NAMES, TYPES, DEFAULTS, **DESCRIBED),
    max_size=3,
    unique_by=(lambda field: field.number, lambda field: field.name),
).map(tuple)


def _members(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    member = st.builds(schema.EnumMember, NAMES, values, **DESCRIBED)
    return st.lists(member, max_size=3, unique_by=lambda member: member.name).map(tuple)


@st.composite
def services(draw: st.DrawFn) -> schema.Service:
    row = draw(st.builds(schema.Struct, st.just("lab.Row"), FIELDS, RESERVED, st.booleans(), **DESCRIBED))
    members = _members(st.integers()) | _members(TEXTS)
    metric = draw(st.builds(schema.Enum, st.just("lab.Metric"), members, RESERVED, **DESCRIBED))
    choice = st.lists(TYPES, min_size=1, max_size=3).map(tuple)
    pick = draw(st.builds(schema.OneOf, st.just("lab.Pick"), choice, **DESCRIBED))
    failed = draw(st.builds(schema.Error, st.just("lab.Failed"), st.just("not_found"), FIELDS, **DESCRIBED))
    const = draw(st.builds(schema.Const, st.just("lab.MAX"), TYPES, VALUES, **DESCRIBED))
    flags = st.booleans()
    parameter = st.builds(schema.Parameter, NAMES, TYPES, DEFAULTS, flags, flags, flags, **DESCRIBED)
    method = st.builds(
        schema.Method,
        NAMES,
        st.lists(parameter, max_size=3, unique_by=lambda parameter: parameter.name).map(tuple),
        TYPES,
        flags,
        st.sampled_from([(), ("lab.Failed",)]),
        flags,
        **DESCRIBED,
    )
    methods = st.lists(method, max_size=3, unique_by=lambda method: method.name).map(tuple)
    declarations: dict[str, schema.Declaration] = {d.name: d for d in (row, metric, pick, failed, const)}
    return draw(st.builds(schema.Service, st.just("lab.S"), methods, st.just(declarations), **DESCRIBED))


@settings(max_examples=examples(30))
@given(services())
def test_every_schema_survives_json_and_the_wire(service: schema.Service) -> None:
    data = to_data(service)
    text = json.dumps(data, allow_nan=False)
    for back in (from_data(json.loads(text)), from_data(decode(encode(data, Message())))):
        assert repr(back) == repr(service)  # documentation too, and 1 isn't True
        assert json.dumps(to_data(back)) == text


SERVICE = schema.Service(
    "lab.S",
    (
        schema.Method(
            "m",
            (
                schema.Parameter("a", schema.Array("f32", ("n", 64, None))),
                schema.Parameter("b", schema.Optional(schema.Named("lab.E")), None, keyword_only=True),
            ),
            schema.Map(schema.Scalar("string"), schema.List(schema.Scalar("i8"))),
            errors=("lab.No",),
            doc="Does it.",
            deprecated="",
        ),
    ),
    {
        "lab.E": schema.Enum("lab.E", (schema.EnumMember("A", 1),), (3, "B")),
        "lab.No": schema.Error("lab.No", "not_found", (schema.Field(1, "x", schema.Scalar("int"), b"\0"),)),
    },
)
DATA = {
    "name": "lab.S",
    "methods": [
        {
            "name": "m",
            "doc": "Does it.",
            "deprecated": "",
            "parameters": [
                {"name": "a", "type": {"array": "f32", "dims": ["n", 64, None]}},
                {
                    "name": "b",
                    "type": {"optional": {"named": "lab.E"}},
                    "keyword_only": True,
                    "default": None,
                },
            ],
            "result": {"map": ["string", {"list": "i8"}]},
            "errors": ["lab.No"],
        }
    ],
    "declarations": {
        "lab.E": {
            "name": "lab.E",
            "kind": "enum",
            "members": [{"name": "A", "value": 1}],
            "reserved": [3, "B"],
        },
        "lab.No": {
            "name": "lab.No",
            "kind": "error",
            "code": "not_found",
            "fields": [{"name": "x", "number": 1, "type": "int", "default": {"bytes": "AA=="}}],
        },
    },
}


def test_the_form_is_this() -> None:
    assert to_data(SERVICE) == DATA
    assert from_data(DATA) == SERVICE


def test_what_a_newer_one_says_more_is_ignored() -> None:
    data: Any = copy.deepcopy(DATA)
    data["since"] = data["methods"][0]["since"] = "2.0"
    assert from_data(data) == SERVICE


PARAMETER = ("methods", 0, "parameters", 0)
BAD: list[tuple[tuple[Any, ...], Any, str]] = [
    ((), [], "expected a map, got list"),
    (("name",), 5, "name: expected str, got int"),
    (("name",), "a b", "name: 'a b' is no name"),
    (("name",), "lab.__class__", "name: 'lab.__class__' is no name"),
    (("methods",), {}, "methods: expected list, got dict"),
    (("methods", 0, "name"), "class", "methods[0].name: 'class' is no name"),
    (("methods", 0, "errors"), ["lab.E"], "method m: no error 'lab.E' is declared"),
    (("methods", 0, "result"), {"named": "No"}, "method m: no type 'No' is declared"),
    (("methods", 0, "idempotent"), 1, "methods[0].idempotent: expected bool, got int"),
    ((*PARAMETER, "name"), "b", "methods[0]: two parameters are called 'b'"),
    ((*PARAMETER, "type"), "i128", "methods[0].parameters[0].type: 'i128' is no type"),
    ((*PARAMETER, "type"), {"lst": "int"}, "methods[0].parameters[0].type: no kind of type has 'lst'"),
    ((*PARAMETER, "type"), {"array": []}, "methods[0].parameters[0].type.array: there are no arrays of []"),
    (
        (*PARAMETER, "type", "dims"),
        [-1],
        "methods[0].parameters[0].type.array.dims[0]: a dimension can't be -1",
    ),
    (
        (*PARAMETER, "type"),
        {"map": ["int"]},
        "methods[0].parameters[0].type.map: expected the types of key and value, got 1",
    ),
    (
        (*PARAMETER, "type"),
        {"tuple": ["int", "int"], "variadic": True},
        "methods[0].parameters[0].type.tuple: any number of one type, yet 2 are there",
    ),
    ((*PARAMETER, "type"), {"union": []}, "methods[0].parameters[0].type.union: it has no alternatives"),
    (
        (*PARAMETER, "type"),
        {"literal": [1.5]},
        "methods[0].parameters[0].type.literal: expected some values of bool, int, str or bytes",
    ),
    ((*PARAMETER, "default"), {"bytes": "?"}, "methods[0].parameters[0].default: {'bytes': '?'} is no value"),
    ((*PARAMETER, "default"), math.nan, "methods[0].parameters[0].default: nan is no value"),
    (("declarations", "lab.E", "kind"), "thing", "declarations['lab.E']: 'thing' is no kind of declaration"),
    (("declarations", "lab.E", "name"), "lab.F", "declarations['lab.E']: it is called 'lab.F'"),
    (
        ("declarations", "lab.E", "members"),
        [{"name": "A", "value": 1}, {"name": "B", "value": ""}],
        "declarations['lab.E']: some values are ints, some are strings",
    ),
    (
        ("declarations", "lab.No", "fields", 0, "number"),
        0,
        "declarations['lab.No'].fields[0]: its number is 0; numbers count from 1",
    ),
    (
        ("declarations", "lab.No", "fields", 0, "type"),
        {"list": {"named": "lab.No"}},
        "lab.No: no type 'lab.No' is declared",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_data_is_a_value_error_that_says_where(path: tuple[Any, ...], value: Any, message: str) -> None:
    data: Any = copy.deepcopy(DATA)
    place = data
    for step in path[:-1]:
        place = place[step]
    if path:
        place[path[-1]] = value
    with pytest.raises(ValueError, match="not a service's description") as caught:
        from_data(data if path else value)
    assert str(caught.value) == f"not a service's description: {message}"


def test_what_is_missing_is_named() -> None:
    data: Any = copy.deepcopy(DATA)
    del data["methods"][0]["result"]
    with pytest.raises(ValueError, match=r"methods\[0\]: there is no 'result'"):
        from_data(data)


def test_depth_is_bounded() -> None:
    kind: Any = "int"
    value: Any = 1
    for _ in range(100_000):
        kind, value = {"list": kind}, [value]
    data: Any = copy.deepcopy(DATA)
    data["methods"][0]["result"] = kind
    with pytest.raises(ValueError, match="nested deeper than 40 levels"):
        from_data(data)
    data = copy.deepcopy(DATA)
    data["methods"][0]["parameters"][0]["default"] = value
    with pytest.raises(ValueError, match="nested deeper than 40 levels"):
        from_data(data)
    data["methods"][0]["parameters"][0]["default"] = {"a": value, "b": 1}
    with pytest.raises(ValueError, match="is no value"):
        from_data(data)
    deep: schema.Type = schema.Scalar("int")
    for _ in range(100):
        deep = schema.List(deep)
    with pytest.raises(ValueError, match="nested deeper than 40 levels"):
        to_data(schema.Service("S", (schema.Method("m", (), deep),)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "kind", "type", "list", "map", "value", "default", "float", "complex"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
PLACES = [
    ("name",),
    ("methods",),
    ("declarations",),
    ("methods", 0),
    (*PARAMETER, "type"),
    (*PARAMETER, "type", "dims"),
    (*PARAMETER, "default"),
    ("declarations", "lab.E"),
    ("declarations", "lab.No", "fields"),
    ("declarations", "lab.E", "members"),
    ("declarations", "lab.E", "reserved"),
]


@settings(max_examples=examples(100))
@given(st.sampled_from(PLACES), JSON)
def test_whatever_is_there_it_is_read_or_a_value_error(path: tuple[Any, ...], junk: Any) -> None:
    data: Any = copy.deepcopy(DATA)
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = junk
    try:
        service = from_data(data)
    except ValueError:
        return
    assert repr(from_data(to_data(service))) == repr(service)
