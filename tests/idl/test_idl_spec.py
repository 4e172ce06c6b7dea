"""idl/SPEC.md is true: its example is read, its lists are those of the compiler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import run_python

from rrpc.idl import IdlError, rules
from rrpc.idl.grammar import grammar
from rrpc.idl.loader import load, parse
from rrpc.idl.parser import FILE_BYTES_MAX
from rrpc.schema import ARRAY_ITEMS, SCALARS

SPEC = Path(__file__).parents[2] / "idl" / "SPEC.md"
TEXT = SPEC.read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example(tmp_path: Path) -> None:
    (tmp_path / "common.rrpc").write_text("package common;")
    (tmp_path / "nearest.rrpc").write_text(BLOCKS[0])
    module = load(tmp_path / "nearest.rrpc")
    assert list(module.services) == ["lab.search.Nearest"]
    assert len(module.declarations) == 5


NEEDED = {
    "Metric": "enum Metric { L2 = 1; }",
    "Row": "struct Row {}",
    "NotTrained": "error NotTrained(internal);",
}


@pytest.mark.parametrize("block", BLOCKS[1:-1], ids=lambda block: block.partition("\n")[0])
def test_the_other_examples(block: str) -> None:
    declared = set(re.findall(r"^(?:struct|enum) (\w+)", block, re.MULTILINE))
    parse("".join(text for name, text in NEEDED.items() if name not in declared) + block)


def test_the_names_it_lists() -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", TEXT))))
    lists = [rules.ERROR_CODES, SCALARS, ARRAY_ITEMS, rules.CONTAINERS]
    lists += [rules.GENERATED_NAMES, rules.RESERVED_METHODS, rules.RESERVED_PARAMETERS, rules.ENUM_NAMES]
    lists += [rules.STRUCT_NAMES, rules.ERROR_NAMES, rules.VALUE_WORDS]
    for known in lists:
        assert set(known) <= words, set(known) - words


def test_the_grammar_it_shows_has_every_keyword() -> None:
    shown = set(re.findall(r'"([a-z]+)"', BLOCKS[-1]))
    keywords = {
        str(terminal.pattern.value)
        for terminal in grammar().parser.terminals
        if terminal.pattern.type == "str" and str(terminal.pattern.value).isalpha()
    }
    assert shown == keywords


def test_a_file_too_long() -> None:
    with pytest.raises(
        IdlError, match=rf"^long:1:1: the file has more than {FILE_BYTES_MAX} bytes: split it"
    ):
        parse(" " * (FILE_BYTES_MAX + 1), "long")
    assert parse(" " * FILE_BYTES_MAX).package == ""


def test_lark_is_imported_only_when_a_file_is_read() -> None:
    run_python(
        "import sys, rrpc, rrpc.idl\n"
        "assert 'lark' not in sys.modules\n"
        "rrpc.idl.parse('')\n"
        "assert 'lark' in sys.modules\n"
    )
