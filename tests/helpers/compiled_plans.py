"""Annotations that compiled plans know, values of each, and the same plan in Python to compare with."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
from typing import Any, Literal, NamedTuple, NewType, Optional

import attrs
import handed_over
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import rrpc
from rrpc import _core
from rrpc._interface import MISSING, Parameter, Plan
from rrpc.codec import Lent


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


FINITE = st.floats(allow_nan=False)
TIMEZONES = st.none() | st.just(dt.UTC) | st.timezones()
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
    | st.complex_numbers()
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
    (complex, st.complex_numbers()),
    (set[int], st.sets(st.integers(-(1 << 63), (1 << 64) - 1), max_size=60)),
    (frozenset[str], st.frozensets(st.text(), max_size=40)),
    (set[tuple[bytes, float | None]], st.sets(st.tuples(st.binary(), st.none() | FINITE))),
    (frozenset[dt.date], st.frozensets(st.dates())),
    (dt.datetime, st.datetimes(timezones=TIMEZONES)),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (decimal.Decimal, st.decimals()),
    (dt.datetime | complex | str | None, st.none() | st.datetimes() | st.complex_numbers() | st.text()),
    (int | str | list[float], st.integers(0, 99) | st.text() | st.lists(st.floats())),
    (
        bool | bytes | Point | None,
        st.none() | st.booleans() | st.binary() | st.builds(Point, st.floats(), st.floats()),
    ),
    *((NDArray[kind], arrays(kind)) for kind in DTYPES),  # type: ignore[valid-type]
    (rrpc.Borrowed[NDArray[np.float32]], arrays(np.float32)),
    (rrpc.Borrowed[np.ndarray], st.sampled_from(DTYPES).flatmap(arrays)),
    (np.ndarray, st.sampled_from(DTYPES).flatmap(arrays)),
]
LEAVES += handed_over.LEAVES
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
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | arrays(np.float32)
    | st.complex_numbers()
    | st.datetimes()
    | st.decimals()
    | st.uuids()
    | st.sets(st.integers() | st.text())
    | handed_over.USERS,
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
    """Returns the blocks that the buffers arrive in: that of a lent one is read-only, as a mapped one is."""
    blocks = []
    for buffer in buffers:
        lent = isinstance(buffer, Lent)
        data = memoryview(buffer.buffer if lent else buffer).cast("B")
        blocks.append(memoryview(bytes(data) if lent else bytearray(data)))
    return blocks or None


def buffer_marks(buffers: Any) -> list[tuple[bool, int]]:
    """Returns for each buffer whether it is lent, and the identity of its array."""
    return [
        (True, id(buffer.buffer)) if isinstance(buffer, Lent) else (False, id(buffer))
        for buffer in buffers or ()
    ]


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.flags.writeable) == (b.dtype, b.shape, b.flags.writeable)
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (set, frozenset)):
        assert repr(list(a)) == repr(list(b))  # in one order too
    elif isinstance(a, memoryview):
        assert (a.format, a.shape, a.readonly, a.tobytes()) == (b.format, b.shape, b.readonly, b.tobytes())
    elif attrs.has(type(a)):
        assert_same(attrs.asdict(a, recurse=False), attrs.asdict(b, recurse=False))
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name))
    else:
        assert repr(a) == repr(b)  # NaN and -0.0 too
