"""Compiled plans against the codec in Python: the same bytes, the same values, and nothing taken that it refuses."""

from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
import sys
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import examples
from numpy.typing import NDArray

import rrpc
from rrpc import _core
from rrpc._interface import MISSING, Parameter, Plan
from rrpc._interface.compiled import PURE_PYTHON

pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="the codec in Python does it all")


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    where: Point
    tags: list[str]
    weights: NDArray[np.float64]
    parent: Point | None = None


@dataclasses.dataclass
class Slotted:
    __slots__ = ("count",)
    count: int


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(str, enum.Enum):
    LOW = "low"
    HIGH = "high"


class Pair(NamedTuple):
    first: int
    second: str | None


Meters = NewType("Meters", float)
DTYPES = [np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64, np.float16]


def arrays(kind: Any) -> st.SearchStrategy[Any]:
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple) | st.just((64, 64, 8))
    return shapes.map(lambda shape: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind))


ROWS = st.builds(
    Row,
    st.text(),
    st.builds(Point, st.floats(), st.floats()),
    st.lists(st.text()),
    arrays(np.float64),
    st.none(),
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | arrays(np.float32),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 99), inner) | st.tuples(inner, inner)
    ),
    max_leaves=5,
)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (type(None), st.none()),
    (bool, st.booleans()),
    (int, st.integers(-(1 << 63), (1 << 64) - 1)),
    (rrpc.i8, st.integers(-128, 127)),
    (rrpc.u16, st.integers(0, 65535)),
    (rrpc.i64, st.integers(-(1 << 63), (1 << 63) - 1)),
    (rrpc.u64, st.integers(0, (1 << 64) - 1)),
    (float, st.floats()),
    (rrpc.f32, st.floats(width=32)),
    (str, st.text()),
    (bytes, st.binary(max_size=300) | st.just(b"x" * 16383)),
    (Point, st.builds(Point, st.floats(), st.floats())),
    (Row, ROWS),
    (Slotted, st.builds(Slotted, st.integers(0, 9))),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Pair, st.builds(Pair, st.integers(0, 9), st.none() | st.text())),
    (Meters, st.floats()),
    (Literal["a", "b", 3], st.sampled_from(["a", "b", 3])),
    (Any, PLAIN),
    (int | str | list[float], st.integers(0, 99) | st.text() | st.lists(st.floats())),
    (
        bool | bytes | Point | None,
        st.none() | st.booleans() | st.binary() | st.builds(Point, st.floats(), st.floats()),
    ),
    *((NDArray[kind], arrays(kind)) for kind in DTYPES),  # type: ignore[valid-type]
    (np.ndarray, st.sampled_from(DTYPES).flatmap(arrays)),
]
KEYS = [leaf for leaf in LEAVES if leaf[0] in (int, str, bytes)]


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def of(pair: tuple[Any, Any]) -> st.SearchStrategy[Any]:
        annotation, values = pair
        return st.sampled_from(
            [
                (list[annotation], st.lists(values, max_size=6)),  # type: ignore[valid-type]
                (Optional[annotation], st.none() | values),  # noqa: UP045
                (tuple[annotation, int], st.tuples(values, st.integers(0, 300))),  # type: ignore[valid-type]
                (tuple[annotation, ...], st.lists(values, max_size=4).map(tuple)),  # type: ignore[valid-type]
                *((dict[key, annotation], st.dictionaries(keys, values, max_size=6)) for key, keys in KEYS),  # type: ignore[valid-type]
            ]
        )

    return inner.flatmap(of)


TYPES = st.recursive(st.sampled_from(LEAVES), _around, max_leaves=3)
TYPED = TYPES.flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | arrays(np.float32),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=5,
)


def plan_of(*annotations: Any, result: Any = None) -> tuple[Plan, _core.CompiledPlan]:
    parameters = [Parameter(f"a{i}", annotation, MISSING) for i, annotation in enumerate(annotations)]
    plan = Plan("Lab.measure", parameters, result)
    assert plan.compiled is not None
    plan.__dict__["_codec"] = None  # so that it does all of it in Python
    return plan, plan.compiled


def blocks_of(buffers: Any) -> list[Any] | None:
    return [memoryview(bytearray(memoryview(buffer).cast("B"))) for buffer in buffers] or None


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.flags.writeable) == (b.dtype, b.shape, b.flags.writeable)
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name))
    else:
        assert repr(a) == repr(b)  # NaN and -0.0 too


@settings(max_examples=examples(300))
@given(TYPED, TYPED)
def test_same_bytes_and_values(one: tuple[Any, Any], two: tuple[Any, Any]) -> None:
    plan, compiled = plan_of(one[0], two[0], result=one[0])
    values = (one[1], two[1])
    payload, message = plan.encode_arguments(values)
    packed = compiled.pack_arguments(values)
    assert packed is not None
    assert packed[0] == payload
    assert [id(buffer) for buffer in packed[1]] == [id(buffer) for buffer in message]
    read = compiled.read_arguments(payload, blocks_of(message))
    assert read is not None
    assert_same(read, plan.decode_arguments(payload, blocks_of(message))[0])

    payload, message = plan.encode_result(one[1])
    assert compiled.pack_result(one[1]) == (payload, list(message))
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


