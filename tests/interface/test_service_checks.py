"""How arguments and results are checked against their annotations, and what a method makes of a request."""

import datetime
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NewType

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc
from rrpc._interface import Mismatch, Parameter, Plan, compile_check
from rrpc.codec import decode


class Colour(enum.Enum):
    RED = "red"
    GREEN = 2


@dataclass
class Point:
    x: float
    y: float = 0.0
    rows: NDArray[np.float32] | None = None
    inner: list["Point"] = field(default_factory=list)


@dataclass
class Other:
    x: float


class Hit(NamedTuple):
    number: int
    at: Point


UserId = NewType("UserId", int)
HUGE = 10**5000


f32 = np.zeros(2, np.float32)
ACCEPTED: list[tuple[Any, Any, Any]] = [
    (int, 5, 5),
    (int, np.int64(5), 5),
    (float, 5, 5.0),
    (float, np.float32(0.5), 0.5),
    (bool, np.bool_(True), True),
    (complex, 1, 1 + 0j),
    (str, np.str_("a"), "a"),
    (bytes, bytearray(b"a"), b"a"),
    (bytearray, b"a", bytearray(b"a")),
    (memoryview, b"a", memoryview(b"a")),
    (None, None, None),
    (Any, f32, f32),
    (int | None, None, None),
    (int | str, "a", "a"),
    (float | str, 5, 5.0),
    (float | rrpc.i32, 5, 5),
    (complex | rrpc.f32 | rrpc.i32, 5, 5),
    (complex | rrpc.f32 | Literal[5], 5, 5),
    (complex | rrpc.f32, 5, 5.0),
    (list[float], [1, 2.5], [1.0, 2.5]),
    (tuple[int, ...], (1, 2), (1, 2)),
    (tuple[int, float], (1, 2), (1, 2.0)),
    (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
    (set[int], {1}, {1}),
    (Literal["a", 2], 2, 2),
    (Colour, "red", Colour.RED),
    (Colour, Colour.GREEN, Colour.GREEN),
    (UserId, 7, 7),
    (list[Annotated[int, {}]], [np.int64(7)], [7]),
    (Point, {"x": 1}, Point(1.0)),
    (list[Point], [{"x": 1.0, "inner": [{"x": 2.0}]}], [Point(1.0, inner=[Point(2.0)])]),
    (Hit, (1, {"x": 1.0}), Hit(1, Point(1.0))),
    (NDArray[np.float32], f32, f32),
    (NDArray[Any], f32, f32),
    (np.ndarray, f32, f32),
    (NDArray[np.floating[Any]], f32, f32),
    (NDArray[np.int64], np.zeros(2, np.longlong), np.zeros(2, np.int64)),
    (np.float32, 1, np.float32(1)),
    (datetime.date, datetime.date(2024, 1, 1), datetime.date(2024, 1, 1)),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), ACCEPTED)
def test_values_are_accepted_and_converted(annotation: Any, value: Any, expected: Any) -> None:
    checked = compile_check(annotation)(value)
    assert type(checked) is type(expected)
    assert np.array_equal(checked, expected) if isinstance(expected, np.ndarray) else checked == expected


