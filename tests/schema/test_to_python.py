"""Schemas as live Python, and back: what hypothesis makes, recursion, numbers, documentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from made import examples
from numpy.typing import NDArray
from schemas import modules

import rrpc
from rrpc._interface import MISSING as NO_DEFAULT
from rrpc._interface import RECEIVES, AnnotationError, Mismatch, Plan, compile_check
from rrpc.schema import (
    Array,
    Const,
    Declaration,
    Enum,
    EnumMember,
    Error,
    Field,
    List,
    Map,
    Method,
    Module,
    Named,
    OneOf,
    Opaque,
    Optional,
    Parameter,
    Scalar,
    Service,
    Set,
    Struct,
    Tuple,
    Type,
    Union,
    service_of,
)
from rrpc.schema.closure import closure
from rrpc.schema.to_python import PythonTypes, to_interface


def as_python_has_it(service: Service) -> Service:
    """Without what no annotation says: names of one-ofs."""

    def plain(kind: Type) -> Type:
        match kind:
            case Named(name) if isinstance(one_of := service.declarations[name], OneOf):
                return plain(Union(one_of.alternatives))
            case Union(items):
                found = [plain(item) for item in items]
                flat = [i for item in found for i in (item.items if isinstance(item, Union) else (item,))]
                return Union(tuple(dict.fromkeys(flat)))
            case Tuple(items):
                return replace(kind, items=tuple(map(plain, items)))
            case List(item) | Set(item) | Optional(item):
                return replace(kind, item=plain(item))
            case Map(key, value):
                return Map(plain(key), plain(value))
            case Scalar("f64"):
                return Scalar("float")
        return kind

    def method(each: Method) -> Method:
        parameters = tuple(
            replace(p, type=plain(p.type), default=default(p.type, p.default)) for p in each.parameters
        )
        return replace(each, parameters=parameters, result=plain(each.result))

    def declared(each: Declaration) -> Declaration:
        if isinstance(each, (Struct, Error)):
            fields = (replace(f, type=plain(f.type), default=default(f.type, f.default)) for f in each.fields)
            return replace(each, fields=tuple(fields))
        return each

    methods = list(map(method, service.methods))
    used = closure(methods, service.declarations.__getitem__)
    kept = {name: declared(d) for name, d in used.items() if not isinstance(d, OneOf)}
    return replace(service, methods=tuple(methods), declarations=kept)


def default(kind: Type, value: Any) -> Any:
    """Sets have an order of their own."""
    match kind, value:
        case Set(item), tuple():
            return tuple(sorted((default(item, each) for each in value), key=repr))
        case List(item) | Tuple((item,), variadic=True), tuple():
            return tuple(default(item, each) for each in value)
        case Tuple(items), tuple():
            return tuple(map(default, items, value))
        case Optional(item), _:
            return default(item, value)
    return value


@given(modules(services_min=1))
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
def test_there_and_back(module: Module) -> None:
    for service in module.services.values():
        interface = to_interface(service)
        back = service_of(interface)
        expected = as_python_has_it(service)
        assert back.methods == expected.methods
        assert back.declarations == expected.declarations
        for method in interface.resolved().methods.values():
            Plan(method.name, method.parameters, method.result, method.errors)


def test_the_members_of_a_union_keep_their_order() -> None:
    """Unions are equal whatever their order, and typing keeps those that it has made."""
    for items in ((Scalar("int"), Scalar("string")), (Scalar("string"), Scalar("int"))):
        method = Method(name="get", parameters=(), result=Optional(List(Union(items))))
        assert service_of(to_interface(Service("lab.Desk", (method,), {}))).methods == (method,)


DECLARED: dict[str, Declaration] = {
    "lab.Metric": Enum(
        "lab.Metric",
        (EnumMember(name="L2", value=1), EnumMember(name="DOT", value=2, deprecated="use L2")),
        reserved=(3, "COSINE"),
    ),
    "lab.Row": Struct(
        "lab.Row",
        (
            Field(1, "id", Scalar("i64"), doc="Which."),
            Field(4, "tags", List(Scalar("string")), ("a", "b")),
            Field(2, "metric", Named("lab.Metric"), "DOT"),
            Field(5, "parts", List(Named("lab.Part")), ()),
            Field(6, "late", Scalar("int")),
        ),
        reserved=(3, "weight"),
        frozen=True,
        doc="One row.",
        deprecated="use Column",
    ),
    "lab.Part": OneOf("lab.Part", (Named("lab.Row"), Scalar("string"), Named("lab.Metric"))),
    "lab.Gone": Error("lab.Gone", "not_found", doc="It was\nhere."),
}
METHOD = Method(
    "find",
    (
        Parameter("part", Optional(Named("lab.Part")), "L2"),
        Parameter("rows", Array("f32", ("n", 64)), keyword_only=True, doc="All."),
    ),
    Tuple((Array("i64", ("n",)), Scalar("none"))),
    errors=("lab.Gone",),
    doc="Finds.",
    deprecated="",
)


def test_a_struct_may_lead_back_to_itself() -> None:
    types = PythonTypes(DECLARED)
    row: Any = types["lab.Row"]
    assert types["lab.Row"] is row
    check = compile_check(row)
    inner = row(id=2, late=0)
    assert check({"id": 1, "parts": [inner, "text"], "late": 3}).parts == [inner, "text"]
    with pytest.raises(Mismatch) as wrong:
        check({"id": 1, "parts": [2.5], "late": 3})
    assert wrong.value.path == ".parts[0]"


def test_what_a_class_says_of_itself() -> None:
    types = PythonTypes(DECLARED)
    row, metric = types["lab.Row"], types["lab.Metric"]
    made = row(1, late=2)
    assert (made.tags, made.metric, made.parts) == (["a", "b"], metric.DOT, [])
    assert made.tags is not row(1, late=2).tags
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.late = 3
    assert row.__doc__ == "One row.\n\nDeprecated: use Column"
    assert row.rrpc_numbers == {"id": 1, "tags": 4, "metric": 2, "parts": 5, "late": 6}
    assert row.rrpc_reserved == (3, "weight")
    assert metric.__rrpc_reserved__ == (3, "COSINE")
    assert row.__rrpc_docs__ == {"id": "Which."}
    assert metric.__rrpc_docs__ == {"DOT": "Deprecated: use L2"}
    assert isinstance(metric.L2, int)
    assert (row.__module__, metric.__module__, row.__name__) == ("lab", "lab", "Row")


def test_a_method_is_as_the_decorator_would_have_it() -> None:
    interface = to_interface(Service("lab.Finder", (METHOD,), DECLARED, doc="A finder.")).resolved()
    assert interface.doc == "A finder."
    find = interface.methods["find"]
    assert find.name == "lab.Finder.find"
    assert find.doc == (
        "Finds.\n\nDeprecated:\n\nArgs:\n    rows: All.\n\nRaises:\n    Gone (not_found): It was here."
    )
    part, rows = find.parameters
    assert part.default.name == "L2"
    assert rows.annotation == Annotated[NDArray[np.float32], rrpc.Shape("n", 64)]
    assert rows.keyword_only


def test_streams_are_iterators() -> None:
    watch = Method("watch", (), Named("lab.Row"), result_stream=True)
    interface = to_interface(Service("Finder", (METHOD, watch), DECLARED)).resolved()
    assert interface.methods["watch"].result.__origin__ is Iterator
    assert interface.methods["watch"].kind == RECEIVES
    assert interface.methods["find"].kind == 0


def test_what_the_language_has_no_word_for_is_anything() -> None:
    types = PythonTypes({})
    assert types.annotation(List(Opaque("array.array"))) == list[Any]
    opaque = Parameter("when", Scalar("datetime"), Opaque("datetime.datetime(2000, 1, 1)"))
    interface = to_interface(Service("Late", (Method("m", (opaque,), Scalar("none")),), {}))
    assert interface.methods["m"].parameters[0].default is NO_DEFAULT


def test_a_one_of_within_itself_is_refused() -> None:
    types = PythonTypes({"Json": OneOf("Json", (Scalar("string"), List(Named("Json"))))})
    with pytest.raises(AnnotationError, match="Json contains itself: put a struct in between"):
        types["Json"]


def test_what_no_annotation_names_can_be_had_too() -> None:
    types = PythonTypes(DECLARED | {"lab.BEST": Const("lab.BEST", List(Named("lab.Metric")), ("L2",))})
    assert types["lab.BEST"] == [types["lab.Metric"].L2]
    with pytest.raises(KeyError):
        types["lab.Other"]


def test_errors_are_classes_of_their_code() -> None:
    where = Field(2, "where", Optional(Named("lab.Row")), None, doc="If it is known.")
    error = Error("lab.Gone", "not_found", (Field(1, "id", Scalar("i64")), where), (3,), doc="It was here.")
    gone = PythonTypes(DECLARED | {"lab.Gone": error})["lab.Gone"]
    assert issubclass(gone, rrpc.NotFound)
    assert (gone.__name__, gone.__doc__) == ("Gone", "It was here.")
    raised = gone(7)
    assert (raised.id, raised.where, str(raised)) == (7, None, "It was here (id=7, where=None)")
    method = Method("find", (), Scalar("none"), errors=("lab.Gone",))
    back = service_of(to_interface(Service("lab.Finder", (method,), DECLARED | {"lab.Gone": error})))
    assert back.methods == (method,)
    assert back.declarations["lab.Gone"] == error
