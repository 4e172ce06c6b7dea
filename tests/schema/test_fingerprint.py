"""Fingerprints: the same for the same meaning, another one for whatever a peer or a caller could notice."""

import dataclasses
import enum
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import examples
from numpy.typing import NDArray
from schemas import modules

import rrpc
from rrpc import schema as s
from rrpc.schema import Service, fingerprint, from_data, service_of, to_data
from rrpc.schema.to_python import to_interface

INT, F, S = s.Scalar("int"), s.Scalar("float"), s.Scalar("string")


def _noise(thing: Any, rng: random.Random) -> Any:
    """What doesn't count, changed: words, deprecation, positions, numbers, reserved, orders that mean nothing."""
    if isinstance(thing, tuple):
        return tuple(_noise(item, rng) for item in thing)
    if not isinstance(
        thing, s.Method | s.Parameter | s.Field | s.EnumMember | s.Struct | s.Enum | s.OneOf | Service
    ):
        return thing
    position = s.Position("x.rrpc", rng.randrange(1, 99), 1)
    changes: dict[str, Any] = {"doc": "other", "deprecated": "why", "position": position}
    if isinstance(thing, s.Field):
        changes["number"] = rng.randrange(1, 1 << 20)
    if isinstance(thing, s.Struct):
        changes |= {"frozen": not thing.frozen, "reserved": (99, "was")}
    for unordered in ("fields", "members", "alternatives", "methods"):
        if hasattr(thing, unordered):
            items = list(_noise(getattr(thing, unordered), rng))
            rng.shuffle(items)
            changes[unordered] = tuple(items)
    if isinstance(thing, s.Method):
        changes |= {"parameters": _noise(thing.parameters, rng), "errors": ()}
    if isinstance(thing, Service):
        names = list(thing.declarations)
        rng.shuffle(names)
        changes["declarations"] = {name: _noise(thing.declarations[name], rng) for name in names}
        changes["declarations"]["lab.UNUSED"] = s.Const("lab.UNUSED", INT, 1)
    return replace(thing, **changes)


@given(modules(services_min=1), st.randoms(use_true_random=False))
@settings(max_examples=examples(12))
def test_what_means_the_same_has_the_same(module: s.Module, rng: random.Random) -> None:
    for service in module.services.values():
        found = fingerprint(service)
        assert re.fullmatch("[0-9a-f]{32}", found)
        assert fingerprint(_noise(service, rng)) == found
        assert fingerprint(from_data(to_data(service))) == found
        assert fingerprint(service_of(to_interface(service))) == found  # a server made from a file


def edits(service: Service) -> list[Service]:
    """The service with one thing changed that counts, in every place there is; the first has another name."""
    made = [replace(service, name=service.name + "x"), replace(service, methods=service.methods[1:])]
    for place, method in enumerate(service.methods):
        before, after = service.methods[:place], service.methods[place + 1 :]
        made += [replace(service, methods=(*before, other, *after)) for other in _edited_method(method)]
    return made


def _edited_method(method: s.Method) -> list[s.Method]:
    made = [
        replace(method, name=method.name + "x"),
        replace(method, result=s.List(method.result)),
        replace(method, result_stream=not method.result_stream),
        replace(method, idempotent=not method.idempotent),
        replace(method, parameters=(*method.parameters, s.Parameter("x_x", INT, 1, keyword_only=True))),
    ]
    for place, parameter in enumerate(method.parameters):
        before, after = method.parameters[:place], method.parameters[place + 1 :]
        made += [replace(method, parameters=(*before, p, *after)) for p in _edited_parameter(parameter)]
    if len({parameter.name for parameter in method.parameters if not parameter.keyword_only}) > 1:
        made.append(replace(method, parameters=method.parameters[::-1]))
    return made


def _edited_parameter(parameter: s.Parameter) -> list[s.Parameter]:
    return [
        replace(parameter, name=parameter.name + "x"),
        replace(parameter, type=s.List(parameter.type)),
        replace(parameter, default=7 if parameter.default is s.MISSING else s.MISSING),
        replace(parameter, keyword_only=not parameter.keyword_only, positional_only=False),
        replace(parameter, stream=not parameter.stream),
    ]


