"""Payloads to values. Every byte may be a stranger's: what is wrong raises ProtocolError and says what."""

# Any thread decodes. The caches change by single operations of dicts, so two threads at worst parse the same header
# twice.

from __future__ import annotations

import array
import datetime
import decimal
import math
import uuid
from collections.abc import Callable
from typing import Any, Literal

import msgpack
import numpy as np

from rrpc import _core
from rrpc.errors import ProtocolError, RpcError

from . import wire
from .copy_counters import count_unpack
from .dtypes import parse
from .lent_memory import owned

# An array whose items have no bytes costs no memory however many there are, but whoever walks it pays.
_MAX_EMPTY_ITEMS = 1 << 24

_TIMESTAMP = 0xFF

_Order = Literal["C", "F"]


class Record(dict[str, Any]):
    """A dataclass that arrived where its class isn't known: its fields, and the class's name."""

    type_name = ""


class _Mark:
    """The first element of a marked list."""

    def __init__(self, code: int, name: str = "") -> None:
        self.code = code
        self.name = name


_MARKS = {code: _Mark(code) for code in (wire.TUPLE, wire.SET, wire.FROZENSET)}


def decode(
    payload: bytes,
    blocks: list[Any] | None = None,
    out: np.ndarray[Any, Any] | None = None,
    borrow: bool = False,
) -> Any:
    """The value that ``payload`` stands for; its bulk buffers are ``blocks``.

    Arrays are writable. Large ones stand in their block's memory, which they keep alive; if the sender lends that
    memory, they are copied, or with ``borrow`` read-only. ``out`` is what the sender's mark for "written into your own
    array" becomes.
    """
    hook = _Reader(blocks, out, borrow).extension if blocks or out is not None else _WITHOUT_BLOCKS
    return _decoded(payload, hook)


def decode_part(payload: bytes, blocks: list[Any] | None, taken: int) -> tuple[Any, int]:
    """Decodes a value within a larger payload, of which ``taken`` blocks stand for values before this one.

    Returns the value and the number of blocks taken up to its end. Blocks are taken in their order and each once;
    anything else raises ProtocolError here, though a payload that is decoded as a whole may have another order.
    """
    if not blocks:
        return _decoded(payload, _WITHOUT_BLOCKS), taken
    reader = _Reader(blocks, None, False)
    # Buffers of earlier values count as used, so a second use of one is refused.
    reader.used.update(range(taken))
    value = _decoded(payload, reader.extension)
    # There is a gap: the value left out a buffer.
    if reader.used and max(reader.used) >= len(reader.used):
        raise ProtocolError("malformed payload: buffers out of order")
    return value, len(reader.used)


def _decoded(payload: bytes, hook: Callable[[int, bytes], Any]) -> Any:
    if not payload:
        raise ProtocolError("malformed payload: it is empty")
    try:
        marked = payload[0] == wire.MARKED
        value: Any = memoryview(payload)[1:] if marked else payload
        pairs_hook = None
        # Shorter ones can hold nothing that the scan refuses but a timestamp, whose code is 0xff.
        if (len(payload) > wire.MAX_DEPTH or _TIMESTAMP in payload) and _core.scan_payload(value):
            pairs_hook = _map
        list_hook = _container if marked else None
        return msgpack.unpackb(
            value, ext_hook=hook, list_hook=list_hook, object_pairs_hook=pairs_hook, strict_map_key=False
        )
    except RpcError:
        raise
    except Exception as error:
        # Whatever a stranger's bytes make msgpack, numpy or struct raise.
        reason = str(error) or type(error).__name__
        raise ProtocolError(f"malformed payload: {reason}") from None


