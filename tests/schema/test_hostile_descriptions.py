"""Descriptions whose types expand to exponentially many, or nest without end: the work that they make is bounded."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from rrpc._interface import Plan
from rrpc._interface.compiled import compiled
from rrpc.idl import Unit, emit
from rrpc.schema import Array, Declaration, Method, Service, Type, fingerprint, from_data, service_of, to_data
from rrpc.schema.canonical_read import BadData, read_service
from rrpc.schema.closure import types_in
from rrpc.schema.compatibility import compare_services
from rrpc.schema.effort import TooIntricate
from rrpc.schema.to_python import to_interface

Alternatives = Callable[[int], list[Any]]
MEMBERS = [{"name": f"a{i}", "value": i} for i in range(2000)]
TOO_MUCH = "types expand to more than "
TOO_DEEP = "types are nested deeper than "


def _named(number: int) -> dict[str, str]:
    return {"named": f"X{number}"}


def described(count: int, alternatives: Alternatives, members: list[Any] = MEMBERS[:1]) -> Service:
    """A service with one-ofs X0, X1 ... and the enum that they come to."""
    declared: dict[str, Any] = {
        f"X{i}": {"kind": "oneof", "name": f"X{i}", "alternatives": alternatives(i)} for i in range(count)
    }
    declared[f"X{count}"] = {"kind": "enum", "name": f"X{count}", "members": members}
    method = {"name": "m", "parameters": [{"name": "p", "type": _named(0)}], "result": _named(0)}
    return read_service({"name": "S", "methods": [method], "declarations": declared})


# A one-of that takes about anything, so that the whole of the other is looked at.
OWN = described(
    1, lambda i: ["none", "string", {"list": _named(0)}, {"set": _named(0)}, {"tuple": [_named(0)] * 9}]
)
# The service; what is wrong for its fingerprint, and for the comparison ("" for nothing).
HOSTILE: dict[str, tuple[Callable[[], Service], str, str]] = {
    "twice": (lambda: described(40, lambda i: [_named(i + 1), _named(i + 1)]), TOO_MUCH, ""),
    "all name all": (lambda: described(12, lambda i: [_named(j) for j in range(13)]), TOO_MUCH, ""),
    "twice within": (
        lambda: described(20, lambda i: [{"list": _named(i + 1)}, {"set": _named(i + 1)}]),
        TOO_MUCH,
        TOO_MUCH,
    ),
    "lists of all": (
        lambda: described(12, lambda i: [{"list": _named(j)} for j in range(13)]),
        TOO_MUCH,
        TOO_MUCH,
    ),
    "a long enum": (
        lambda: described(14, lambda i: [{"list": _named(i + 1)}, {"set": _named(i + 1)}], MEMBERS),
        TOO_MUCH,
        TOO_MUCH,
    ),
    "a chain": (lambda: described(2000, lambda i: [_named(i + 1)]), TOO_DEEP, ""),
    "a chain of lists": (lambda: described(2000, lambda i: [{"list": _named(i + 1)}]), TOO_DEEP, TOO_DEEP),
    "itself alone": (lambda: described(1, lambda i: [_named(i)]), "", ""),
}


def _outcome(do: Callable[[], object]) -> str:
    try:
        do()
    except TooIntricate as error:
        return str(error)
    return ""


@pytest.mark.parametrize("what", HOSTILE)
def test_the_work_is_bounded(what: str) -> None:
    make, of_print, of_comparison = HOSTILE[what]
    service = make()
    found = _outcome(lambda: fingerprint(service))
    assert found.startswith(of_print), found
    assert bool(found) == bool(of_print)
    assert _outcome(lambda: from_data(to_data(service))) == found
    for pair in ((OWN, service), (service, OWN)):
        found = _outcome(lambda pair=pair: compare_services(*pair))  # type: ignore[misc]
        assert found.startswith(of_comparison), found
        assert bool(found) == bool(of_comparison)


def test_a_chain_of_structs_may_be_long() -> None:
    count = 2000
    declared: dict[str, Any] = {
        f"X{i}": {
            "kind": "struct",
            "name": f"X{i}",
            "fields": [{"number": 1, "name": "x", "type": _named(i + 1)}],
        }
        for i in range(count)
    }
    declared[f"X{count}"] = {"kind": "enum", "name": f"X{count}", "members": MEMBERS[:1]}
    services = []
    for default in (1, 2):
        method = {
            "name": "m",
            "parameters": [{"name": "p", "type": "int", "default": default}],
            "result": _named(0),
        }
        services.append(from_data({"name": "S", "methods": [method], "declarations": declared}))
    assert fingerprint(services[0]) != fingerprint(services[1])
    (change,) = compare_services(*services)
    assert not change.breaking


def _structs(count: int, fields: int) -> Service:
    """A service with structs that have so many fields of the next one each."""
    declared: dict[str, Any] = {
        f"X{i}": {
            "kind": "struct",
            "name": f"X{i}",
            "fields": [
                {"number": n, "name": f"x{n}", "type": {"optional": _named(i + 1)}}
                for n in range(1, fields + 1)
            ],
        }
        for i in range(count)
    }
    declared[f"X{count}"] = {"kind": "enum", "name": f"X{count}", "members": MEMBERS[:1]}
    method = {"name": "m", "parameters": [{"name": "p", "type": _named(0)}], "result": _named(0)}
    return from_data({"name": "S", "methods": [method], "declarations": declared})


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("a chain", lambda: _structs(400, 1)),
        ("twice the next one", lambda: _structs(60, 2)),
        # Nested nearly as deep as a description may be: these take two levels each.
        (
            "one-ofs",
            lambda: from_data(to_data(described(47, lambda i: ["int", {"optional": _named(i + 1)}]))),
        ),
    ],
)
def test_python_is_made_of_whatever_is_read(what: str, make: Callable[[], Service]) -> None:
    service = make()
    interface = to_interface(service)
    assert fingerprint(service_of(interface)) == fingerprint(service)
    method = interface.methods["m"]
    Plan(method.name, method.parameters, method.result)
    compiled(method.parameters, method.result)
    text = emit(Unit("a test", [interface]), "0.1.0")
    compile(text, "generated.py", "exec")
    declared = [int(number) for number in re.findall(r"^class X(\d+)\b", text, re.M)]
    assert declared == [*range(declared[0], declared[0] - len(declared), -1)]


def test_methods_share_one_look_at_the_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def look(each: Declaration) -> tuple[Type, ...]:
        looks.append(each)
        return types_in(each)

    monkeypatch.setattr("rrpc.schema.compatibility.methods.types_in", look)
    declared = _structs(50, 1).declarations
    methods = tuple(Method(f"m{i}", (), Array("f32", ("n", "n"))) for i in range(40))
    compare_services(Service("S", methods, declared), Service("S", methods, declared))
    assert len(looks) == 2 * len(declared)


def test_a_one_of_has_alternatives() -> None:
    with pytest.raises(BadData, match="it has no alternatives"):
        described(1, lambda i: [])