@given(modules(services_min=1))
@settings(max_examples=examples(12))
def test_what_callers_notice_changes_it(module: s.Module) -> None:
    for service in module.services.values():
        found = fingerprint(service)
        edited = edits(service)
        assert found not in {fingerprint(other) for other in edited}
        assert len({fingerprint(other) for other in edited}) > len(edited) * 0.8  # they don't collide either


ROW = s.Struct("lab.Row", (s.Field(1, "id", INT), s.Field(2, "label", s.Optional(S), None)))
KIND = s.Enum("lab.Kind", (s.EnumMember("A", 1), s.EnumMember("B", 2)))
PICK = s.OneOf("lab.Pick", (s.Named("lab.Row"), S, s.List(INT)))


def _service(*types: s.Type, default: Any = s.MISSING, **declared: s.Declaration) -> Service:
    declarations: dict[str, s.Declaration] = {"lab.Row": ROW, "lab.Kind": KIND, "lab.Pick": PICK}
    declarations |= {f"lab.{name}": declaration for name, declaration in declared.items()}
    parameters = tuple(s.Parameter(f"p{i}", kind, default) for i, kind in enumerate(types))
    return Service("lab.Lab", (s.Method("do", parameters, s.Scalar("none")),), declarations)


def _named(name: str) -> s.Named:
    return s.Named(f"lab.{name}")


