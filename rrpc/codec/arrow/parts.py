"""A table on its way out: its buffers as they are, cut to the rows that are sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from rrpc.codec.copy_counters import count_pack
from rrpc.codec.decoder import Record
from rrpc.codec.unsendable import Refused

from . import layout as has
from .layout import NAME, check_schema, layout_of, table_in

Node = list[Any]
_VIEW_BYTES = 16


def parts_of(value: Any) -> Record:
    """Returns the parts of a table, a record batch or a data frame; raises Refused with the way to send it.

    Nothing is copied but what an offset of Arrow's asks for: the offsets of strings and lists that don't begin at 0,
    and bitmaps that don't begin at a byte.
    """
    table = table_in(value)
    try:
        check_schema(table.schema)
    except ValueError as error:
        raise Refused(str(error)) from None
    named = zip(table.column_names, table.columns, strict=True)
    columns = [_column(name, column) for name, column in named]
    parts = Record(schema=table.schema.serialize().to_pybytes(), rows=table.num_rows, columns=columns)
    parts.type_name = NAME
    return parts


def _column(name: str, column: Any) -> list[Node]:
    try:
        return [_node(chunk) for chunk in column.chunks]
    except Refused as refused:
        refused.path.insert(0, f"[{name!r:.60}]")
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        raise Refused(f"column {name!r:.60} can't be sent: {error}") from None


def _node(array: Any) -> Node:
    kind, width = layout_of(array.type)
    if kind == has.EXTENSION:
        return _node(array.storage)
    if kind == has.DICTIONARY:
        return [*_node(array.indices)[:3], [_node(array.dictionary)]]
    if not array.is_cpu:
        raise Refused("its memory is on a device: send .copy_to(pyarrow.default_cpu_memory_manager())")
    length, first, nulls = len(array), array.offset, array.null_count
    if kind == has.NULL:
        return [length, nulls, [None], []]
    own = array.buffers()
    # Without nulls no bitmap travels, even where Arrow has one.
    buffers = [_bits(own[0], first, length) if nulls else None]
    children: list[Node] = []
    if kind == has.BITS:
        buffers.append(_bits(own[1], first, length))
    elif kind == has.FIXED:
        buffers.append(_view(own[1])[first * width : (first + length) * width])
    elif kind == has.VIEW:
        buffers.append(_view(own[1])[first * _VIEW_BYTES : (first + length) * _VIEW_BYTES])
        # These go as a whole, as the views may point to any place in them.
        buffers += map(_view, own[2:])
    elif kind == has.STRUCT:
        children = [_node(array.field(index)) for index in range(array.type.num_fields)]
    elif kind == has.FIXED_LIST:
        # `values` is that of the whole array, whatever part of it is sent.
        children = [_node(array.values.slice(first * width, length * width))]
    else:
        offsets, start, end = _offsets(own[1], first, length, width)
        buffers.append(offsets)
        if kind == has.BINARY:
            buffers.append(_view(own[2])[start:end])
        else:
            children = [_node(array.values.slice(start, end - start))]
    return [length, nulls, buffers, children]


def _view(buffer: Any) -> memoryview:
    """The bytes; a buffer that isn't there has none."""
    return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")


def _bits(buffer: Any, first: int, length: int) -> memoryview:
    """A bitmap that begins with bit ``first`` of the buffer."""
    used = _view(buffer)[first // 8 : (first + length + 7) // 8]
    if not first % 8:
        return used
    bits = np.unpackbits(np.frombuffer(used, np.uint8), bitorder="little")[first % 8 :][:length]
    packed = np.packbits(bits, bitorder="little")
    count_pack(packed.nbytes)
    return packed.data


def _offsets(buffer: Any, first: int, length: int, width: int) -> tuple[memoryview, int, int]:
    """The offsets of so many items, beginning with 0, and where in the values they begin and end."""
    if not length:
        return memoryview(bytes(width)), 0, 0
    offsets = np.frombuffer(_view(buffer), f"i{width}", length + 1, first * width)
    start, end = int(offsets[0]), int(offsets[-1])
    if start:
        count_pack(offsets.nbytes)
        offsets = offsets - offsets[0]
    return offsets.data.cast("B"), start, end
