"""docs/protocol.md names every message, flag and constant of the C++ headers, with its value."""

import ast
import operator
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ROOT

from rrpc.codec import wire

PAGE = (ROOT / "docs" / "protocol.md").read_text()
HEADERS = (
    "base/hash_probes.h",
    "base/limits.h",
    "base/msgpack_scan.h",
    "base/status.h",
    "endpoint/endpoint.h",
    "endpoint/exposure.h",
    "endpoint/header.h",
    "endpoint/protector.h",
    "endpoint/rails.h",
    "endpoint/seal.h",
    "provider/protection.h",
    "provider/provider.h",
    "provider/shm/control_segment.h",
    "provider/shm/slab.h",
    "provider/shm/wire.h",
    "provider/tcp/frame.h",
    "provider/tcp/silent_sockets.h",
    "rpc/messages.h",
)
NOT_ON_THE_WIRE = {
    "kNoOwner",  # a buffer of the process's own
    "kRefused",  # text: a field of HELLO
    "kRefusedAs",
    "kMagic",  # text: shm's preamble
    "kPollAgain",
    "kNoCompletion",
    "kCiphersEntryName",  # text: of a shared object
}
ENUMS = {
    "rpc/messages.h": ("MessageType",),
    "provider/tcp/frame.h": ("FrameType",),
    "provider/shm/wire.h": ("MessageType",),
    "base/status.h": ("StatusCode",),
    "provider/verbs/introduction.h": ("FrameKind",),
}
FLAGS = {"rpc/messages.h": ("RequestFlag", "ReplyFlag", "ItemFlag")}
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
    ast.Pow: operator.pow,
}


def source(header: str) -> str:
    """A header of the core without its comments."""
    return re.sub(r"//[^\n]*", "", (ROOT / "cpp" / header).read_text())


def members(header: str, enum: str) -> dict[str, int]:
    """The members of an enum; one without a value follows the last."""
    found = re.search(rf"enum (?:class )?{enum} : \w+ \{{(.*?)\}}", source(header), re.DOTALL)
    assert found is not None, f"{header} has no {enum}"
    values: dict[str, int] = {}
    for member in filter(None, map(str.strip, found[1].split(","))):
        name, _, value = member.partition("=")
        values[name.strip()] = int(value) if value else max(values.values(), default=-1) + 1
    return values


def evaluate(expression: str, known: dict[str, int]) -> int:
    """What a constant is, given those before it."""
    plain = re.sub(r"uint\d+_t\{(\w+)\}", r"\1", expression)
    plain = re.sub(r"\b(0x[0-9A-Fa-f]+|\d+)[uUlL]*\b", r"\1", plain)

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return int(OPERATORS[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.Name):
            return known[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        assert isinstance(node, ast.Constant), expression
        assert isinstance(node.value, int)
        return node.value

    return value(ast.parse(plain.strip(), mode="eval").body)


def constants(header: str) -> Iterator[tuple[str, int]]:
    """Every constant of a header, in order."""
    known = {name: flag for enum in FLAGS.get(header, ()) for name, flag in members(header, enum).items()}
    known |= {"kSecond": 1_000_000_000, "UINT16_MAX": 65535}
    for name, expression in re.findall(r"constexpr [\w: ]+ (k\w+)(?:\[\])? = ([^;]+);", source(header)):
        if name not in NOT_ON_THE_WIRE:
            known[name] = evaluate(expression, known)
            yield name, known[name]


def rows() -> Iterator[tuple[str, list[str]]]:
    """The rows of the page's table of numbers, each with its header's path."""
    header = ""
    for line in PAGE.partition("\n## Numbers\n")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[1].startswith("`k"):
            header = cells[0].strip("`") or header
            yield header, cells


@pytest.mark.parametrize("header", HEADERS)
def test_every_constant_stands_in_the_table_of_numbers(header: str) -> None:
    told = {}
    for path, (_, name, value) in rows():
        if path == header:
            told[name.split("`")[1]] = evaluate(value.replace("^", "**"), {})
    assert told == dict(constants(header))


def test_the_table_of_numbers_names_no_other_header() -> None:
    assert {path for path, _ in rows()} <= set(HEADERS)


@pytest.mark.parametrize(
    ("header", "enum"), [(header, enum) for header, enums in ENUMS.items() for enum in enums]
)
def test_every_message_type_and_status_has_a_row(header: str, enum: str) -> None:
    page = PAGE.replace("_", "")
    for name, value in members(header, enum).items():
        row = rf"\| {value} \| {name[1:].upper()} \|"
        assert re.search(row, page), (
            f"{header}: {name} = {value} isn't in a table of {Path('docs/protocol.md')}"
        )


def test_every_refusal_of_tcp_has_a_row() -> None:
    handled = re.findall(r"refusal != WcStatus::(k\w+)", source("provider/tcp/queue_pair_input.cc"))
    assert handled
    numbers = members("provider/provider.h", "WcStatus")
    for name in handled:
        row = rf"\| {numbers[name]} \| {name[1:].upper()} \|"
        assert re.search(row, PAGE.replace("_", "")), f"{name} = {numbers[name]}"


def test_every_extension_of_a_payload_has_a_row() -> None:
    codes = [wire.ARRAY, wire.BULK_ARRAY, wire.BYTES, wire.BULK_BYTES_LIKE, wire.OUT]
    codes += [wire.TUPLE, wire.SET, wire.FROZENSET, wire.RECORD, wire.BIG_INT, wire.COMPLEX, wire.DATETIME]
    codes += [wire.DATE, wire.TIME, wire.TIMEDELTA, wire.DECIMAL, wire.UUID]
    table = re.split(r"^\| extension \|.*\n", PAGE, flags=re.MULTILINE)[1].split("\n\n")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == codes


FLAG_SECTIONS = [("RequestFlag", "REQUEST"), ("ReplyFlag", "REPLY"), ("ItemFlag", "ITEM")]


@pytest.mark.parametrize(("enum", "section"), FLAG_SECTIONS)
def test_every_flag_is_explained(enum: str, section: str) -> None:
    text = re.split(rf"^#+ {section}$", PAGE, flags=re.MULTILINE)[1]
    text = re.split(r"^#+ ", text, flags=re.MULTILINE)[0]
    for name, value in members("rpc/messages.h", enum).items():
        assert re.search(rf"(?:\| |flags \| u8 \| |, ){value}(?:: | \| )", text), f"{name} = {value}"