@pytest.mark.parametrize(
    "blocks",
    [None, [], [None], [bytearray(8)], [bytearray(65535)]],
    ids=["none", "empty", "gone", "short", "odd"],
)
def test_bulk_array_without_its_block_is_left(blocks: Any) -> None:
    plan, compiled = plan_of(NDArray[np.float32])
    payload, _ = plan.encode_arguments((np.zeros(16384, np.float32),))
    assert compiled.read_arguments(payload, blocks) is None


def test_two_arrays_never_share_a_block() -> None:
    plan, compiled = plan_of(NDArray[np.float32], NDArray[np.float32])
    payload, message = plan.encode_arguments((np.zeros(16384, np.float32),) * 2)
    twice = payload.replace(b"\x02\x01\x00\x00\x00", b"\x02\x00\x00\x00\x00")
    assert twice != payload
    assert compiled.read_arguments(twice, blocks_of(message)) is None
    with pytest.raises(rrpc.ProtocolError, match="stands for two values"):
        plan.decode_arguments(twice, blocks_of(message))


def test_bulk_array_stands_in_its_block() -> None:
    _, compiled = plan_of(NDArray[np.float32])
    packed = compiled.pack_arguments((np.arange(16384, dtype=np.float32),))
    assert packed is not None
    block: Any = _core.allocate(65536)
    read = compiled.read_arguments(packed[0], [block])
    assert read is not None
    read[0][5] = 7
    assert memoryview(block).cast("f")[5] == 7
    assert read[0].base is block


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
        assert packed == (payload, [])
        read = plan.compiled.read_arguments(payload, None)
        assert read is not None
        assert_same(read, list(values))


@pytest.mark.parametrize(
    "payload", ["91d1012c", "91d200010000", "91d37fffffffffffffff", "91d0ff", "91cd0100"]
)
def test_ranges_hold_in_every_format_of_an_int(payload: str) -> None:
    _, compiled = plan_of(rrpc.u8)
    assert compiled.read_arguments(bytes.fromhex(payload), None) is None
    assert compiled.read_arguments(bytes.fromhex("91d0") + b"\x7f", None) == [127]


def test_a_size_below_zero() -> None:
    plan = Plan("Lab.m", [Parameter("n", int, MISSING), Parameter("a", SHAPED[1], MISSING)], None)
    assert plan.compiled is not None
    assert plan.compiled.pack_arguments((-(1 << 63), np.zeros(3, np.float32))) is None


@dataclasses.dataclass
class Raises:
    error: str

    def __post_init__(self) -> None:
        raise {"stop": KeyboardInterrupt, "value": ValueError, "key": KeyError, "": MemoryError}[self.error]()


@pytest.mark.parametrize(
    ("error", "raised"), [("stop", KeyboardInterrupt), ("key", KeyError), ("", MemoryError)]
)
def test_what_a_constructor_raises_is_not_lost(error: str, raised: type[BaseException]) -> None:
    _, compiled = plan_of(Raises)
    record = object.__new__(Raises)
    record.error = error
    packed = compiled.pack_arguments((record,))
    assert packed is not None
    with pytest.raises(raised):
        compiled.read_arguments(packed[0], None)


def test_what_a_constructor_refuses_is_pythons() -> None:
    plan, compiled = plan_of(Raises)
    record = object.__new__(Raises)
    record.error = "value"
    packed = compiled.pack_arguments((record,))
    assert packed is not None
    assert compiled.read_arguments(packed[0], None) is None
    with pytest.raises(rrpc.InvalidArgument, match="argument 'a0': expected Raises"):
        plan.decode_arguments(packed[0], None)


def test_a_peer_cannot_fill_the_table_of_dtypes() -> None:
    plan, compiled = plan_of(np.ndarray)
    payload, _ = plan.encode_arguments((np.zeros(2, np.float32),))
    odd = payload.replace(b"<f4", b"|f4")
    assert odd != payload
    for _ in range(100):
        compiled.read_arguments(odd, None)
    for kind in DTYPES:
        assert compiled.pack_arguments((np.zeros(2, kind),)) is not None


def test_annotations_that_would_take_too_many_nodes() -> None:
    kind: Any = Point
    for level in range(8):
        fields = [(f"f{i}", kind) for i in range(4)]
        kind = dataclasses.make_dataclass(f"Level{level}", fields)
    assert Plan("Lab.m", [Parameter("a", kind, MISSING)], None).compiled is None
    huge = Annotated[NDArray[np.float32], rrpc.Shape(1 << 63)]
    assert Plan("Lab.m", [Parameter("a", huge, MISSING)], None).compiled is None


def test_methods_that_it_does_not_know() -> None:
    for annotation in (
        complex,
        set[int],
        int | rrpc.i8,
        np.float32,
        list[int] | list[str],
        int | Color,
    ):
        assert Plan("Lab.m", [Parameter("a", annotation, MISSING)], None).compiled is None


def test_without_it_everything_works() -> None:
    code = """
import numpy as np, rrpc
from rrpc._interface.compiled import PURE_PYTHON
assert PURE_PYTHON

@rrpc.service
class Lab:
    @rrpc.method
    def add(self, a: int, b: int = 2) -> int:
        return a + b

with rrpc.Server(Lab(), listen="tcp://127.0.0.1:0") as server, rrpc.connect(server.addresses[0]) as client:
    print(client.call("Lab.add", 40))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RRPC_PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("42\n", "")
