"""rrpc-call: values of every kind, from the command line and back as JSON and files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rrpc_call import TRACK, Run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["1", "2", "true", "x", "null"], [1, 2.0, True, "x", None]),
        (["1", "d=a=b c"], [1, 0.5, False, "a=b c", None]),
        (["-5", "b=-1e3"], [-5, -1000.0, False, "d", None]),
        (["a=10000000000000000000000"], [10**22, 0.5, False, "d", None]),
    ],
)
def test_plain_values(rrpc_call: Run, arguments: list[str], expected: list[Any]) -> None:
    assert rrpc_call.result("Kinds.plain", *arguments) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("bare words", "bare words"),
        ("5", "5"),
        ("null", "null"),
        ('"quoted\\n"', "quoted\n"),
        ('"', '"'),
        ("größe", "größe"),
        ("", ""),
    ],
)
def test_texts(rrpc_call: Run, given: str, expected: str) -> None:
    assert rrpc_call.result("Kinds.text", f"text={given}") == expected


def test_optional_and_union(rrpc_call: Run) -> None:
    assert [rrpc_call.result("Kinds.maybe", f"value={v}") for v in ("5", "x", "null", '"5"')] == [
        "5",
        "'x'",
        "None",
        "'5'",
    ]
    assert rrpc_call.result("Kinds.shape", '{"size": 1}') == "Circle"
    assert rrpc_call.result("Kinds.shape", '{"$type": "Square", "size": 1}') == "Square"


def test_a_union_is_decided_by_what_fits(rrpc_call: Run) -> None:
    assert rrpc_call.result("Kinds.either", '{"size": "x"}') == "Label(size='x')"
    assert rrpc_call.result("Kinds.either", '{"size": 1}') == "Circle(size=1.0)"
    assert rrpc_call.result("Kinds.either", "null") == "None"
    assert rrpc_call.bad("Kinds.either", 'item={"size": [1]}') == (
        'item={"size": [1]}: expected Circle | Label | None, got {"size": [1]}'
    )


def test_text_that_looks_like_json(rrpc_call: Run) -> None:
    assert rrpc_call.result("Kinds.digit", "1", '[1.10, "2.50", 3]') == ["1", "1.1", "2.50", "3"]


def test_enums_and_literals(rrpc_call: Run) -> None:
    assert rrpc_call.result("Kinds.choice", "FOOT", "level=HIGH", "literal=2") == ["FOOT", "HIGH", 2]
    assert rrpc_call.result("Kinds.choice", "ft", "level=2", "literal=a") == ["FOOT", "HIGH", "a"]


def test_dataclasses(rrpc_call: Run, tmp_path: Path) -> None:
    expected = {
        "name": "walk",
        "points": {"dtype": "float64", "shape": [2, 2], "data": [[0.0, 0.0], [1.5, 2.0]]},
        "unit": "FOOT",
        "tags": ["slow"],
    }
    assert rrpc_call.result("Kinds.track", f"track={TRACK}") == expected
    (tmp_path / "track.json").write_text(json.dumps(expected))  # what came out goes in again
    assert rrpc_call.result("Kinds.track", f"@{tmp_path}/track.json") == expected


def test_containers(rrpc_call: Run) -> None:
    given = ["[1, 2]", '[3, "x"]', '{"7": ["y"]}', "[2, 1, 2]", "e=[8, 9]"]
    assert rrpc_call.result("Kinds.containers", *given) == [
        [1, [1, 2]],
        [2, [3, "x"]],
        [3, [[7, ["y"]]]],
        [4, [1, 2]],
        [5, [8, 9]],
    ]
    given[2] = '[[7, ["y"]]]'
    assert rrpc_call.result("Kinds.containers", *given)[2] == [3, [[7, ["y"]]]]


def test_times_and_numbers(rrpc_call: Run) -> None:
    key = "12345678-1234-5678-1234-567812345678"
    given = ["2026-01-31", "2026-01-31T12:00:00Z", "1.5", "1.10", key, "[1, -2]"]
    expected = ["2026-01-31", "2026-01-31T12:00:00+00:00", 1.5, "1.10", key, [1.0, -2.0]]
    assert rrpc_call.result("Kinds.times", *given) == expected
    quoted = [json.dumps(item) for item in expected]
    assert rrpc_call.result("Kinds.times", *quoted) == expected


def test_bytes(rrpc_call: Run, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"\x00\xff")
    for given in (f"@{tmp_path}/blob", '{"base64": "AP8="}'):
        assert rrpc_call.result("Kinds.binary", f"data={given}") == {"base64": "/wA="}
    assert rrpc_call.result("Kinds.binary", "abc") == {"base64": "Y2Jh"}
    assert rrpc_call.result("Kinds.binary", "x" * 5000)["bytes"] == 5000
    assert len(rrpc_call.result("Kinds.binary", "x" * 5000, "--json")["base64"]) > 5000
    assert rrpc_call.result("Kinds.binary", "abc", "-o", f"{tmp_path}/out") == {
        "bytes": 3,
        "file": f"{tmp_path}/out",
    }
    assert (tmp_path / "out").read_bytes() == b"cba"


def test_arrays(rrpc_call: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((300, 2), np.float32))
    short = {"dtype": "float32", "shape": [2], "data": [2.0, 5.0]}
    assert rrpc_call.result("Kinds.floats", "[1, 2.5]") == short
    assert rrpc_call.result("Kinds.floats", '{"dtype": "float32", "shape": [1, 2], "data": [1, 2.5]}') == {
        "dtype": "float32",
        "shape": [1, 2],
        "data": [[2.0, 5.0]],
    }
    long = {"dtype": "float32", "shape": [300, 2]}
    assert rrpc_call.result("Kinds.floats", f"array=@{tmp_path}/a.npy") == long | {
        "first": [2.0] * 6,
        "min": 2.0,
        "max": 2.0,
    }
    assert rrpc_call.result("Kinds.floats", f"array=@{tmp_path}/a.npy", "--json") == long | {
        "data": [[2.0, 2.0]] * 300
    }
    assert rrpc_call.result("Kinds.describe", "[[1, 2], [3, 4]]") == "int64 (2, 2)"
    assert rrpc_call.result("Kinds.describe", f"@{tmp_path}/a.npy") == "float32 (300, 2)"
    assert rrpc_call.result("Kinds.anything", f"@{tmp_path}/a.npy").startswith("ndarray ")


def test_numbers_that_json_has_no_word_for(rrpc_call: Run) -> None:
    for arguments in ([], ["--json"]):
        assert rrpc_call.result("Kinds.endless", *arguments) == ["NaN", "Infinity", "-Infinity", 1.5]


def test_laid_out_for_people_or_on_one_line_for_programs(rrpc_call: Run) -> None:
    track = TRACK.replace("slow", "slow" * 20)
    assert rrpc_call("Kinds.track", track)[1].splitlines()[:2] == ["{", '  "name": "walk",']
    assert rrpc_call("Kinds.track", track, "--json")[1].count("\n") == 1


def test_what_no_set_and_no_key_can_be(rrpc_call: Run) -> None:
    assert rrpc_call.bad("Kinds.containers", "d=[[1]]") == "d=[[1]]: expected set[int], got [[1]]"
    assert rrpc_call.bad("Kinds.containers", "c=[[[1], []]]") == "c[[1]]: expected int as a key, got [1]"