class _Reader:
    """The extensions of one message."""

    __slots__ = ("blocks", "borrow", "out", "used")

    def __init__(self, blocks: list[Any] | None, out: np.ndarray[Any, Any] | None, borrow: bool) -> None:
        self.blocks = blocks or []
        self.borrow = borrow
        self.out = out
        self.used: set[int] = set()

    def extension(self, code: int, data: bytes) -> Any:
        if code == wire.BULK_ARRAY:
            return self._array(data)
        if code == wire.ARRAY:
            return _inline_array(data)
        if code == wire.BULK_BYTES_LIKE:
            block = self._block(data)
            return _bytes_like(data, 4, block, block.nbytes)
        if code == wire.OUT:
            return self._out()
        reader = _SMALL.get(code)
        if reader is None:
            raise ProtocolError(f"malformed payload: extension code {code} is unknown")
        return reader(data)

    def _block(self, data: bytes) -> Any:
        (index,) = wire.INDEX.unpack_from(data)
        if index >= len(self.blocks):
            raise ProtocolError(f"malformed payload: buffer {index} of {len(self.blocks)}")
        if index in self.used:
            # Two arrays in one memory would see each other's writes.
            raise ProtocolError(f"malformed payload: buffer {index} stands for two values")
        self.used.add(index)
        block = self.blocks[index]
        if block is None:
            raise ProtocolError(f"malformed payload: buffer {index} was written elsewhere")
        return block

    def _array(self, data: bytes) -> Any:
        head, end = _array_head(data, 4)
        block = self._block(data)
        _check_size(head, block.nbytes)
        if end != len(data):
            raise ProtocolError("malformed payload: bytes behind a bulk array's header")
        flags, dtype, shape, _ = head
        if not flags:  # without a keyword numpy takes a third of the time
            array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, block)
        else:
            array = np.ndarray(shape, dtype, block, order="F" if flags & wire.FORTRAN else "C")
        # Memory stays lent only for arrays that the caller borrows, never for scalars and memoryviews.
        if not array.flags.writeable and not (self.borrow and not flags & ~wire.FORTRAN):
            array = owned(array)
        else:
            _core.share_references(array)
        return _present(array, flags) if flags else array

    def _out(self) -> Any:
        out, self.out = self.out, None
        if out is None:
            raise ProtocolError("malformed payload: an out= mark without out=, or a second one")
        # The core puts None in the place of the buffer that was written into out=.
        if out.nbytes and None not in self.blocks:
            raise ProtocolError("malformed payload: an out= mark, but nothing was written to out=")
        return out


# All messages without buffers share this one, as nothing in it changes.
_WITHOUT_BLOCKS = _Reader(None, None, False).extension


_STR = frozenset({str})


def _container(items: list[Any]) -> Any:
    if not items or type(items[0]) is not _Mark:
        return items
    mark = items[0]
    if mark.code == wire.RECORD:
        return _record(mark.name, items)
    if mark.code == wire.TUPLE:
        return tuple(items[1:])
    del items[0]
    _check_keys(items, "set")
    return set(items) if mark.code == wire.SET else frozenset(items)


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    _check_keys([key for key, _ in pairs], "dict")
    return dict(pairs)


def _check_keys(keys: list[Any], what: str) -> None:
    """Refuses keys that were chosen to collide: a set of them takes time in the square of their number."""
    if len(keys) > _core.KEYS_UNCHECKED and _core.keys_collide(keys):
        raise ProtocolError(f"malformed payload: a {what} of {len(keys)} items whose hashes collide")


def _record(name: str, items: list[Any]) -> Record:
    if len(items) != 2 or type(items[1]) is not dict or not _STR.issuperset(map(type, items[1])):
        raise ProtocolError(f"malformed payload: dataclass {name[:80]!r} without its fields")
    record = Record(items[1])
    record.type_name = name
    return record


_Head = tuple[int, np.dtype[Any], tuple[int, ...], int]
# A peer must not be able to grow what is kept.
_HEADS_LIMIT, _HEAD_BYTES_KEPT = 1024, 256
_heads: dict[bytes, _Head] = {}


def _array_head(data: bytes, start: int) -> tuple[_Head, int]:
    """Flags, dtype, shape and bytes of an array, and where its header ends."""
    end = start + 2 + (data[start] | data[start + 1] << 8)
    head = data[start:end]
    known = _heads.get(head)
    if known is None:
        known = _parse_head(head, end - start)
        if len(_heads) >= _HEADS_LIMIT:
            _heads.clear()
        if len(head) <= _HEAD_BYTES_KEPT:
            _heads[head] = known
    return known, end


def _parse_head(head: bytes, length: int) -> _Head:
    _, flags, rank = wire.ARRAY_HEAD.unpack_from(head)
    # numpy's arrays have at most 64 dimensions.
    if rank > 64 or flags > wire.FORTRAN | wire.SCALAR | wire.VIEW or len(head) != length:
        raise ProtocolError(f"malformed payload: an array of rank {rank} with flags {flags:#x}")
    dimensions = wire.DIMENSIONS[rank]
    shape = dimensions.unpack_from(head, wire.ARRAY_HEAD.size)
    try:
        dtype = parse(head[wire.ARRAY_HEAD.size + dimensions.size :])
    except RpcError:  # it is as it should be, but this process doesn't have it
        raise
    except Exception as error:
        raise ProtocolError(f"malformed payload: bad dtype: {error}") from None
    items = math.prod(shape)
    if not dtype.itemsize and items > _MAX_EMPTY_ITEMS:
        raise ProtocolError(f"malformed payload: {items} items without bytes")
    return flags, dtype, shape, items * dtype.itemsize


