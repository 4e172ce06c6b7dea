"""Values survive the codec with type, dtype, shape and bytes; what can't be sent is named."""

import array
import datetime
import decimal
import enum
import random
import uuid
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from codec_trip import STRUCTURED, Point, sent, through
from hypothesis import given, settings
from hypothesis import strategies as st
from made import examples

import rrpc
from rrpc.codec import BULK_BYTES, MAX_DEPTH, Message, Record, Refused, copies, decode, encode, refusal


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, np.ndarray):
        same_array(a, b)
    elif isinstance(a, np.generic):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    else:
        assert a == b or (a != a and b != b)


def same_array(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    assert a.dtype == b.dtype
    assert a.dtype.isalignedstruct == b.dtype.isalignedstruct
    assert a.shape == b.shape
    # By field, since the padding between fields may hold anything.
    if a.dtype.names is None:
        assert a.tobytes() == b.tobytes()
    else:
        for name in a.dtype.names:
            same_array(np.asarray(a[name]), np.asarray(b[name]))
    assert b.flags.writeable


ALIGNED = np.dtype([("flag", "u1"), ("value", "f8"), ("name", "S3")], align=True)
TITLED = np.dtype({"names": ["a"], "formats": ["i4"], "titles": ["A title"], "offsets": [8], "itemsize": 24})
DTYPES = [
    "?",
    "i1",
    "i2",
    "<i4",
    ">i4",
    "<i8",
    ">i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "f2",
    "<f4",
    ">f4",
    "f8",
    "g",
    "c8",
    ">c16",
    "G",
    "M8[ns]",
    "M8[D]",
    "<m8[us]",
    "M8",
    "S5",
    "<U4",
    ">U4",
    "V7",
]
ALL_DTYPES = [*map(np.dtype, DTYPES), STRUCTURED, ALIGNED, TITLED, np.dtype([])]


def filled(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    if dtype.kind == "U":
        return np.array([f"é{i % 100}" for i in range(count)], dtype).reshape(shape)
    if dtype.kind == "b":
        return np.array([i % 2 == 0 for i in range(count)]).reshape(shape)
    if dtype.char in "gG":  # their padding isn't copied by numpy
        return np.arange(count).astype(dtype).reshape(shape)
    raw = random.Random(7).randbytes(count * dtype.itemsize)
    return np.ndarray(shape, dtype, bytearray(raw))


def layouts(values: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The same items in every way numpy can lay them out."""
    return [
        values,
        np.asfortranarray(values),
        values.T,
        values[::-1],
        values[..., ::2],
        np.broadcast_to(values[:1], values.shape),
    ]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4), (3, 2, 4), (70, 90)])
def test_every_dtype_and_rank(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    values = filled(dtype, shape)
    for layout in layouts(values) if values.ndim else [values]:
        same(layout, through(layout))


@pytest.mark.parametrize("shape", [(4, 5), (60, 70)], ids=["inline", "lifted"])
def test_the_order_is_kept(shape: tuple[int, int]) -> None:
    values = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    assert through(values).flags.c_contiguous
    assert through(np.asfortranarray(values)).flags.f_contiguous


@pytest.mark.parametrize(
    "dtype", [d for d in ALL_DTYPES if (d.itemsize and d.char != "M") or d.str != "<M8"], ids=str
)
def test_scalars(dtype: np.dtype[Any]) -> None:
    scalar = filled(dtype, (1,))[0]
    again = through(scalar)
    assert type(again) is type(scalar)
    assert again.dtype == scalar.dtype
    if dtype.char in "gG":
        assert again == scalar
    elif dtype.names is None:
        assert again.tobytes() == scalar.tobytes()


def test_contiguous_arrays_are_lifted_as_they_are_and_others_packed_once() -> None:
    values = np.zeros((100, 100), np.float32)
    before = copies()
    for contiguous in (values, values.T, np.zeros(5000, "M8[s]"), np.zeros(900, STRUCTURED)):
        message = Message()
        encode([contiguous], message)
        assert np.shares_memory(message[0], contiguous)
    assert copies() == before
    message = Message()
    encode([values[:, ::2]], message)
    after = copies()
    assert after["packs"] == before["packs"] + 1
    assert after["bytes_packed"] == before["bytes_packed"] + 20_000


@pytest.mark.parametrize("count", [3, 9000], ids=["inline", "lifted"])
def test_padding_shows_nothing_of_this_process(count: int) -> None:
    for _ in range(20):  # memory that is used again isn't zero
        dirty = rrpc.empty(count * ALIGNED.itemsize, np.uint8)
        dirty[...] = 0xEE
        del dirty
        payload, blocks = sent(np.zeros(2 * count, ALIGNED)[::2])
        assert b"\xee" not in payload + b"".join(bytes(memoryview(block)) for block in blocks)


def test_large_arrays_stand_in_their_block() -> None:
    payload, blocks = sent(np.arange(5000))
    again = decode(payload, blocks)
    again[0] = 77
    assert bytes(memoryview(blocks[0])[:1]) == b"\x4d"


def test_the_threshold() -> None:
    for nbytes, lifted in ((BULK_BYTES - 1, 0), (BULK_BYTES, 1)):
        for value in (
            np.zeros(nbytes, np.uint8),
            bytes(nbytes),
            bytearray(nbytes),
            memoryview(bytes(nbytes)),
        ):
            assert len(sent([value])[1]) == lifted


BYTES_LIKE = [
    b"",
    b"abc",
    bytes(range(256)) * 40,
    bytearray(b"abc"),
    bytearray(9000),
    memoryview(b"abc"),
    memoryview(bytes(9000)),
    memoryview(np.arange(12, dtype=np.float32).reshape(3, 4)),  # type: ignore[arg-type]
    memoryview(b"abcdef")[::2],
    array.array("i", range(5)),
    array.array("d", range(5000)),
    array.array("b"),
]


@pytest.mark.parametrize("value", BYTES_LIKE, ids=lambda value: f"{type(value).__name__}{len(value)}")
def test_bytes_like_values_keep_their_kind(value: Any) -> None:
    again = through([value])[0]
    assert type(again) is type(value)
    assert again == value
    if isinstance(value, memoryview):
        assert not again.readonly
    if isinstance(value, array.array):
        assert again.typecode == value.typecode


class Colour(enum.Enum):
    RED = "red"


PLAIN: list[Any] = [
    None, True, 0, -1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**300, 1.5, float("inf"), float("nan"),
    -0.0, "", "żółw", 1 - 2j, (), (1,), ((),), [(1, [2, (3,)])], {}, {1: 2, "a": None, None: 1, 1.5: 0},
    {(1, ("a", 2**70)): [1]}, {b"k": (1,)}, set(), {1, 2.5}, {"a"}, frozenset({(1, 2), 3}), {frozenset({1}): 2},
    datetime.datetime(2024, 2, 29, 23, 59, 59, 999999), datetime.date(1, 1, 1), datetime.time(1, 2, 3, 4),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))),
    datetime.timedelta(days=-5, microseconds=3), decimal.Decimal("1.20"), decimal.Decimal("NaN"),
    uuid.UUID(int=2**127 + 1), np.str_(""), np.bytes_(b""), np.str_("żółw"),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:40])
def test_plain_values(value: Any) -> None:
    again = through(value)
    if isinstance(value, decimal.Decimal) and value.is_nan():
        assert again.is_nan()
    else:
        same(value, again)


def test_enums_go_as_values_dataclasses_as_records() -> None:
    assert through([Colour.RED]) == ["red"]
    record = through({"at": Point(3, np.arange(3))})["at"]
    assert type(record) is Record
    assert record.type_name == "Point"
    assert record["x"] == 3
    same(record["rows"], np.arange(3))
    again = through([record])[0]
    assert type(again) is Record
    assert again.type_name == "Point"


def test_subclasses_go_as_their_base() -> None:
    class Name(str):
        __slots__ = ()

    class Pairs(dict[str, int]):
        pass

    same(through([Name("a"), Pairs(b=1)]), ["a", {"b": 1}])


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
)
arrays = hnp.arrays(
    hnp.scalar_dtypes() | hnp.array_dtypes(),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
    elements=None,
)
keys = st.none() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=examples(300))
def test_any_nesting_round_trips(value: Any) -> None:
    same(value, through(value))


@given(arrays, st.data())
@settings(max_examples=examples(200))
def test_any_view_round_trips(value: np.ndarray[Any, Any], data: st.DataObject) -> None:
    view = value.transpose(data.draw(st.permutations(range(value.ndim))))
    if view.ndim:
        view = view[data.draw(hnp.basic_indices(view.shape, allow_newaxis=True))]
    same(np.asarray(view), through(np.asarray(view)))


def refused(value: Any) -> str:
    with pytest.raises(Refused) as caught:
        encode(value, Message())
    return refusal(caught.value, "argument 'a'").message


def test_what_cannot_be_sent_is_named_with_its_path() -> None:
    objects = np.array([object()])
    no_objects = "arrays of dtype object can't be sent; convert to a fixed-size dtype"
    assert refused(objects) == f"argument 'a': {no_objects}"
    assert refused([1, (2, {"k": Point(1, [objects])})]) == f"argument 'a'[1][1]['k'].rows[0]: {no_objects}"
    nested = np.zeros(2, [("f", [("g", object)])])
    assert no_objects in refused(nested)
    assert refused([object()]) == "argument 'a'[0]: object can't be sent"
    assert refused({Point(1, 2)}) == "argument 'a': a dataclass can't be a dict's key or in a set"
    assert "can't be a dict's key" in refused({(Point(1, 2),): 1})
    assert "masked" in refused(np.ma.masked_array([1.0], [True]))
    assert refused({"f": len}) == (
        "argument 'a'['f']: builtin_function_or_method can't be sent "
        "(it means something in its own process only; pass what the peer can make one of)"
    )
    assert "UTF-8" in refused(["\ud800"])
    assert "an int of" in refused(1 << (1 << 20))


def test_depth_is_bounded() -> None:
    endless: list[Any] = []
    endless.append(endless)
    pairs: dict[str, Any] = {}
    pairs["self"] = (pairs,)
    for value in (endless, pairs):
        message = refused(value)
        assert f"nested deeper than {MAX_DEPTH} levels, or contains itself" in message
        assert len(message) < 300
    deep: Any = 0
    for _ in range(MAX_DEPTH - 1):
        deep = [deep, ()]
    same(deep, through(deep))
    assert "nested deeper" in refused([deep])
