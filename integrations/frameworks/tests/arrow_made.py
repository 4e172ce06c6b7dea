"""Tables of random types and values for hypothesis, and damage to what they're encoded to."""

import datetime
import decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

LEAVES = [
    *(
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.uint16(),
        pa.int32(),
        pa.uint64(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
    ),
    *(
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(3),
    ),
    *(
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time64("ns"),
        pa.timestamp("us", "UTC"),
        pa.duration("ms"),
    ),
    *(pa.decimal128(9, 2), pa.decimal256(40, 3), pa.month_day_nano_interval()),
]
EXTENSIONS = [pa.uuid(), pa.bool8()]  # pyarrow makes no lists of them out of Python's values
KEYS = [pa.string(), pa.int32(), pa.binary(3)]
VALUES_OF_DICTIONARIES = [pa.string(), pa.int64(), pa.float32(), pa.binary(3)]


def _around(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.lists(inner, max_size=3).map(
        lambda kinds: pa.struct([(f"f{i}", kind) for i, kind in enumerate(kinds)])
    )
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.builds(pa.list_, inner, st.integers(0, 3)),
        structs,
        st.builds(pa.map_, st.sampled_from(KEYS), inner),
    )


LEAF_TYPES = st.sampled_from(LEAVES)
DICTIONARIES = st.builds(
    pa.dictionary, st.sampled_from([pa.int8(), pa.int32()]), st.sampled_from(VALUES_OF_DICTIONARIES)
)
TYPES = st.recursive(st.one_of(LEAF_TYPES, DICTIONARIES), _around, max_leaves=4)
COLUMNS = st.one_of(TYPES, st.sampled_from(EXTENSIONS))
SCHEMAS = st.lists(COLUMNS, max_size=4).map(
    lambda kinds: pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
)


def column(kind: pa.DataType, rows: int, random: Random) -> pa.Array:
    """An array of the type, cut out of a longer one now and then, so that it has an offset."""
    before, after = (random.randrange(12) for _ in range(2)) if random.random() < 0.5 else (0, 0)
    whole = _array(kind, [_value(kind, random) for _ in range(before + rows + after)])
    return whole.slice(before, rows)


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def table(schema: pa.Schema, rows: int, seed: int) -> pa.Table:
    """A table whose columns have chunks of their own."""
    random = Random(seed)
    columns = []
    for field in schema:
        cuts = sorted(random.randrange(rows + 1) for _ in range(random.randrange(3)))
        sizes = [end - start for start, end in zip([0, *cuts], [*cuts, rows], strict=True)]
        columns.append(
            pa.chunked_array([column(field.type, size, random) for size in sizes], type=field.type)
        )
    return pa.Table.from_arrays(columns, schema=schema)


_DAY = datetime.date(2026, 1, 31)
_MADE: dict[str, Any] = {
    "bool": lambda r: r.random() < 0.5,
    "halffloat": lambda r: np.float16(r.randrange(100)),
    "date32[day]": lambda r: _DAY + datetime.timedelta(r.randrange(1000)),
    "date64[ms]": lambda r: _DAY + datetime.timedelta(r.randrange(1000)),
    "time32[s]": lambda r: datetime.time(r.randrange(24), r.randrange(60)),
    "time64[ns]": lambda r: datetime.time(r.randrange(24), r.randrange(60), 0, r.randrange(10**6)),
    "timestamp[us, tz=UTC]": lambda r: datetime.datetime(
        2026, 1, 1, r.randrange(24), tzinfo=datetime.timezone.utc
    ),
    "duration[ms]": lambda r: datetime.timedelta(milliseconds=r.randrange(10**6)),
    "month_day_nano_interval": lambda r: pa.MonthDayNano([r.randrange(9), r.randrange(9), r.randrange(9)]),
    "fixed_size_binary[3]": lambda r: r.randbytes(3),
    "extension<arrow.uuid>": lambda r: r.randbytes(16),
    "extension<arrow.bool8>": lambda r: r.randrange(2),
}


def _value(kind: pa.DataType, random: Random) -> Any:
    if random.random() < 0.2 or pa.types.is_null(kind):
        return None
    if (made := _MADE.get(str(kind))) is not None:
        return made(random)
    if pa.types.is_dictionary(kind):
        return _value(kind.value_type, random)
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, random) for field in kind}
    if pa.types.is_map(kind):
        count = random.randrange(3)
        return [(_key(kind.key_type, random), _value(kind.item_type, random)) for _ in range(count)]
    if pa.types.is_fixed_size_list(kind):
        return [_value(kind.value_type, random) for _ in range(kind.list_size)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(kind.value_type, random) for _ in range(random.randrange(4))]
    if pa.types.is_integer(kind):
        return random.randrange(100)
    if pa.types.is_floating(kind):
        return random.random()
    if pa.types.is_decimal(kind):
        return decimal.Decimal(random.randrange(-999, 999)).scaleb(-kind.scale)
    text = "".join(random.choice("abcé☃") for _ in range(random.choice([0, 3, 30])))
    return text.encode() if "binary" in str(kind) else text


def _key(kind: pa.DataType, random: Random) -> Any:
    while (value := _value(kind, random)) is None:
        pass
    return value


NUMBERS = [-1, 0, 1, 2, 7, 8, 255, 1 << 24, (1 << 24) + 1, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63]


def damaged(part: Any, random: Random) -> Any:
    """The part of a table with one thing in it changed."""
    if isinstance(part, list) and part and random.random() < 0.9:
        at = random.randrange(len(part))
        return [*part[:at], damaged(part[at], random), *part[at + 1 :]]
    if isinstance(part, list):
        return random.choice([[], [*part, None], part[1:], [*part, *part], None, 5, [[]]])
    if isinstance(part, int):
        return random.choice([*NUMBERS, part + 1, part - 1, None, "1", 1.5])
    if isinstance(part, (bytes, memoryview)):
        return _damaged_bytes(bytes(part), random)
    return random.choice([b"", b"\0" * 8, memoryview(b"\xff" * 64), 5, "text", [None]])


def _damaged_bytes(data: bytes, random: Random) -> Any:
    how = random.randrange(5)
    if how == 0:
        return random.choice([None, 5, [], "text", memoryview(np.zeros((3, 4), np.int32))])
    if how == 1 or not data:
        return memoryview(data + random.randbytes(random.choice([1, 8, 64])))
    at = random.randrange(len(data))
    if how == 2:
        return data[:at]
    flipped = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 8])):
        flipped[random.randrange(len(data))] = random.choice([0, 1, 127, 128, 255, random.randrange(256)])
    return bytes(flipped)
