"""A table that has arrived, in the memory where it landed. Every byte may be a stranger's."""

# Arrow's own checks come last (`_chunked`). The ones before them are for what would make Arrow read out of bounds,
# take memory without end or end the process.

from __future__ import annotations

from typing import Any

from rrpc.codec.copy_counters import count_pack
from rrpc.codec.decoder import Record

from . import layout as has
from .layout import EMPTY_ITEMS_MAX, check_schema, inner_types, layout_of, pyarrow


def table_of(parts: Record) -> Any:
    """Returns the ``pyarrow.Table`` that the parts make, without a copy of bulk buffers.

    Raises ValueError, which says what is wrong, unless all of it is valid: types, lengths, null counts, offsets, UTF-8,
    indices of dictionaries.
    """
    pa = pyarrow()
    schema, rows, columns = (parts.get(name) for name in ("schema", "rows", "columns"))
    if type(schema) is not bytes or type(rows) is not int or type(columns) is not list:
        raise ValueError("it isn't made of a schema, rows and columns")
    try:
        known = pa.ipc.read_schema(pa.py_buffer(schema))
    except Exception as error:
        raise ValueError(f"its schema can't be read: {error}") from None
    check_schema(known)
    if len(columns) != len(known):
        raise ValueError(f"{len(columns)} columns for a schema of {len(known)}")
    if not columns:
        return _without_columns(known, rows)
    arrays = [_column(field, chunks, rows) for field, chunks in zip(known, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=known)


def one_batch(table: Any) -> Any:
    """Returns a table as one ``pyarrow.RecordBatch``; its columns are copied if they have several chunks."""
    pa = pyarrow()
    if any(column.num_chunks > 1 for column in table.columns):
        count_pack(table.nbytes)
        table = table.combine_chunks()
    empty = [
        pa.array([], column.type) if not column.num_chunks else column.chunk(0) for column in table.columns
    ]
    if not empty and table.num_rows:
        return table.to_batches()[0]
    return pa.RecordBatch.from_arrays(empty, schema=table.schema)


def _without_columns(schema: Any, rows: int) -> Any:
    if not 0 <= rows <= EMPTY_ITEMS_MAX:
        raise ValueError(f"{rows} rows without columns")
    pa = pyarrow()
    # A table has its number of rows from a column, which is left out again.
    return pa.table({"none": pa.nulls(rows)}, metadata=schema.metadata).select([])


def _column(field: Any, chunks: Any, rows: int) -> Any:
    try:
        column = _chunked(field.type, chunks)
    except Exception as error:
        raise ValueError(f"column {field.name!r:.80}: {error}") from None
    if len(column) != rows:
        raise ValueError(f"column {field.name!r:.80} has {len(column)} rows, the table {rows}")
    return column


def _chunked(kind: Any, chunks: Any) -> Any:
    if type(chunks) is not list:
        raise ValueError("it isn't made of chunks")
    arrays = [_array(kind, node) for node in chunks]
    for array in arrays:
        array.validate(full=True)
    return pyarrow().chunked_array(arrays, type=kind)


def _array(kind: Any, node: Any) -> Any:
    """The array of a node: what the values are, ``_chunked`` has Arrow check."""
    pa = pyarrow()
    layout = layout_of(kind)
    if layout.kind == has.EXTENSION:
        return pa.ExtensionArray.from_storage(kind, _array(kind.storage_type, node))
    length, nulls, buffers, children = _checked(kind, layout.kind, layout.width, node)
    inner = inner_types(kind)
    if len(inner) != len(children):
        raise ValueError(f"{len(children)} nodes within a {kind!s:.80}")
    if kind.id == pa.lib.Type_MAP and not _map_has_keys(children[0]):
        raise ValueError("a map has no null entries or keys")
    arrays = [_array(each, child) for each, child in zip(inner, children, strict=True)]
    if layout.kind == has.DICTIONARY:
        return pa.DictionaryArray.from_buffers(kind, length, buffers, arrays[0], nulls)
    return pa.Array.from_buffers(kind, length, buffers, nulls, 0, arrays or None)


def _checked(kind: Any, layout: int, width: int, node: Any) -> tuple[int, int, list[Any], list[Any]]:
    if type(node) is not list or [type(part) for part in node] != [int, int, list, list]:
        raise ValueError("a node isn't [length, null count, [buffer, ...], [node, ...]]")
    length, nulls, given, children = node
    if not 0 <= nulls <= length < 1 << 56:
        raise ValueError(f"{length} items with {nulls} nulls")
    if layout == has.NULL and nulls != length:
        raise ValueError(f"{length} items of type null with {nulls} nulls")
    without_bytes = (
        layout == has.NULL or (layout == has.STRUCT and not children) or (not width and layout in _SIZED)
    )
    if without_bytes and length > EMPTY_ITEMS_MAX:
        raise ValueError(f"{length} items without bytes")
    count = kind.num_buffers
    # Views may have any number of data buffers behind the others.
    if len(given) != count if layout != has.VIEW else len(given) < count:
        raise ValueError(f"{len(given)} buffers for a {kind!s:.80}")
    buffers = [_buffer(each) for each in given]
    missing = any(buffer is None for buffer in buffers[1:])
    if missing or (layout != has.NULL and (buffers[0] is None) == (nulls > 0)):
        raise ValueError(f"a buffer is missing or too many, of a {kind!s:.80} with {nulls} nulls")
    return length, nulls, buffers, children


_SIZED = (has.FIXED, has.FIXED_LIST)


def _buffer(given: Any) -> Any:
    if given is None:
        return None
    if type(given) not in (memoryview, bytes, bytearray):
        raise ValueError(f"a buffer is bytes, not {type(given).__name__}")
    return pyarrow().py_buffer(given)


def _map_has_keys(entries: Any) -> bool:
    """Arrow ends the process for a map without them."""
    try:
        return entries[1] == 0 and entries[3][0][1] == 0  # type: ignore[no-any-return]
    except (TypeError, IndexError, KeyError):
        return False