SAME: dict[str, tuple[Service, Service]] = {
    "f64 is float": (_service(F), _service(s.Scalar("f64"))),
    "a one-of has no name": (
        _service(_named("Pick")),
        _service(s.Union((s.List(INT), S, _named("Row")))),
    ),
    "one-ofs within": (
        _service(s.Optional(_named("Pick"))),
        _service(s.Union((s.Scalar("none"), s.Union((_named("Row"), S)), s.List(INT)))),
    ),
    "literals in any order": (_service(s.Literal((1, "a"))), _service(s.Literal(("a", 1)))),
    "literals apart": (_service(s.Literal((1, 2))), _service(s.Union((s.Literal((2,)), s.Literal((1,)))))),
    "an enum's name": (_service(_named("Kind")), _service(_named("Sort"), Sort=replace(KIND, name="lab.Sort"))),
    "a struct's package": (
        _service(_named("Row")),
        replace(_service(s.Named("common.Row")), declarations={"common.Row": replace(ROW, name="common.Row")}),
    ),
    "a float's default": (_service(F, default=1), _service(F, default=1.0)),
    "a list's default": (_service(s.List(F), default=(1,)), _service(s.List(F), default=[1.0])),
    "a set's default": (_service(s.Set(INT), default=(2, 1)), _service(s.Set(INT), default=(1, 2))),
    "a borrowed array": (_service(s.Array("f32", ("n",))), _service(s.Array("f32", ("n",), borrowed=True))),
    "borrowed arrays in a list": (_service(s.List(s.Array("f32"))), _service(s.List(s.Array("f32", None, True)))),
    "an empty map": (_service(s.Map(S, INT), default=()), _service(s.Map(S, INT), default={})),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_other_words_for_the_same(what: str) -> None:
    one, other = SAME[what]
    assert fingerprint(one) == fingerprint(other)


def _row(*fields: s.Field) -> Service:
    return _service(_named("Row"), Row=replace(ROW, fields=fields))


def _kind(*members: s.EnumMember) -> Service:
    return _service(_named("Kind"), Kind=replace(KIND, members=members))


ID, LABEL = ROW.fields
DIMS: list[tuple[str | int | None, ...]] = [(), ("n",), ("m",), (64,), (None,), ("n", "n"), ("n", 64)]
DIFFERENT = [
    *map(_service, (INT, F, S, s.Scalar("i32"), s.Scalar("bytes"), s.Scalar("buffer"), s.Scalar("any"))),
    *(_service(s.Array(item)) for item in ("f32", "f64", "any")),
    *(_service(s.Array("f32", dims)) for dims in DIMS),
    _service(s.List(INT)),
    _service(s.Set(INT)),
    _service(s.Set(INT, frozen=True)),
    _service(s.Tuple((INT,))),
    _service(s.Tuple((INT, INT))),
    _service(s.Tuple((INT,), variadic=True)),
    _service(s.Map(S, INT)),
    _service(s.Map(INT, S)),
    _service(s.Optional(INT)),
    _service(s.Literal((1,))),
    _service(s.Literal(("1",))),
    _service(s.Literal((True,))),
    _service(s.Literal((b"1",))),
    _service(s.Opaque("array[Any]")),
    _service(_named("Pick")),
    _service(_named("Row")),
    _service(_named("Kind")),
    _service(INT, default=1),
    _service(INT, default=2),
    _service(s.Scalar("any"), default=1),
    _service(s.Scalar("any"), default=1.0),
    _service(s.Scalar("any"), default="1"),
    _service(s.Optional(INT), default=None),
    _row(ID),
    _row(ID, replace(LABEL, name="text")),
    _row(ID, replace(LABEL, type=S, default="")),
    _row(ID, replace(LABEL, default=s.MISSING)),
    _row(ID, replace(LABEL, default="x")),
    _row(ID, LABEL, s.Field(3, "tags", s.List(S), ())),
    _row(ID, LABEL, s.Field(3, "next", s.Optional(_named("Row")), None)),
    _service(_named("Line"), Line=replace(ROW, name="lab.Line")),
    _kind(KIND.members[0]),
    _kind(s.EnumMember("A", 2), s.EnumMember("B", 1)),
    _kind(s.EnumMember("A", "1"), s.EnumMember("B", "2")),
    _kind(s.EnumMember("A", 1), s.EnumMember("C", 2)),
]


def test_other_meanings_have_others() -> None:
    assert len({fingerprint(service) for service in DIFFERENT}) == len(DIFFERENT)


def test_recursion_ends() -> None:
    json = s.OneOf("lab.Json", (S, INT, s.List(_named("Json")), s.Map(S, _named("Json"))))
    assert fingerprint(_service(_named("Json"), Json=json)) != fingerprint(_service(_named("Pick")))
    deep = _row(ID, LABEL, s.Field(3, "next", s.Optional(_named("Row")), None))
    assert fingerprint(deep) == fingerprint(_noise(deep, random.Random(1)))


def test_it_never_changes() -> None:
    """Clients that were generated long ago carry it."""
    assert fingerprint(DIFFERENT[0]) == "895343431fd122b7abf4543b008b4cc2"
    assert fingerprint(_service(_named("Pick"), _named("Kind"))) == "7d85b59a1150fa433e4ea9e16a4505d3"


class Kind(enum.IntEnum):
    A = 1
    B = 2


FIRST = Kind(1)


@dataclass
class Row:
    id: int
    label: str | None = None


def _of(function: Callable[..., Any]) -> str:
    made = type("Lab", (), {"do": rrpc.method(function)})
    return fingerprint(service_of(rrpc.service(made)))


def test_of_python_services() -> None:
    def do(self: Any, rows: list[Row], kind: Kind = Kind.A, *, q: NDArray[np.float32]) -> None: ...
    def same(self: Any, rows: list[Row], kind: Kind = FIRST, *, q: NDArray[np.float32]) -> None:
        """With words."""

    def other(self: Any, rows: list[Row], kind: Kind = Kind.B, *, q: NDArray[np.float32]) -> None: ...
    def literal(self: Any, rows: list[Row], kind: Literal[1, 2] = 1, *, q: NDArray[np.float32]) -> None: ...

    assert _of(do) == _of(same)
    assert len({_of(do), _of(other), _of(literal)}) == 3


def test_a_struct_of_no_type_is_refused() -> None:
    error = s.Error("lab.Oops", "internal")
    with pytest.raises(ValueError, match=r"lab\.Oops is no type"):
        fingerprint(_service(_named("Oops"), Oops=error))


def test_noise_is_noise() -> None:
    """The edits of the first test do change the schema, so it can fail."""
    noisy = _noise(_row(ID, LABEL), random.Random(3))
    row = noisy.declarations["lab.Row"]
    assert isinstance(row, s.Struct)
    assert row.reserved == (99, "was")
    assert (row.doc, row.frozen) == ("other", True)
    assert {field.number for field in row.fields} != {1, 2}
    assert dataclasses.replace(row, fields=()) != ROW
