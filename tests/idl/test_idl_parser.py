"""Reading .rrpc files: what they say arrives in the schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from rrpc.idl import IdlError, load, parse
from rrpc.schema import (
    MISSING,
    Array,
    Const,
    Enum,
    Error,
    Field,
    List,
    Named,
    OneOf,
    Optional,
    Scalar,
    Struct,
    Tuple,
    Union,
)

SEARCH = """
/// Nearest-neighbour search.
package lab.search;

const MAX_K: int = 1000;

enum Metric {
  L2 = 1;
  COSINE = 2 [deprecated = "use L2"];
  reserved 3, "DOT";
}

/// One row.
struct Row {
  1: id: i64;
  2: vector: array<f32>[64];
  3: label: string? = none;
  4: tags: list<string> = [];
  5: metric: Metric = L2;
  reserved 6, 8, "weight";
}
frozen struct Key { 1: name: string; }

union Selector = Row | string | list<i64>;
error NotTrained(failed_precondition) { 1: missing: int; }

service Nearest {
  /// Docs, markdown.
  ///
  ///   indented
  search(queries: array<f32>[n, d], k: int = MAX_K, *, metric: Metric = L2)
    -> tuple<array<i64>[n, k], array<f32>[n, k]> throws NotTrained [idempotent];
  add(rows: stream Row) -> int;
  watch(name: string) -> stream Row;
  clear();
  old() -> none [deprecated = "use clear"];
}
"""


def test_a_whole_file() -> None:
    module = parse(SEARCH)
    assert (module.package, module.doc) == ("lab.search", "Nearest-neighbour search.")
    known = module.declarations
    assert known["lab.search.MAX_K"] == Const("lab.search.MAX_K", Scalar("int"), 1000)
    metric = known["lab.search.Metric"]
    assert isinstance(metric, Enum)
    assert [(m.name, m.value, m.deprecated) for m in metric.members] == [
        ("L2", 1, None),
        ("COSINE", 2, "use L2"),
    ]
    assert metric.reserved == (3, "DOT")
    row = known["lab.search.Row"]
    assert isinstance(row, Struct)
    assert row == Struct(
        "lab.search.Row",
        (
            Field(1, "id", Scalar("i64")),
            Field(2, "vector", Array("f32", (64,))),
            Field(3, "label", Optional(Scalar("string")), None),
            Field(4, "tags", List(Scalar("string")), ()),
            Field(5, "metric", Named("lab.search.Metric"), "L2"),
        ),
    )
    assert (row.doc, row.reserved, row.frozen) == ("One row.", (6, 8, "weight"), False)
    assert (row.position.line, row.position.column) == (14, 8) if row.position else False
    assert known["lab.search.Selector"] == OneOf(
        "lab.search.Selector", (Named("lab.search.Row"), Scalar("string"), List(Scalar("i64")))
    )
    not_trained = Error("lab.search.NotTrained", "failed_precondition", (Field(1, "missing", Scalar("int")),))
    assert known["lab.search.NotTrained"] == not_trained


def test_methods() -> None:
    service = parse(SEARCH).services["lab.search.Nearest"]
    assert list(service.declarations) == ["lab.search.Metric", "lab.search.NotTrained", "lab.search.Row"]
    search, add, watch, clear, old = service.methods
    assert search.doc == "Docs, markdown.\n\n  indented"
    assert [(p.name, p.default, p.keyword_only) for p in search.parameters] == [
        ("queries", MISSING, False),
        ("k", 1000, False),
        ("metric", "L2", True),
    ]
    assert search.result == Tuple((Array("i64", ("n", "k")), Array("f32", ("n", "k"))))
    assert search.errors == ("lab.search.NotTrained",)
    assert search.idempotent
    assert add.parameters[0].stream
    assert watch.result_stream
    assert clear.result == Scalar("none")
    assert old.deprecated == "use clear"


def test_unions_are_flat_and_none_makes_them_optional() -> None:
    module = parse("service S { f(a: none | int | (string | bool?), b: (int | string)?, c: (int)) -> int?; }")
    a, b, c = module.services["S"].methods[0].parameters
    assert a.type == Optional(Union((Scalar("int"), Scalar("string"), Scalar("bool"))))
    assert b.type == Optional(Union((Scalar("int"), Scalar("string"))))
    assert c.type == Scalar("int")


def test_imports(tmp_path: Path) -> None:
    (tmp_path / "std").mkdir()
    (tmp_path / "near.rrpc").write_text(
        'package near; import "far.rrpc"; struct A { 1: b: far.B; } const N: int = 3;'
    )
    (tmp_path / "std" / "far.rrpc").write_text("package far; struct B { 1: x: int; } error E(internal);")
    main = tmp_path / "main.rrpc"
    main.write_text(
        'package main; import "near.rrpc"; import "far.rrpc";'
        "service S { f(a: A, b: far.B, x: array<f32>[N]) -> near.A throws E; }"
    )
    module = load(main, [tmp_path / "std"])
    assert list(module.imports) == ["near.rrpc", "far.rrpc"]
    service = module.services["main.S"]
    assert list(service.declarations) == ["far.B", "near.A", "far.E"]
    assert service.methods[0].parameters[2].type == Array("f32", (3,))
    with pytest.raises(IdlError, match=r"main.rrpc:1:\d+: there is no file 'far.rrpc' in "):
        load(main)


def test_keywords_are_names_where_nothing_else_could_be_meant() -> None:
    module = parse(
        "struct union { 1: stream: int; 2: reserved: int; 3: list: int; 4: throws: int; }"
        "service service { error(struct: stream union) -> stream int; package(date: date, error: union); }"
    )
    assert [m.name for m in module.services["service"].methods] == ["error", "package"]


def test_the_same_text_as_bytes_with_a_mark_and_windows_lines() -> None:
    assert parse(b"\xef\xbb\xbf" + SEARCH.replace("\n", "\r\n").encode()) == parse(SEARCH)


def test_one_full_name_in_two_imported_files(tmp_path: Path) -> None:
    for name, text in {
        "a": "package lab; struct Row {}",
        "b": "package lab; struct Row { 1: x: int; }",
        "c": 'package lab.c; import "b.rrpc"; struct C { 1: row: lab.Row; }',
        "own": 'package lab; import "c.rrpc"; struct Row {}',
        "two": 'import "a.rrpc"; import "c.rrpc";',
        "same": 'import "b.rrpc"; import "c.rrpc"; struct Two { 1: row: Row; 2: c: C; }',
    }.items():
        (tmp_path / f"{name}.rrpc").write_text(text)
    with pytest.raises(IdlError, match=r"two.rrpc:1:25: 'lab.Row' is declared in another imported file too"):
        load(tmp_path / "two.rrpc")
    with pytest.raises(IdlError, match=r"own.rrpc:1:38: 'lab.Row' is declared in an imported file too"):
        load(tmp_path / "own.rrpc")
    assert list(load(tmp_path / "same.rrpc").declarations) == ["Two"]
