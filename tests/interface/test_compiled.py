"""Compiled plans against the codec in Python: the same bytes, the same values, and nothing taken that it refuses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pytest
from compiled_plans import (
    ANYTHING,
    TYPED,
    TYPES,
    Color,
    Pair,
    Point,
    assert_same,
    blocks_of,
    buffer_marks,
    plan_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from made import examples
from numpy.typing import NDArray

import rrpc
from rrpc._interface import MISSING, Parameter, Plan, untyped_request
from rrpc._interface.borrowed import holds_borrowed
from rrpc._interface.compiled import PURE_PYTHON
from rrpc.codec import Lent

pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="the codec in Python does it all")


@settings(max_examples=examples(300))
@given(TYPED, TYPED)
def test_same_bytes_and_values(one: tuple[Any, Any], two: tuple[Any, Any]) -> None:
    plan, compiled = plan_of(one[0], two[0], result=one[0])
    values = (one[1], two[1])
    payload, message = plan.encode_arguments(values)
    packed = compiled.pack_arguments(values)
    assert packed is not None
    assert packed[0] == payload
    assert buffer_marks(packed[1]) == buffer_marks(message)
    read = compiled.read_arguments(payload, blocks_of(message))
    assert read is not None
    assert_same(read, plan.decode_arguments(payload, blocks_of(message))[0])

    payload, message = plan.encode_result(one[1])
    packed = compiled.pack_result(one[1])
    assert packed is not None
    assert packed[0] == payload
    assert buffer_marks(packed[1]) == buffer_marks(message)
    result = compiled.read_result(payload, blocks_of(message))
    assert result is not None
    assert_same(result[0], plan.decode_result(payload, blocks_of(message)))


@settings(max_examples=examples(300))
@given(TYPES, ANYTHING)
def test_other_values_are_packed_alike_or_left(pair: tuple[Any, Any], value: Any) -> None:
    plan, compiled = plan_of(pair[0])
    packed = compiled.pack_arguments((value,))
    if packed is not None:
        assert packed[0] == plan.encode_arguments((value,))[0]


@settings(max_examples=examples(300))
@given(TYPES, ANYTHING)
def test_other_values_are_read_alike_or_left(pair: tuple[Any, Any], value: Any) -> None:
    loose = Plan("Lab.measure", [Parameter("a", Any, MISSING)], None)
    try:
        payload, message = loose.encode_arguments((value,))
    except rrpc.InvalidArgument:  # an int of more than 64 bits as a key, for one
        return
    plan, compiled = plan_of(pair[0])
    read = compiled.read_arguments(payload, blocks_of(message))
    if read is not None:
        assert_same(read, plan.decode_arguments(payload, blocks_of(message))[0])


@settings(max_examples=examples(500))
@given(TYPED, st.data())
def test_malformed_payloads_are_left(typed: tuple[Any, Any], data: st.DataObject) -> None:
    plan, compiled = plan_of(typed[0])
    payload, message = plan.encode_arguments((typed[1],))
    at = data.draw(st.integers(0, len(payload)))
    change = data.draw(st.binary(max_size=3))
    cut = data.draw(st.integers(0, 3))
    broken = payload[:at] + change + payload[at + cut :]
    read = compiled.read_arguments(broken, blocks_of(message))
    if read is not None:
        assert_same(read, plan.decode_arguments(broken, blocks_of(message))[0])


@settings(max_examples=examples(300))
@given(TYPED)
def test_lent_memory_is_read_alike_or_left(typed: tuple[Any, Any]) -> None:
    """A sender that lends everything: both give the same arrays, of which none but borrowed ones are read-only."""
    plan, compiled = plan_of(typed[0])
    payload, message = untyped_request([typed[1]], {}, None, lend=True)
    assert not any(isinstance(buffer, np.ndarray) for buffer in message)
    values, _, _ = plan.decode_arguments(payload, blocks_of(message))
    read = compiled.read_arguments(payload, blocks_of(message))
    if read is not None:
        assert_same(read, values)
    if not holds_borrowed(typed[0]):
        copied = blocks_of([buffer.buffer if isinstance(buffer, Lent) else buffer for buffer in message])
        assert_same(values, plan.decode_arguments(payload, copied)[0])


class Text(str):
    pass


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, True),
        (Color, 1),
        (Literal[1, "a"], True),
        (Literal[1, "a"], 2),
        (Any, Color.RED),
        (Any, {1, 2}),
        (Any, {(1, 2): 3}),
        (Pair, (1, "a")),
        (tuple[int, ...], [1, 2]),
        (int | str, 1.0),
        (int, 1 << 64),
        (int, -(1 << 63) - 1),
        (rrpc.u8, 256),
        (rrpc.i8, -129),
        (float, 1),
        (rrpc.f32, 3.5e38),
        (str, Text("a")),
        (str, "\ud800"),
        (bytes, bytearray(b"a")),
        (bytes, bytes(16384)),
        (list[int], (1, 2)),
        (tuple[int, int], (1, 2, 3)),
        (Point, {"x": 1.0, "y": 2.0}),
        (Point, Point(1, 2)),
        (NDArray[np.float32], np.zeros(3)),
        (NDArray[np.float32], np.zeros((3, 4), np.float32).T),
        (NDArray[np.float32], np.zeros(3, ">f4")),
        (NDArray[np.float32], [1.0, 2.0]),
    ],
)
def test_conversions_and_faults_are_pythons(annotation: Any, value: Any) -> None:
    assert plan_of(annotation)[1].pack_arguments((value,)) is None


SHAPES = [
    rrpc.Shape("n", "k"),
    rrpc.Shape("n"),
    rrpc.Shape(2, None),
    rrpc.Shape("k", 2),
    rrpc.Shape(None),
    rrpc.Shape(),
]
SHAPED = [Annotated[NDArray[np.float32], shape] for shape in SHAPES]
SIZED = st.lists(st.integers(1, 3), max_size=2).map(lambda shape: np.zeros(shape, np.float32))


@settings(max_examples=examples(500))
@given(st.lists(st.tuples(st.sampled_from(SHAPED), SIZED), min_size=1, max_size=3), st.integers(1, 3))
def test_dimensions(arrays: list[tuple[Any, Any]], n: int) -> None:
    """Names are one size wherever they stand, and a parameter of the name gives it."""
    parameters = [Parameter(f"a{i}", annotation, MISSING) for i, (annotation, _) in enumerate(arrays)]
    plan = Plan("Lab.measure", [*parameters, Parameter("n", int, MISSING)], None)
    assert plan.compiled is not None
    values = (*(array for _, array in arrays), n)
    packed = plan.compiled.pack_arguments(values)
    try:
        payload, _ = plan.encode_arguments(values)
    except rrpc.InvalidArgument:
        assert packed is None
        loose = Plan("Lab.measure", [Parameter(f"a{i}", Any, MISSING) for i in range(len(values))], None)
        assert plan.compiled.read_arguments(loose.encode_arguments(values)[0], None) is None
    else:
        assert packed == (payload, None)
        read = plan.compiled.read_arguments(payload, None)
        assert read is not None
        assert_same(read, list(values))
