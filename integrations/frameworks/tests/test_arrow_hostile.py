"""Damaged tables: each is refused with what is wrong, or is valid after all; the process goes on."""

from contextlib import suppress
from random import Random
from typing import Any

import arrow_made
import numpy as np
import pyarrow as pa
import pytest
from arrow_made import SCHEMAS, damaged
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import rrpc
from rrpc.codec import Message, decode, encode
from rrpc.codec.arrow import NAME, parts_of, table_of

SETTINGS = settings(
    max_examples=500, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def record(**parts: Any) -> rrpc.Record:
    made = rrpc.Record(parts)
    made.type_name = NAME
    return made


def walk(table: pa.Table) -> None:
    """Looks at every value of a table that was let in."""
    table.validate(full=True)
    str(table)
    if table.num_rows > 1000:
        return
    with suppress(ValueError, ArithmeticError, pa.ArrowException):  # Python hasn't every value that Arrow has
        table.to_pylist()


@SETTINGS
@given(SCHEMAS, st.integers(0, 30), st.integers(0, 1 << 30))
def test_damage_is_named_or_harmless(schema: pa.Schema, rows: int, seed: int) -> None:
    parts = parts_of(arrow_made.table(schema, rows, seed) if len(schema) else pa.table({}))
    for number in range(6):
        random = Random(seed + number)
        bad = record(**parts)
        for _ in range(random.choice([1, 1, 2])):
            key = random.choice(["schema", "rows", "columns", "columns", "columns", "columns"])
            bad[key] = damaged(bad[key], random)
        with suppress(ValueError):
            walk(table_of(bad))


@SETTINGS
@given(SCHEMAS, st.integers(0, 30), st.integers(0, 1 << 30))
def test_damaged_payloads(schema: pa.Schema, rows: int, seed: int) -> None:
    random = Random(seed)
    message = Message()
    payload = bytearray(encode(parts_of(arrow_made.table(schema, rows, seed)), message))
    for _ in range(random.choice([1, 2, 8])):
        payload[random.randrange(len(payload))] = random.randrange(256)
    with suppress(rrpc.ProtocolError, ValueError):
        parts = decode(bytes(payload), [memoryview(bytes(buffer)) for buffer in message])
        assume(type(parts) is rrpc.Record)
        walk(table_of(parts))


def schema_of(*kinds: pa.DataType) -> bytes:
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    return bytes(schema.serialize().to_pybytes())


def one(kind: pa.DataType, *node: Any, rows: int = 1) -> rrpc.Record:
    return record(schema=schema_of(kind), rows=rows, columns=[[list(node)]])


INT = [1, 0, [None, b"\1"], []]
STRINGS = [1, 0, [None, b"\0\0\0\0\1\0\0\0", b"a"], []]
MAP = pa.map_(pa.string(), pa.int8())
ENTRIES = [1, 0, [None], [STRINGS, INT]]
ONE_LIST = b"\0\0\0\0\1\0\0\0"
HOSTILE: dict[str, tuple[rrpc.Record, str]] = {
    "no schema": (record(rows=1, columns=[]), "isn't made of a schema, rows and columns"),
    "schema": (record(schema=b"\xff" * 64, rows=1, columns=[]), "its schema can't be read"),
    "columns": (record(schema=schema_of(pa.int8()), rows=0, columns=[]), "0 columns for a schema of 1"),
    "rows": (one(pa.int8(), *INT, rows=2), "column 'c0' has 1 rows, the table 2"),
    "all rows": (record(schema=schema_of(), rows=1 << 40, columns=[]), "rows without columns"),
    "chunks": (record(schema=schema_of(pa.int8()), rows=0, columns=[5]), "isn't made of chunks"),
    "node": (one(pa.int8(), 1, 0, [None, b"\1"]), "a node isn't"),
    "bool": (one(pa.int8(), True, 0, [None, b"\1"], []), "a node isn't"),
    "length": (one(pa.int64(), 1 << 50, 0, [None, b"\1" * 8], []), "Buffer #1 too small"),
    "huge": (one(pa.int64(), 1 << 62, 0, [None, b"\1" * 8], []), "items with 0 nulls"),
    "negative": (one(pa.int8(), -1, 0, [None, b"\1"], []), "-1 items"),
    "nulls": (one(pa.int8(), 1, 1, [None, b"\1"], []), "a buffer is missing or too many"),
    "null count": (
        one(pa.int8(), 8, 2, [b"\xfe", b"\1" * 8], [], rows=8),
        "null_count value .2. doesn't match",
    ),
    "bitmap": (one(pa.int8(), 800, 1, [b"\xfe", b"\1" * 800], [], rows=800), "Buffer #0 too small"),
    "buffers": (one(pa.int8(), 1, 0, [None, b"\1", b"\1"], []), "3 buffers for a int8"),
    "no data": (one(pa.int8(), 1, 0, [None, None], []), "a buffer is missing"),
    "offsets": (
        one(pa.string(), 1, 0, [None, b"\0\0\0\0\5\0\0\0", b"a"], []),
        "offsets .5. larger than values array",
    ),
    "backwards": (
        one(pa.string(), 2, 0, [None, b"\0\0\0\0\1\0\0\0\0\0\0\0", b"ab"], [], rows=2),
        "non-monotonic",
    ),
    "utf-8": (one(pa.string(), 1, 0, [None, b"\0\0\0\0\1\0\0\0", b"\xff"], []), "Invalid UTF8"),
    "view": (
        one(pa.string_view(), 1, 0, [None, b"\x20\0\0\0aaaa\5\0\0\0\0\0\0\0", b"a"], []),
        "references buffer 5",
    ),
    "dictionary": (
        one(pa.dictionary(pa.int8(), pa.string()), 1, 0, [None, b"\5"], [STRINGS]),
        "out of bounds",
    ),
    "no dictionary": (one(pa.dictionary(pa.int8(), pa.string()), 1, 0, [None, b"\0"], []), "0 nodes within"),
    "list": (
        one(pa.list_(pa.int8()), 1, 0, [None, b"\0\0\0\0\7\0\0\0"], [INT]),
        "offsets .7. larger than values array",
    ),
    "child": (
        one(pa.struct([("a", pa.int8())]), 5, 0, [None], [INT], rows=5),
        "child array #0 has length smaller",
    ),
    "children": (one(pa.struct([("a", pa.int8())]), 1, 0, [None], [INT, INT]), "2 nodes within"),
    "null keys": (
        one(MAP, 1, 0, [None, ONE_LIST], [[1, 0, [None], [[1, 1, [b"\0", *STRINGS[2][1:]], []], INT]]]),
        "no null",
    ),
    "null entries": (one(MAP, 1, 0, [None, ONE_LIST], [[1, 1, [b"\0"], [STRINGS, INT]]]), "no null"),
    "map of what": (one(MAP, 1, 0, [None, ONE_LIST], [5]), "no null"),
    "decimal": (
        one(pa.decimal128(3, 0), 1, 0, [None, b"\xff" * 8 + b"\x7f" * 8], []),
        "does not fit in precision",
    ),
    "many nulls": (one(pa.null(), 1 << 40, 1 << 40, [None], [], rows=1 << 40), "items without bytes"),
    "no fields": (one(pa.struct([]), 1 << 40, 0, [None], [], rows=1 << 40), "items without bytes"),
    "no width": (
        one(pa.list_(pa.int8(), 0), 1 << 40, 0, [None], [[0, 0, [None, b""], []]], rows=1 << 40),
        "without bytes",
    ),
    "a list as buffer": (one(pa.int8(), 1, 0, [None, [1]], []), "a buffer is bytes, not list"),
    "extension": (one(pa.uuid(), 1, 0, [None, b"short"], []), "too small"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tables(name: str, tables: Any) -> None:
    parts, text = HOSTILE[name]
    with rrpc.connect(tables.address, timeout=30.0) as plain:
        with pytest.raises(rrpc.InvalidArgument, match=text):
            plain.call("Tables.same", parts)
        assert plain.call("Tables.same", one(MAP, 1, 0, [None, ONE_LIST], [ENTRIES]))["rows"] == 1


def test_names_that_are_no_text(tables: Any) -> None:
    schema = schema_of(pa.timestamp("s", "UTC")).replace(b"UTC", b"\xff\xfe\xfd")
    bad = record(schema=schema, rows=1, columns=[[[1, 0, [None, bytes(8)], []]]])
    named = record(schema=schema_of(pa.int8()).replace(b"c0", b"\xff\xfe"), rows=1, columns=[[INT]])
    for parts in (bad, named):
        with (
            rrpc.connect(tables.address, timeout=30.0) as plain,
            pytest.raises(rrpc.InvalidArgument, match="isn't UTF-8"),
        ):
            plain.call("Tables.same", parts)


def test_hostile_metadata_of_pandas(tables: Any) -> None:
    table = pa.table({"a": [1, 2]})
    with rrpc.connect(tables.address, timeout=30.0) as plain:
        for metadata in (
            b"{",
            b"[]",
            b'{"index_columns": [5], "columns": 7}',
            b"\xff",
            b'{"index_columns": ["b"]}',
        ):
            given = table.replace_schema_metadata({b"pandas": metadata})
            with pytest.raises(rrpc.InvalidArgument, match="pandas makes no data frame of it"):
                plain.call("Tables.frame", given)
        index = b'{"kind": "range", "name": null, "start": 0, "stop": 1000000000000, "step": 1}'
        spread = {b"pandas": b'{"index_columns": [%s], "column_indexes": [], "columns": []}' % index}
        assert plain.call("Tables.frame", table.replace_schema_metadata(spread))["rows"] == 2


def test_a_schema_of_too_many_columns(tables: Any) -> None:
    schema = pa.schema([(f"c{i}", pa.int8()) for i in range(17_000)])
    with pytest.raises(rrpc.InvalidArgument, match="more than 16384 columns"):
        tables.same(schema.empty_table())
    with (
        rrpc.connect(tables.address, timeout=30.0) as plain,
        pytest.raises(rrpc.InvalidArgument, match="more than 16384"),
    ):
        plain.call(
            "Tables.same", record(schema=schema.serialize().to_pybytes(), rows=0, columns=[[]] * 17_000)
        )
    wide = pa.table({f"c{i}": np.arange(3) for i in range(2000)})
    assert tables.same(wide).equals(wide)
