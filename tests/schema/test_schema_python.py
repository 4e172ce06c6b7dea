"""Decorated Python services to schemas."""

import array
import collections.abc
import datetime
import decimal
import enum
import functools
import uuid
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc
from rrpc import schema
from rrpc._interface.decorators import interface_of
from rrpc.schema import (
    MISSING,
    Array,
    Field,
    List,
    Map,
    Named,
    Opaque,
    Optional,
    Scalar,
    Set,
    Tuple,
    Union,
    join_docstring,
    module_of,
    service_of,
    split_docstring,
)
from rrpc.types import Shape, f32, i8, u64

INT, STRING, ANY = Scalar("int"), Scalar("string"), Scalar("any")


class Metric(enum.IntEnum):
    """How near.

    Deprecated: use Distance
    """

    L2 = 1
    COSINE = 2
    ANGLE = 2


class Unit(str, enum.Enum):
    METRE = "m"


class Plain(enum.Enum):
    ONE = 1


class Colours(enum.Flag):
    RED = 1


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Pair(NamedTuple):
    a: int


@dataclass
class Base:
    """A base."""

    first: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row.

    Deprecated: use Line
    """

    id: u64
    vector: Annotated[NDArray[np.float32], Shape("n", 64)]
    label: str | None = None
    tags: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    made: list[int] = field(default_factory=lambda: [1])
    some: list[int] = field(default_factory=functools.partial(list, (1, 2)))
    metric: Metric = Metric.L2
    parent: "Row | None" = None
    hidden: int = field(default=0, init=False)
    shared: ClassVar[int] = 5


@dataclass
class Derived(Base):
    second: "Later"
    rrpc_numbers: ClassVar[dict[str, int]] = {"second": 5}
    rrpc_reserved: ClassVar[tuple[int | str, ...]] = (3, "old")


@dataclass
class Later:
    up: list["Derived"]
    sloppy: int = None  # type: ignore[assignment]


UserId = NewType("UserId", int)


def _service(annotation: Any, name: str = "S") -> schema.Service:
    def m(self: Any, a: Any) -> None: ...

    m.__annotations__["a"] = annotation
    return service_of(rrpc.service(name=name)(type("S", (), {"m": rrpc.method(m)})))


def _type(annotation: Any) -> schema.Type:
    return _service(annotation).methods[0].parameters[0].type


TYPES: list[tuple[Any, schema.Type]] = [
    (None, Scalar("none")),
    (bool, Scalar("bool")),
    (float, Scalar("float")),
    (complex, Scalar("complex")),
    (bytes, Scalar("bytes")),
    (memoryview, Scalar("buffer")),
    (Any, ANY),
    (datetime.datetime, Scalar("datetime")),
    (datetime.date, Scalar("date")),
    (datetime.time, Scalar("time")),
    (datetime.timedelta, Scalar("duration")),
    (decimal.Decimal, Scalar("decimal")),
    (uuid.UUID, Scalar("uuid")),
    (i8, Scalar("i8")),
    (f32 | None, Optional(Scalar("f32"))),
    (Annotated[int, "a note"], INT),
    (UserId, INT),
    (NDArray[np.float32], Array("f32")),
    (NDArray[np.float16], Array("f16")),
    (NDArray[np.longlong], Array("i64")),
    (NDArray[np.bool_], Array("bool")),
    (NDArray[np.complex128], Array("c128")),
    (NDArray[Any], Array("any")),
    (np.ndarray, Array("any")),
    (Annotated[NDArray[np.float32], Shape("n", 3, None)], Array("f32", ("n", 3, None))),
    (Annotated[NDArray[Any], Shape()], Array("any", ())),
    (list[int], List(INT)),
    (list, List(ANY)),
    (set[int], Set(INT)),
    (frozenset[str], Set(STRING, frozen=True)),
    (dict[str, list[int]], Map(STRING, List(INT))),
    (collections.abc.Mapping[str, int], Map(STRING, INT)),
    (tuple[int, str], Tuple((INT, STRING))),
    (tuple[int, ...], Tuple((INT,), variadic=True)),
    (tuple[()], Tuple(())),
    (int | str, Union((INT, STRING))),
    (int | str | None, Optional(Union((INT, STRING)))),
    (Literal["a", 2, True, b"x"], schema.Literal(("a", 2, True, b"x"))),
    (Literal["a", None], Optional(schema.Literal(("a",)))),
    (Plain, Named("Plain")),
    (Later, Named("Later")),
    # What the language has no word for:
    (bytearray, Opaque("bytearray")),
    (array.array, Opaque("array")),
    (np.float32, Opaque("float32")),
    (NDArray[np.longdouble], Opaque("NDArray[longdouble]")),
    (NDArray[np.floating[Any]], Opaque("NDArray[floating]")),
    (NDArray[np.datetime64], Opaque("NDArray[datetime64]")),
    (collections.abc.Sequence[int], Opaque("Sequence[int]")),
    (Pair, Opaque("Pair")),
    (Colours, Opaque("Colours")),
    (list[Mixed], List(Opaque("Mixed"))),
    (Literal[Plain.ONE], Opaque("Literal[<Plain.ONE: 1>]")),
]


@pytest.mark.parametrize(("annotation", "expected"), TYPES, ids=[str(a) for a, _ in TYPES])
def test_annotations(annotation: Any, expected: schema.Type) -> None:
    assert _type(annotation) == expected


def test_a_dataclass_becomes_a_struct() -> None:
    declarations = _service(Row, "lab.search.S").declarations
    assert list(declarations) == ["lab.search.Metric", "lab.search.Row"]
    row = declarations["lab.search.Row"]
    assert isinstance(row, schema.Struct)
    assert (row.doc, row.deprecated, row.frozen) == ("One row.", "use Line", True)
    assert row.fields == (
        Field(1, "id", Scalar("u64")),
        Field(2, "vector", Array("f32", ("n", 64))),
        Field(3, "label", Optional(STRING), None),
        Field(4, "tags", List(STRING), ()),
        Field(5, "counts", Map(STRING, INT), {}),
        Field(6, "seen", Set(INT), ()),
        Field(7, "made", List(INT), Opaque("default_factory=<lambda>")),
        Field(8, "some", List(INT), (1, 2)),
        Field(9, "metric", Named("lab.search.Metric"), "L2"),
        Field(10, "parent", Optional(Named("lab.search.Row")), None),
    )


def test_numbers_and_what_is_reserved_are_the_class_s_own() -> None:
    declarations = _service(Derived).declarations
    derived, later = declarations["Derived"], declarations["Later"]
    assert isinstance(derived, schema.Struct)
    assert derived.fields == (Field(1, "first", INT), Field(5, "second", Named("Later")))
    assert (derived.doc, derived.frozen, derived.reserved) == ("", False, (3, "old"))
    assert isinstance(later, schema.Struct)
    assert later.fields[1] == Field(2, "sloppy", INT, Opaque("None"))


def test_fields_and_members_are_documented_by_their_class() -> None:
    pair = make_dataclass("Pair", [("a", int)], namespace={"__rrpc_docs__": {"a": "The first."}})

    class Colour(enum.IntEnum):
        RED = 1
        __rrpc_docs__ = {"RED": "Deprecated: use BLUE"}  # noqa: RUF012
        __rrpc_reserved__ = (2, "GREEN")

    declared = _service(tuple[pair, Colour]).declarations  # type: ignore[valid-type]
    assert isinstance(declared["Pair"], schema.Struct)
    assert declared["Pair"].fields[0].doc == "The first."
    assert isinstance(declared["Colour"], schema.Enum)
    assert declared["Colour"].members[0].deprecated == "use BLUE"
    assert declared["Colour"].reserved == (2, "GREEN")


def test_enums() -> None:
    declarations = _service(tuple[Metric, Unit]).declarations
    metric, unit = declarations["Metric"], declarations["Unit"]
    members = (schema.EnumMember("L2", 1), schema.EnumMember("COSINE", 2))
    assert metric == schema.Enum("Metric", members)
    assert (metric.doc, metric.deprecated) == ("How near.", "use Distance")
    assert unit == schema.Enum("Unit", (schema.EnumMember("METRE", "m"),))
    assert unit.doc == ""


@rrpc.service(name="lab.Desk")
class Desk:
    """A desk.

    Deprecated: use a table
    """

    @rrpc.method
    def put(
        self,
        a: int,
        /,
        metric: Metric = Metric.ANGLE,
        scale: float = 1,
        names: tuple[str, ...] = ("a", "b"),
        *,
        pick: Unit | str = Unit.METRE,
        by_value: Unit = "m",  # type: ignore[assignment]
        anything: Any = Metric.L2,
        rows: list[Metric] = [Metric.L2],  # noqa: B006
        day: datetime.date = datetime.date(2024, 1, 2),
        flags: Colours = Colours.RED,
    ) -> Row | None:
        """Puts.

        Deprecated:

        More.
        """


def test_a_service_with_its_defaults_and_documentation() -> None:
    desk = service_of(Desk)
    assert desk == service_of(Desk()) == service_of(interface_of(Desk))
    assert (desk.name, desk.doc, desk.deprecated) == ("lab.Desk", "A desk.", "use a table")
    (put,) = desk.methods
    assert (put.name, put.doc, put.deprecated) == ("put", "Puts.\n\nMore.", "")
    assert put.result == Optional(Named("lab.Row"))
    a, *others = put.parameters
    assert (a.default, a.positional_only, a.keyword_only) == (MISSING, True, False)
    assert {p.name: p.default for p in others} == {
        "metric": "COSINE",
        "scale": 1.0,
        "names": ("a", "b"),
        "pick": Opaque("Unit.METRE"),
        "by_value": "METRE",
        "anything": 1,
        "rows": ("L2",),
        "day": Opaque("datetime.date(2024, 1, 2)"),
        "flags": 1,
    }
    assert next(p.name for p in others if p.keyword_only) == "pick"
    assert type(others[1].default) is float


def test_streams_and_what_may_be_called_twice() -> None:
    @rrpc.service
    class Flow:
        @rrpc.method
        def add(self, rows: collections.abc.Iterator[Base]) -> int: ...  # type: ignore[empty-body]

        @rrpc.method
        def watch(self, name: str) -> collections.abc.Iterator[int]: ...  # type: ignore[empty-body]

        @rrpc.method(idempotent=True)
        def clear(self) -> None: ...

    rows = schema.Parameter("rows", Named("Base"), stream=True)
    name = schema.Parameter("name", STRING)
    assert {method.name: method for method in service_of(Flow).methods} == {
        "add": schema.Method("add", (rows,), INT),
        "watch": schema.Method("watch", (name,), INT, result_stream=True),
        "clear": schema.Method("clear", (), Scalar("none"), idempotent=True),
    }


def test_the_same_service_gives_the_same_data() -> None:
    assert schema.from_data(schema.to_data(service_of(Desk))) == service_of(Desk)


def test_two_classes_of_one_name_are_refused() -> None:
    other = make_dataclass("Row", [("x", int)], namespace={"__module__": "elsewhere"})
    with pytest.raises(rrpc.AnnotationError) as caught:
        _service(tuple[Row, other])  # type: ignore[valid-type]
    where = f"{__name__} and {other.__module__}"
    assert str(caught.value) == f"S.m(): parameter 'a': two classes are called Row: {where}"
    holder = make_dataclass("Holder", [("row", other)])
    with pytest.raises(rrpc.AnnotationError, match=r"S\.m\(\): parameter 'a': Holder\.row: two classes"):
        _service(tuple[Row, holder])  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"rrpc_numbers": {"z": 1}}, "Bad.rrpc_numbers has no field z"),
        ({"rrpc_numbers": {"x": 2}}, "Bad: x and y have the number 2"),
        ({"rrpc_numbers": {"x": 0}}, "Bad.x: its number is 0; numbers count from 1"),
        ({"rrpc_reserved": (2,)}, "Bad.y (number 2) is in rrpc_reserved"),
        ({"rrpc_reserved": 3}, "Bad: rrpc_numbers must be a dict, rrpc_reserved a tuple"),
        ({"rrpc_reserved": ("x",)}, "Bad.x (number 1) is in rrpc_reserved"),
    ],
)
def test_wrong_numbers_are_named(members: dict[str, Any], message: str) -> None:
    bad = make_dataclass("Bad", [("x", int), ("y", int)], namespace=members)
    with pytest.raises(rrpc.AnnotationError) as caught:
        _service(bad)
    assert str(caught.value) == f"S.m(): parameter 'a': {message}"


def test_what_is_no_service_is_refused() -> None:
    for thing, name in ((Base, "Base"), (5, "int")):
        with pytest.raises(TypeError, match=f"^{name} is no service"):
            service_of(thing)


def test_a_module_has_the_declarations_of_all_its_services() -> None:
    module = module_of([_service(Metric, "lab.A"), Desk, _service(Plain, "lab.B")])
    assert module.package == "lab"
    assert list(module.services) == ["lab.A", "lab.Desk", "lab.B"]
    assert list(module.declarations) == ["lab.Metric", "lab.Unit", "lab.Row", "lab.Plain"]


def test_services_that_do_not_go_into_one_file_are_refused() -> None:
    refused: list[tuple[list[Any], str]] = [
        ([Desk, _service(int)], "one file has one package, the services have lab, no package"),
        ([Desk, Desk], "two services are called lab.Desk"),
        ([_service(Base, "lab.Base")], "lab.Base is the name of a class and of the service"),
        (
            [_service(make_dataclass("Row", [("x", int)]), "lab.A"), Desk],
            "two classes are called lab.Row: lab.Desk has another",
        ),
    ]
    for services, message in refused:
        with pytest.raises(rrpc.AnnotationError) as caught:
            module_of(services)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "doc", "deprecated"),
    [
        ("", "", None),
        ("Docs.\n\n    More.\n", "Docs.\n\nMore.", None),
        ("Deprecated: use b", "", "use b"),
        ("Docs.\n\nDeprecated:", "Docs.", ""),
        ("Docs.\nDeprecated: old\nMore.", "Docs.\nMore.", "old"),
    ],
)
def test_docstrings(text: str, doc: str, deprecated: str | None) -> None:
    assert split_docstring(text) == (doc, deprecated)
    assert split_docstring(join_docstring(doc, deprecated)) == (doc, deprecated)
