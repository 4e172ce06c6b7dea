"""Whatever stands in a file, the parser gives a module or says what is wrong; what is printed is read the same."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import schemas
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made import examples

from rrpc.idl import IdlError, parse, print_module
from rrpc.schema import Module

GOOD = sorted((Path(__file__).parents[2] / "idl" / "corpus" / "good").glob("*.rrpc"))
TEXTS = [path.read_text() for path in GOOD]
# Pieces of the language, so that random texts get past the lexer.
PIECES = [
    *re.findall(
        r"\S+",
        "package import const enum struct frozen union error service reserved stream throws true none inf nan a A B _ "
        "f32 int string list array map tuple literal set deprecated idempotent 0 1 -1 3.5 1e9 ; : , . = | ? < > [ ] "
        """( ) { } -> ... * / /// // /* */ # é " b" "a" b"a" "\\x" \\ \0""",
    ),
    "\n",
]
fast = settings(max_examples=examples(100))


def read(text: str | bytes) -> None:
    """Reads it: a module, which can be printed, or an IdlError that can be shown."""
    try:
        module = parse(text, "fuzz.rrpc")
    except IdlError as error:
        found = error
    else:
        if not module.imports:
            assert parse(print_module(module), "fuzz.rrpc") == module
        return
    assert found.diagnostics
    assert all(line.isprintable() for line in str(found).split("\n"))
    for diagnostic in found.diagnostics:
        assert diagnostic.column <= len(diagnostic.text) + 1


@fast
@given(st.binary(max_size=200))
def test_bytes(content: bytes) -> None:
    read(content)


@fast
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join) | st.text(max_size=100))
@example("struct A { 1: a: A; } struct B { 1: a: tuple<B, C>; } struct C { 1: a: B | int; }")
@example("union A = A | int; union B = list<C> | int; union C = B | string;")
@example("const A: int = B; const B: int = A; struct X { 1: a: array<f32>[A]; }")
def test_words(text: str) -> None:
    read(text)


@fast
@given(st.data())
def test_changed_files(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 4))):
        first = data.draw(st.integers(0, len(text)))
        last = min(len(text), first + data.draw(st.integers(0, 12)))
        text = text[:first] + data.draw(st.sampled_from(PIECES) | st.just("")) + text[last:]
    read(text)


@settings(max_examples=examples(50), suppress_health_check=list(HealthCheck))
@given(schemas.modules())
def test_what_is_printed_is_read_the_same(module: Module) -> None:
    text = print_module(module)
    again = parse(text)
    assert again == module
    assert print_module(again) == text  # documentation too, which == leaves out


NESTED = "array<f32>"
for _ in range(30):
    NESTED = f"list<{NESTED}>"


@pytest.mark.parametrize(
    "text",
    [
        "struct A { 1: a: " + "list<" * 20_000,
        "struct A { 1: a: " + "(" * 20_000,
        "const A: any = " + "[" * 20_000,
        "{" * 20_000,
        "struct A {" * 5_000,
        "struct A {\n" * 5_000,
        "/*" * 50_000,
        '"' * 50_000,
        "§" * 50_000,
        ";" * 50_000,
        "///\n" * 50_000,
        "struct A { 1: a: int" + "?" * 50_000,
        "union U = " + " | ".join(["int"] * 20_000) + ";",
        "const A: int = " + "9" * 300_000 + ";",
        "".join(f"union U{n} = U{n + 1} | U{n + 2};" for n in range(500))
        + "union U500 = int | string; union U501 = U500 | bool;",
        "".join(f"union U{n} = U{n + 1} | list<U{n + 1}>;" for n in range(40)) + "union U40 = int | string;",
        "".join(f"struct S{n} {{ 1: a: S{n + 1}; 2: b: S{n + 2}; }}" for n in range(500))
        + "struct S500 { 1: a: S0; } struct S501 {}",
        f"service S {{ f(a: {NESTED} | {NESTED}); }}",
        "".join(f"const C{n}: int = C{n + 1};" for n in range(1000)) + "const C1000: int = 1;",
    ],
    ids=lambda text: f"{text[:24]!r}",
)
def test_nothing_takes_long(text: str) -> None:
    started = time.process_time()
    read(text)
    assert time.process_time() - started < 10.0


def test_four_times_the_lines_take_four_times_as_long() -> None:
    few, many = (min(_seconds(_structs(count)) for _ in range(3)) for count in (25, 100))
    assert many < 9 * few  # sixteen times, were each line compared with all others


def _structs(count: int) -> str:
    members = "".join(f"  {n}: field_{n}: map<string, list<Row>>? = none;\n" for n in range(1, 20))
    rows = (f"/// Number {n}.\nstruct S{n} {{\n{members}}}\n" for n in range(count))
    return "".join(["struct Row {}\n", *rows])


def _seconds(text: str) -> float:
    """Processor time that it takes to read the text."""
    started = time.process_time()
    parse(text)
    return time.process_time() - started