def _check_size(head: _Head, nbytes: int) -> None:
    if head[3] != nbytes:
        raise ProtocolError(f"malformed payload: {head[1]} {head[2]} doesn't fill {nbytes} bytes")


def _inline_array(data: bytes) -> Any:
    head, offset = _array_head(data, 0)
    if head[3] != len(data) - offset:
        _check_size(head, len(data) - offset)
    flags, dtype, shape, nbytes = head
    if nbytes and not flags and dtype.names is None:  # the padding between fields isn't copied by numpy
        return np.ndarray(shape, dtype, data, offset).copy()  # data is read-only and may be unaligned
    order: _Order = "F" if flags & wire.FORTRAN else "C"
    if dtype.names is not None and nbytes:
        return _present(np.ndarray(shape, dtype, bytearray(data[offset:]), order=order), flags)
    if not nbytes and not dtype.itemsize:  # copy() would make its items one byte long
        return _present(np.ndarray(shape, dtype, bytearray(), order=order), flags)
    return _present(np.ndarray(shape, dtype, data, offset, order=order).copy(order), flags)


def _present(value: Any, flags: int) -> Any:
    if flags & wire.SCALAR:
        return value[()]
    return memoryview(value) if flags & wire.VIEW else value


def _inline_bytes(data: bytes) -> Any:
    return _bytes_like(data, 0, memoryview(data)[2:], 0)


def _bytes_like(head: bytes, start: int, source: Any, bulk_bytes: int) -> Any:
    kind, typecode = head[start], head[start + 1]
    if kind == wire.KIND_VIEW:
        memory: Any = source if bulk_bytes else bytearray(source)
        if memoryview(memory).readonly:  # a peer may lend it, though only arrays are borrowed
            memory = owned(np.asarray(memory))
        return memoryview(memory)
    if bulk_bytes:
        count_unpack(bulk_bytes)
    if kind == wire.KIND_BYTES:
        return bytes(source)
    if kind == wire.KIND_BYTEARRAY:
        return bytearray(source)
    if kind == wire.KIND_ARRAY:
        values: array.array[Any] = array.array(chr(typecode))
        values.frombytes(source)
        if values.typecode in "uw":
            values.tounicode()  # raises here, not at the handler's first look, if an item is no character
        return values
    raise ProtocolError(f"malformed payload: bytes of kind {kind}")


def _big_int(data: bytes) -> int:
    if len(data) > wire.BIG_INT_BYTES:
        raise ProtocolError(f"malformed payload: an int of {len(data)} bytes")
    return int.from_bytes(data, "little", signed=True)


_record_marks: dict[bytes, _Mark] = {}


def _record_mark(data: bytes) -> _Mark:
    known = _record_marks.get(data)
    if known is None:
        known = _Mark(wire.RECORD, data.decode())
        if len(_record_marks) >= _HEADS_LIMIT:
            _record_marks.clear()
        if len(data) <= _HEAD_BYTES_KEPT:
            _record_marks[data] = known
    return known


def _mark(code: int) -> Callable[[bytes], _Mark]:
    mark = _MARKS[code]
    return lambda data: mark


_SMALL: dict[int, Callable[[bytes], Any]] = {
    wire.BYTES: _inline_bytes,
    wire.TUPLE: _mark(wire.TUPLE),
    wire.SET: _mark(wire.SET),
    wire.FROZENSET: _mark(wire.FROZENSET),
    wire.RECORD: _record_mark,
    wire.BIG_INT: _big_int,
    wire.COMPLEX: lambda data: complex(*wire.COMPLEX_PARTS.unpack(data)),
    wire.DATETIME: lambda data: datetime.datetime.fromisoformat(data.decode()),
    wire.DATE: lambda data: datetime.date.fromisoformat(data.decode()),
    wire.TIME: lambda data: datetime.time.fromisoformat(data.decode()),
    wire.TIMEDELTA: lambda data: datetime.timedelta(*wire.TIMEDELTA_PARTS.unpack(data)),
    wire.DECIMAL: lambda data: decimal.Decimal(data.decode()),
    wire.UUID: lambda data: uuid.UUID(bytes=data),
}
