"""Schemas as .rrpc text: what the language has no words for is refused by name."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any

import pytest

import rrpc
from rrpc._interface import AnnotationError
from rrpc.idl import load, parse, print_module
from rrpc.schema import (
    Array,
    Declaration,
    Field,
    List,
    Method,
    Module,
    Named,
    Opaque,
    Optional,
    Parameter,
    Scalar,
    Service,
    Struct,
    Type,
    Union,
    module_of,
    modules_of,
)


def with_parameter(kind: Type, *default: Any) -> Module:
    method = Method("f", (Parameter("a", kind, *default),), Scalar("none"))
    return Module("lab", {}, {"lab.S": Service("lab.S", (method,))})


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            with_parameter(Opaque("array.array")),
            r"S\.f\(\): parameter 'a': array\.array has no word in the language",
        ),
        (
            with_parameter(List(Optional(Opaque("Flag")))),
            r"S\.f\(\): parameter 'a': Flag has no word in the language",
        ),
        (
            with_parameter(Scalar("complex"), 1j),
            r"S\.f\(\): parameter 'a': its default: 1j has no literal: its imaginary part isn't 0",
        ),
        (
            with_parameter(Scalar("date"), Opaque("datetime.date(2020, 1, 1)")),
            r"parameter 'a': its default: datetime\.date\(2020, 1, 1\) has no literal in the language",
        ),
        (with_parameter(Scalar("string"), "\ud800"), r"the text '\\ud800' is no valid Unicode"),
        (with_parameter(Scalar("bytes"), bytearray(b"x")), r"bytearray\(b'x'\) has no literal"),
        (
            with_parameter(Array("f32", ("größe",))),
            r"the language refuses 'f\(a: array<f32>\[größe\]\);': 'ö' has no ",
        ),
        (with_parameter(Union((Scalar("int"), Scalar("i8")))), r"int and i8 can't be told apart"),
        (
            with_parameter(Union((Optional(Scalar("int")), Scalar("string")))),
            r"lab\.S: can't be written so that it is",
        ),
        (
            Module("lab", {"lab.A": Struct("lab.A", (Field(1, "a", Opaque("object")),))}, {}),
            r"A\.a: object has no word in the language",
        ),
        (
            Module("lab", {"other.A": Struct("other.A", ())}, {}),
            r"other\.A doesn't belong into the package lab",
        ),
        (
            Module("lab", {"lab.A": Struct("lab.A", (Field(1, "a", Named("lab.A")),))}, {}),
            r"would never end: A -> A",
        ),
        (
            Module("lab", {}, {"lab.S": Service("lab.S", (Method("f", (), Opaque("Iterable[int]")),))}),
            r"S\.f\(\): result: Iterable\[int\] has no word in the language",
        ),
    ],
)
def test_refused(module: Module, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        print_module(module)


class Colour(enum.Enum):
    RED = "r"
    GREEN = "g"


@dataclasses.dataclass
class Track:
    """A track."""

    name: str
    colour: Colour = Colour.RED
    tags: list[str] = dataclasses.field(default_factory=list)


@rrpc.service(name="geo.Tracks")
class Tracks:
    """Tracks by name.

    Deprecated: use geo.Paths
    """

    @rrpc.method
    def put(self, track: Track, *, again: float = float("nan")) -> int | None:
        """Store one."""
        raise NotImplementedError


TRACKS = """\
package geo;

enum Colour {
  RED = "r";
  GREEN = "g";
}

/// A track.
struct Track {
  1: name: string;
  2: colour: Colour = RED;
  3: tags: list<string> = [];
}

/// Tracks by name.
service Tracks [deprecated = "use geo.Paths"] {
  /// Store one.
  put(track: Track, *, again: float = nan) -> int?;
}
"""


def test_a_python_service() -> None:
    module = module_of([Tracks])
    text = print_module(module)
    assert text == TRACKS
    assert print_module(parse(text)) == text


def test_a_python_service_with_more_than_the_language_has() -> None:
    @rrpc.service
    class Sums:
        @rrpc.method
        def add(self, values: bytearray) -> float:
            return sum(values)

    with pytest.raises(
        AnnotationError, match=r"^Sums\.add\(\): parameter 'values': bytearray has no word in "
    ):
        print_module(module_of([Sums]))


def test_a_service_that_uses_several_packages_becomes_several_files(tmp_path: Path) -> None:
    (tmp_path / "units.rrpc").write_text('package units; enum Unit { METRE = "m"; } struct None_ {}')
    (tmp_path / "base.rrpc").write_text(
        'package lab.base; import "units.rrpc"; struct Point { 1: unit: Unit = METRE; } error Far(aborted);'
    )
    (tmp_path / "map.rrpc").write_text(
        'package lab; import "base.rrpc"; struct Way { 1: points: list<Point>; }'
        "service Map { way() -> Way throws Far; } service Other { f(a: Point); }"
    )
    services = list(load(tmp_path / "map.rrpc").services.values())
    modules = modules_of(services)
    assert list(modules) == ["units.rrpc", "lab.base.rrpc", "lab.rrpc"]
    for path, module in modules.items():
        (tmp_path / path).write_text(print_module(module))
    assert list(load(tmp_path / "lab.rrpc").services.values()) == services


def test_packages_that_need_each_other_cannot_be_files() -> None:
    structs = [
        Struct("a.A", (Field(1, "b", Optional(Named("b.B"))),)),
        Struct("b.B", (Field(1, "c", Named("a.C")),)),
    ]
    declarations: dict[str, Declaration] = {known.name: known for known in [*structs, Struct("a.C", ())]}
    service = Service("a.S", (Method("f", (), Named("a.A")),), declarations)
    with pytest.raises(AnnotationError, match=r"packages that need each other: (a -> b -> a|b -> a -> b)"):
        modules_of([service])