MISMATCHED: list[tuple[Any, Any, str]] = [
    (int, "a", "expected int, got str"),
    (int, 1.0, "expected int, got float"),
    (float, "1", "expected float, got str"),
    (float, 10**400, "expected float, got int (too large)"),
    (bool, 1, "expected bool, got int"),
    (str, b"a", "expected str, got bytes"),
    (bytes, "a", "expected bytes, got str (use .encode())"),
    (None, 0, "expected None, got int"),
    (int | None, "a", "expected int | None, got str"),
    (list[int], (1,), "expected list[int], got tuple"),
    (list[int], [1, "a"], "[1]: expected int, got str"),
    (tuple[int, str], (1,), "expected tuple[int, str] of 2 items, got tuple (it has 1)"),
    (tuple[int, str], [1, "a"], "expected tuple[int, str], got list (use tuple(...))"),
    (dict[str, list[int]], {"a": [1, None]}, "['a'][1]: expected int, got None"),
    (Literal["a", 2], 3, "expected one of 'a', 2, got int (it is 3)"),
    (Literal[1], True, "expected one of 1, got bool (it is True)"),
    (Colour, "blue", "expected Colour, got str (it is 'blue')"),
    (Point, {"y": 1.0}, "expected Point, got dict (without x)"),
    (Point, {"x": 1.0, "z": 1}, "expected Point, got dict (with unknown z)"),
    (Point, Other(1.0), "expected Point, got Other"),
    (
        Point,
        Point(1.0, rows=np.zeros(1)),  # type: ignore[arg-type]
        ".rows: expected float32 array, got float64 array of shape (1,)",
    ),
    (list[Point], [{"x": 1.0, "inner": [{"x": "a"}]}], "[0].inner[0].x: expected float, got str"),
    (NDArray[np.float32], [1.0], "expected float32 array, got list (use np.asarray(..., dtype=np.float32))"),
    (NDArray[np.float32], np.zeros((3, 4)), "float64 array of shape (3, 4) (use .astype(np.float32))"),
    (NDArray[np.floating[Any]], np.zeros(2, int), "expected floating array, got int64 array of shape (2,)"),
    (np.int8, 300, "expected int8, got int (300 doesn't fit)"),
    (np.int64, 2.5, "expected int64, got float"),
    (np.bool_, 1, "expected bool, got int"),
    (list[Point], (), "expected list[Point], got tuple"),
    (dict[str, NDArray[Any]] | None, 1, "expected dict[str, NDArray[Any]] | None, got int"),
]


@pytest.mark.parametrize(("annotation", "value", "message"), MISMATCHED)
def test_mismatches_say_what_and_where(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(Mismatch) as caught:
        compile_check(annotation)(value)
    path = f"{caught.value.path}: " if caught.value.path else ""
    assert message in path + str(caught.value)


# Not by parametrize, which writes the values into the tests' names.
UNWRITABLE: list[tuple[Any, Any, str]] = [
    (np.float32, HUGE, "expected float32, got int (a number of 16610 bits doesn't fit)"),
    (complex, HUGE, "expected complex, got int (too large)"),
    (Literal[1], HUGE, "expected one of 1, got int (it is a number of 16610 bits)"),
    (Literal[1], [HUGE], "expected one of 1, got list (it is one with very long numbers)"),
    (Colour, HUGE, "expected Colour, got int (it is a number of 16610 bits)"),
    (dict[int, str], {HUGE: 1}, "[a number of 16610 bits]: expected str, got int"),
]


def test_errors_show_ints_of_more_digits_than_str_writes() -> None:
    for annotation, value, message in UNWRITABLE:
        test_mismatches_say_what_and_where(annotation, value, message)


@dataclass(frozen=True)
class Key:
    name: str


@pytest.mark.parametrize(
    "annotation",
    [set[Key], frozenset[Key], dict[Key, int], dict[NDArray[np.int8], int], list[set[list[int]]]],
)
def test_what_is_no_key_where_it_arrives_is_refused(annotation: Any) -> None:
    with pytest.raises(rrpc.AnnotationError, match="can't be a dict's key or in a set"):
        compile_check(annotation)


def test_a_union_of_dataclasses_goes_by_name() -> None:
    plan = Plan("S.m", [Parameter("a", Point | Other)], None)
    for value in (Point(1.0), Other(2.0)):
        payload, _ = plan.encode_arguments((value,))
        assert plan.decode_arguments(payload, None)[0] == [value]
        record = decode(payload)[0]  # as a caller without the class has it, and sends it on
        payload, _ = Plan("S.m", [Parameter("a", Any)], None).encode_arguments((record,))
        assert plan.decode_arguments(payload, None)[0] == [value]


@pytest.mark.parametrize("payload", [b"\x05", b"\x81\xa1z\x01", b"\x81\xa1a\x01", b"\x82\xa1a\x90\xa1o\x01"])
def test_a_malformed_request_is_a_protocol_error(payload: bytes) -> None:
    plan = Plan("S.m", [], None)
    with pytest.raises(rrpc.ProtocolError, match="malformed request"):
        plan.decode_arguments(payload, None)


def test_a_plain_request_is_a_plain_list() -> None:
    plan = Plan("S.m", [Parameter("a", int), Parameter("b", bytes)], int)
    payload, buffers = plan.encode_arguments((2**80, b"x"))
    assert decode(payload) == [2**80, b"x"]
    assert not buffers
    assert plan.decode_arguments(payload, None) == ([2**80, b"x"], None, None)
