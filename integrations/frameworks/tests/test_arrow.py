"""pyarrow.Table, pyarrow.RecordBatch and pandas.DataFrame as arguments, results, items and fields."""

import gc
from typing import Any

import arrow_made
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from arrow_made import SCHEMAS
from conftest import TABLES
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from processes import eventually

import rrpc

MIB = 1 << 20
SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def made(rows: int) -> pa.Table:
    """With a column of each kind of layout."""
    numbers = np.arange(rows)
    words = pa.array([None if n % 7 == 3 else f"word {n}" for n in range(rows)])
    return pa.table(
        {
            "i": numbers,
            "f": pa.array(np.where(numbers % 5, numbers, np.nan), from_pandas=True),
            "b": pa.array(numbers % 3 == 0),
            "s": words,
            "v": words.cast(pa.string_view()),
            "d": words.dictionary_encode(),
            "l": pa.array([None if n % 4 == 1 else [n] * (n % 3) for n in range(rows)]),
            "t": pa.array([{"x": n, "y": str(n)} if n % 6 else None for n in range(rows)]),
            "m": pa.array([[("k", n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
            "n": pa.nulls(rows),
        }
    )


def is_same(back: pa.Table, sent: pa.Table) -> bool:
    back.validate(full=True)
    return bool(back.schema.equals(sent.schema, check_metadata=True) and back.to_pylist() == sent.to_pylist())


@SETTINGS
@given(SCHEMAS, st.integers(0, 30), st.integers(0, 1 << 30))
@pytest.mark.parametrize("tables", ["tcp"], indirect=True)
def test_any_schema_arrives_as_it_is(tables: Any, schema: pa.Schema, rows: int, seed: int) -> None:
    sent = arrow_made.table(schema, rows, seed) if len(schema) else pa.table({})
    try:
        sent.validate(full=True)
    except pa.ArrowInvalid:  # pyarrow itself makes some that aren't valid, of a null struct with a dictionary
        assume(False)
    back = tables.same(sent)
    assert type(back) is pa.Table
    assert is_same(back, sent)


@pytest.mark.parametrize("rows", [0, 1, 50, 5000])
def test_every_layout_whole_and_cut(tables: Any, rows: int) -> None:
    sent = made(rows)
    assert is_same(tables.same(sent), sent)
    for start, count in [(3, 8), (8, 1000), (rows, 5), (0, 0), (rows // 2 + 1, rows)]:
        cut = sent.slice(start, count)
        assert is_same(tables.same(cut), cut)
    chunked = pa.concat_tables([sent, sent.slice(1), sent.slice(rows)])
    back = tables.same(chunked)
    assert is_same(back, chunked)
    assert back.column("i").num_chunks == 3


def test_a_slice_sends_its_own_rows_alone(tables: Any) -> None:
    sent = pa.table({"i": np.arange(MIB), "s": pa.array(["x" * 20] * MIB), "f": np.ones(MIB)})
    part = sent.slice(1000, 2048)
    before = rrpc.stats()
    back = tables.same(part)
    moved = rrpc.stats()["bytes_inline_sent"] - before["bytes_inline_sent"]
    assert back.equals(part)
    assert sum(back.column(name).nbytes for name in back.column_names) < 2048 * 50
    assert moved < 2048 * 50


def test_empty_ones_and_metadata(tables: Any) -> None:
    schema = pa.schema(
        [pa.field("a", pa.int8(), nullable=False, metadata={"unit": "m"})], metadata={"of": "all"}
    )
    for sent in (schema.empty_table(), pa.table({}), pa.Table.from_batches([], schema), made(5).select([])):
        back = tables.same(sent)
        assert back.schema.equals(sent.schema, check_metadata=True)
        assert back.shape == sent.shape


def test_record_batches(tables: Any) -> None:
    sent = made(3000)
    (batch,) = sent.combine_chunks().to_batches()
    assert tables.batch(batch).equals(batch)
    assert tables.batch(batch.slice(10, 20)).equals(batch.slice(10, 20))
    assert tables.batch(sent.slice(0, 0)).num_rows == 0
    assert tables.batch(pa.table({})).num_rows == 0
    several = pa.concat_tables([sent, sent])
    assert tables.batch(several).to_pylist() == several.to_pylist()
    assert is_same(tables.same(batch), pa.Table.from_batches([batch]))
    items = list(tables.batches(sent, 700))
    assert [item.num_rows for item in items] == [700, 700, 700, 700, 200]
    assert all(type(item) is pa.RecordBatch for item in items)
    assert is_same(tables.joined(iter(items)), sent)


def test_within_dataclasses_lists_and_dicts(tables: Any) -> None:
    sent, frame = made(3000), pd.DataFrame({"a": [1.5, 2.5]})
    halves = tables.halves([TABLES.Split(sent, frame)])
    assert is_same(halves["first"].train, sent.slice(0, 1500))
    assert is_same(halves["second"].train, sent.slice(1500))
    pd.testing.assert_frame_equal(halves["first"].test, frame)
    assert halves["second"].test is None


def test_nothing_is_copied(tables: Any) -> None:
    sent = pa.table({f"c{i}": np.random.default_rng(i).random(MIB) for i in range(4)})
    sent = sent.append_column("s", pa.array(["some text"] * MIB))
    tables.same(sent)
    ours, theirs, arrow = rrpc.stats(), tables.counts(), pa.total_allocated_bytes()
    held = tables.same(sent)
    assert rrpc.stats()["bytes_copied"] == ours["bytes_copied"]
    assert pa.total_allocated_bytes() == arrow
    after = tables.counts()
    assert after["bytes_copied"] == theirs["bytes_copied"]
    assert after["arrow"] == theirs["arrow"]
    assert rrpc.stats()["pool_bytes_used"] >= ours["pool_bytes_used"] + sent.nbytes
    assert held.equals(sent)
    column = held.column("c2")
    del held
    gc.collect()
    assert rrpc.stats()["pool_bytes_used"] >= ours["pool_bytes_used"] + column.nbytes
    assert column.equals(sent.column("c2"))
    del column
    eventually(lambda: rrpc.stats()["pool_bytes_used"] <= ours["pool_bytes_used"])


FRAMES = {
    "range": pd.DataFrame({"a": np.arange(5.0), "b": list("abcde")}),
    "index": pd.DataFrame({"x": [1, 2]}, index=pd.Index(["p", "q"], name="key")),
    "levels": pd.DataFrame(
        {"x": [1, 2]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["l", "n"])
    ),
    "category": pd.DataFrame(
        {"c": pd.Categorical(["u", "v", "u"], categories=["v", "u", "w"], ordered=True)}
    ),
    "times": pd.DataFrame(
        {"t": pd.date_range("2026-01-01", periods=3, tz="Europe/Paris"), "d": pd.to_timedelta([1, 2, 3])}
    ),
    "nullable": pd.DataFrame(
        {"i": pd.array([1, None, 3], dtype="Int32"), "b": pd.array([True, None, False], "boolean")}
    ),
    "empty": pd.DataFrame({"a": np.array([], np.int16), "c": pd.Categorical([], categories=["v"])}),
    "no columns": pd.DataFrame(index=pd.RangeIndex(5)),
    "nothing": pd.DataFrame(),
    "numbers as names": pd.DataFrame(np.arange(6.0).reshape(2, 3)),
    "nested": pd.DataFrame({"l": [[1, 2], [], [3]]}),
    "long": pd.DataFrame(np.random.default_rng(0).random((50_000, 4)), columns=list("abcd")),
}


@pytest.mark.parametrize("name", FRAMES)
def test_data_frames(tables: Any, name: str) -> None:
    sent = FRAMES[name]
    back = tables.frame(sent)
    assert type(back) is pd.DataFrame
    if name == "nested":  # pandas has no type for lists: they come back as arrays
        assert [list(row) for row in back["l"]] == list(sent["l"])
        return
    pd.testing.assert_frame_equal(back, sent)
    if len(back) and len(back.columns) and name != "category":
        back.iloc[0, 0] = back.iloc[-1, 0]  # it may be changed


def test_tables_and_frames_of_all_libraries(tables: Any) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    polars = pl.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": [[1], [2, 3]]})
    assert tables.same(frame).to_pandas().equals(frame)
    assert pl.from_arrow(tables.same(polars)).equals(polars)
    assert pl.from_arrow(tables.batch(polars)).equals(polars)
    assert tables.frame(pa.table({"a": [1, 2]}))["a"].tolist() == [1, 2]
    assert tables.frame(polars)["b"].tolist() == ["x", "y"]


def test_clients_that_know_nothing_of_arrow(tables: Any) -> None:
    sent = made(3000)
    with rrpc.connect(tables.address, timeout=30.0) as plain:
        parts = plain.call("Tables.same", sent)
        assert type(parts) is rrpc.Record
        assert parts.type_name == "ArrowTable"
        assert (parts["rows"], len(parts["columns"])) == (3000, sent.num_columns)
        assert is_same(tables.same(parts), sent)
        again = plain.call("Tables.anything", {"a": sent})["a"]
        assert is_same(tables.same(again), sent)


class OnDevice(pl.DataFrame):
    """Whose columns refuse."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        raise RuntimeError("it is elsewhere")


def test_what_can_not_be_sent_says_what_to_do(tables: Any) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    deep = pa.array([[1]])
    for _ in range(40):
        deep = pa.ListArray.from_arrays([0, 1], deep)
    table = pa.table({"a": [1]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    for value, text in [
        (pa.table({"u": union}), "column 'u': columns of type sparse_union.* can't be sent: cast them"),
        (pa.table({"u": pa.array([[1]], pa.list_view(pa.int8()))}), "list_view.* can't be sent: cast them"),
        (pa.table({"deep": deep}), "column 'deep': nested deeper than 32 levels"),
        (reader, r"read once only: send \.read_all\(\)"),
        (pa.array([1]), r"declare pyarrow\.Table and send it as a column"),
        (pa.array([{"a": 1}]), r"declare pyarrow\.Table and send it as a column"),
        (pd.Series([1.0]), r"send \.to_frame\(\)"),
        (OnDevice({"a": [1]}), "it is elsewhere"),
        (
            pd.DataFrame({"a": [1, "x"]}),
            "DataFrame can't be sent as a table: .*a bytes object|Could not convert|Expected",
        ),
        ({"a": [1]}, "expected pyarrow.Table, got dict"),
        (rrpc.Record(a=1), "expected pyarrow.Table, got"),
    ]:
        with pytest.raises(rrpc.InvalidArgument, match=text):
            tables.same(value)


def test_a_table_of_too_many_chunks_is_refused_before_it_is_sent(tables: Any) -> None:
    chunk = pa.table({"a": np.arange(4096)})
    with pytest.raises(rrpc.InvalidArgument, match="buffers_max"):
        tables.same(pa.concat_tables([chunk] * 20_000))
