"""Values to payloads.

``prepare`` turns a value into one that MessagePack's C packer takes as it is, so that no Python code
runs while it packs. Each thread has a packer of its own (``packers.py``).
"""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import os
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from rrpc._core import Lent

from . import wire
from .advice import instead_of
from .arrow import is_tabular, parts_of
from .classes import fields_in, has_fields
from .decoder import Record
from .dtypes import describe
from .packers import own
from .strided import copied, has_padding, strided
from .tensors import array_in, is_tensor
from .times import why_inexact
from .unsendable import Refused, scanned

_Preparer = Callable[[Any, "Message", int], Any]

_PACKER_KEEPS_BYTES = 1 << 20


class Message(list[Any]):
    """The buffers of one message in the making, and what preparing its values found."""

    marked = False
    lend = False
    """Whether the peer may read the arrays that are prepared now in this process's memory."""
    out: Any = None
    """The array or tensor of the result that is to be written into the caller's own memory."""
    out_index = -1
    sizes: dict[str, tuple[int, str, bool]] | None = None


def encode(value: Any, message: Message) -> bytes:
    """The payload for ``value``; large buffers are appended to ``message``. Raises ``Refused``."""
    return pack(prepare(value, message), message)


def encode_part(value: Any, depth: int, taken: int) -> tuple[bytes, list[Any]]:
    """Encodes a value within a larger payload, ``depth`` levels deep, behind values that have ``taken`` buffers.

    Returns the payload of the value alone, and its buffers. Raises ``Refused``.
    """
    message = Message([None] * taken)
    payload = pack(prepare(value, message, depth), message)
    return payload, message[taken:]


def pack(prepared: Any, message: Message) -> bytes:
    """Pack what ``prepare`` gave."""
    try:
        payload: bytes = own.packer.pack(prepared)
    except OverflowError:
        payload = own.packer.pack(_widen(prepared))
    except UnicodeEncodeError as error:
        raise Refused(f"a str can't be sent as UTF-8: {error.reason} at {error.start}") from None
    except ValueError as error:
        raise Refused(str(error)) from None
    if len(payload) > _PACKER_KEEPS_BYTES:
        own.packer = msgpack.Packer()  # the old one would keep a buffer of this size for good
    scanned(payload)
    return b"\xc1" + payload if message.marked else payload


def _widen(prepared: Any) -> Any:
    """``prepared`` again, with ints of more than 64 bits as extensions: rare, so looked for only now."""
    kind = type(prepared)
    if kind is int:
        return _int(prepared)
    if kind is list or kind is tuple:
        return kind(map(_widen, prepared))
    if kind is dict:
        return {_widen(key): _widen(item) for key, item in prepared.items()}
    return prepared


def _ext(code: int, data: bytes) -> Any:
    # ExtType's own constructor checks both in Python, which costs three times as much.
    return tuple.__new__(msgpack.ExtType, (code, data))


_TUPLE, _SET, _FROZENSET = (_ext(code, b"") for code in (wire.TUPLE, wire.SET, wire.FROZENSET))

# What the packer takes as it is, whatever the value.
_LEAVES = frozenset({type(None), bool, int, float, str})


def prepare(value: Any, message: Message, depth: int = 0) -> Any:
    """``value`` as the packer takes it; large buffers are appended to ``message``."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    preparer = _PREPARERS.get(kind)
    if preparer is None:
        preparer = _preparer_for(value)
    return preparer(value, message, depth)


def _too_deep() -> str:
    return f"nested deeper than {wire.MAX_DEPTH} levels, or contains itself"


def _items(values: Any, message: Message, depth: int, prepared: list[Any]) -> list[Any]:
    """Append each of ``values``, prepared."""
    if depth >= wire.MAX_DEPTH:
        raise Refused(_too_deep())
    start = len(prepared)
    try:
        for value in values:
            prepared.append(prepare(value, message, depth + 1))  # noqa: PERF401 - its length tells where it failed
    except Refused as refused:
        refused.path.insert(0, f"[{len(prepared) - start}]")
        raise
    return prepared


def _int(value: int) -> Any:
    # MessagePack's own integers hold these.
    if -(1 << 63) <= value < 1 << 64:
        return value
    nbytes = value.bit_length() // 8 + 1
    if nbytes > wire.BIG_INT_BYTES:
        raise Refused(f"an int of {nbytes} bytes can't be sent, {wire.BIG_INT_BYTES} is the most")
    return _ext(wire.BIG_INT, value.to_bytes(nbytes, "little", signed=True))


def _list(value: list[Any], message: Message, depth: int) -> Any:
    if _LEAVES.issuperset(map(type, value)):
        return value
    return _items(value, message, depth, [])


def _tuple(value: tuple[Any, ...], message: Message, depth: int) -> Any:
    message.marked = True
    return _items(value, message, depth, [_TUPLE])


def _set(value: set[Any], message: Message, depth: int) -> Any:
    message.marked = True
    return _set_items(value, message, depth, _SET)


def _frozenset(value: frozenset[Any], message: Message, depth: int) -> Any:
    message.marked = True
    return _set_items(value, message, depth, _FROZENSET)


def _set_items(value: Any, message: Message, depth: int, mark: Any) -> Any:
    prepared = _items(value, message, depth, [mark])
    for item in prepared:
        _hashable(item)
    return prepared


def _dict(value: dict[Any, Any], message: Message, depth: int) -> Any:
    simple = _LEAVES.issuperset(map(type, value))
    if simple and _LEAVES.issuperset(map(type, value.values())):
        return value
    if depth >= wire.MAX_DEPTH:
        raise Refused(_too_deep())
    prepared = {}
    key: Any = None
    try:
        for key, item in value.items():
            packable = key if simple else _hashable(prepare(key, message, depth + 1))
            prepared[packable] = prepare(item, message, depth + 1)
    except Refused as refused:
        refused.path.insert(0, f"[{key!r:.60}]")
        raise
    return prepared


def _hashable(prepared: Any) -> Any:
    """A prepared key; the packer takes a tuple and a list alike."""
    if type(prepared) is dict:  # its class may not be known where it arrives
        raise Refused("a dataclass can't be a dict's key or in a set")
    return tuple(map(_hashable, prepared)) if type(prepared) is list else prepared


def _instance(value: Any, message: Message, depth: int) -> Any:
    return _fields(type(value).__name__, fields_in(value), message, depth)


def _record(value: Record, message: Message, depth: int) -> Any:
    return _fields(value.type_name, value, message, depth)


def _fields(type_name: str, members: dict[str, Any], message: Message, depth: int) -> Any:
    if depth >= wire.MAX_DEPTH:
        raise Refused(_too_deep())
    message.marked = True
    fields = {}
    name = ""
    try:
        for name, member in members.items():
            fields[name] = prepare(member, message, depth + 1)
    except Refused as refused:
        refused.path.insert(0, f".{name}")
        raise
    return [_record_mark(type_name), fields]


def _record_mark(type_name: str) -> Any:
    """Returns the extension that precedes the map of a dataclass's fields."""
    return _ext(wire.RECORD, type_name.encode())


def _array(value: np.ndarray[Any, Any], message: Message, depth: int) -> Any:
    if value is message.out:
        return _out(value, message)
    return _array_as(value, message, 0)


def _array_as(value: np.ndarray[Any, Any], message: Message, flags: int) -> Any:
    layout = value.flags
    contiguous = layout.c_contiguous
    if not contiguous and layout.f_contiguous:
        flags |= wire.FORTRAN
    head = _heads.get((value.dtype, value.shape, flags)) or _array_head(value, flags)
    if value.nbytes < wire.BULK_BYTES:
        if not contiguous and not flags & wire.FORTRAN and has_padding(value.dtype):
            # Into zeros, so that no bytes of this process travel in the padding.
            value = copied(value, np.zeros(value.shape, value.dtype))
        return _ext(wire.ARRAY, head + value.tobytes("F" if flags & wire.FORTRAN else "C"))
    if flags & wire.FORTRAN:
        value = value.T
    if not contiguous and not flags & wire.FORTRAN:
        message.append(strided(value))
    else:
        message.append(Lent(value) if message.lend and not flags & ~wire.FORTRAN else value)
    return _ext(wire.BULK_ARRAY, wire.INDEX.pack(len(message) - 1) + head)


# Bounded, as each shape and dtype that is sent adds an entry.
_HEADS_LIMIT = 1024
_heads: dict[tuple[np.dtype[Any], tuple[int, ...], int], bytes] = {}


def _array_head(value: np.ndarray[Any, Any], flags: int) -> bytes:
    dtype, rank = value.dtype, value.ndim
    try:
        description = describe(dtype)
    except TypeError as error:
        raise Refused(str(error)) from None
    body = wire.DIMENSIONS[rank].pack(*value.shape) + description
    # The header's length is a u16 and counts two bytes more.
    if len(body) > 0xFFFD:
        raise Refused(f"a dtype of {len(dtype.names or ())} fields is too long to be described")
    head = wire.ARRAY_HEAD.pack(len(body) + 2, flags, rank) + body
    if dtype.names is None:  # structured ones that differ only in alignment compare equal
        if len(_heads) >= _HEADS_LIMIT:
            _heads.clear()
        _heads[dtype, value.shape, flags] = head
    return head


def _out(value: np.ndarray[Any, Any], message: Message) -> Any:
    """The array that is to be written into the caller's own memory: always a buffer, in C order."""
    if value.nbytes:
        message.out_index = len(message)
        message.append(value if value.flags.c_contiguous else strided(value))
    message.out = None  # the same array a second time is a result like any other
    return _ext(wire.OUT, b"")


def _lent(value: Lent, message: Message, depth: int) -> Any:
    """Encodes an array that the peer may read in place."""
    before, message.lend = message.lend, True
    try:
        return prepare(value.buffer, message, depth)
    finally:
        message.lend = before


def _tensor(value: Any, message: Message, depth: int) -> Any:
    """Encodes a tensor of any library as an array."""
    array = array_in(value)
    return _out(array, message) if value is message.out else _array_as(array, message, 0)


def _tabular(value: Any, message: Message, depth: int) -> Any:
    """A table of Arrow, or what makes one of itself."""
    return prepare(parts_of(value), message, depth)


def _scalar(value: np.generic, message: Message, depth: int) -> Any:
    return _array_as(np.asarray(value), message, wire.SCALAR)


def _bytes(value: bytes, message: Message, depth: int) -> Any:
    return value if len(value) < wire.BULK_BYTES else _bytes_like(value, len(value), message, wire.KIND_BYTES)


def _bytearray(value: bytearray, message: Message, depth: int) -> Any:
    return _bytes_like(value, len(value), message, wire.KIND_BYTEARRAY)


def _memoryview(value: memoryview, message: Message, depth: int) -> Any:
    if value.ndim == 1 and value.format == "B" and value.c_contiguous:
        return _bytes_like(value, value.nbytes, message, wire.KIND_VIEW)
    try:
        viewed = np.asarray(value)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise Refused(f"a memoryview of format {value.format!r} can't be sent: {error}") from None
    return _array_as(viewed, message, wire.VIEW)


def _array_array(value: array.array[Any], message: Message, depth: int) -> Any:
    return _bytes_like(value, len(value) * value.itemsize, message, wire.KIND_ARRAY, ord(value.typecode))


def _bytes_like(value: Any, nbytes: int, message: Message, kind: int, typecode: int = 0) -> Any:
    head = bytes((kind, typecode))
    if nbytes < wire.BULK_BYTES:
        return _ext(wire.BYTES, head + bytes(value) if kind != wire.KIND_ARRAY else head + value.tobytes())
    message.append(value)
    return _ext(wire.BULK_BYTES_LIKE, wire.INDEX.pack(len(message) - 1) + head)


def _complex(value: complex, message: Message, depth: int) -> Any:
    return _ext(wire.COMPLEX, wire.COMPLEX_PARTS.pack(value.real, value.imag))


def _iso(code: int) -> _Preparer:
    def iso(value: Any, message: Message, depth: int) -> Any:
        return _ext(code, value.isoformat().encode())

    return iso


def _timedelta(value: datetime.timedelta, message: Message, depth: int) -> Any:
    return _ext(wire.TIMEDELTA, wire.TIMEDELTA_PARTS.pack(value.days, value.seconds, value.microseconds))


def _decimal(value: decimal.Decimal, message: Message, depth: int) -> Any:
    return _ext(wire.DECIMAL, str(value).encode())


def _uuid(value: uuid.UUID, message: Message, depth: int) -> Any:
    return _ext(wire.UUID, value.bytes)


def _enum(value: enum.Enum, message: Message, depth: int) -> Any:
    return prepare(value.value, message, depth + 1)


_PREPARERS: dict[type, _Preparer] = {
    bytes: _bytes,
    bytearray: _bytearray,
    memoryview: _memoryview,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: _set,
    frozenset: _frozenset,
    Record: _record,
    complex: _complex,
    np.ndarray: _array,
    Lent: _lent,
    array.array: _array_array,
    datetime.datetime: _iso(wire.DATETIME),
    datetime.date: _iso(wire.DATE),
    datetime.time: _iso(wire.TIME),
    datetime.timedelta: _timedelta,
    decimal.Decimal: _decimal,
    uuid.UUID: _uuid,
}


def _as_base(base: Callable[[Any], Any]) -> _Preparer:
    """Subclasses of built-in types go as their base, and paths as text."""

    def as_base(value: Any, message: Message, depth: int) -> Any:
        return prepare(base(value), message, depth)

    return as_base


def _exact(preparer: _Preparer) -> _Preparer:
    """Makes the preparer for subclasses that may hold more than their base."""

    def exact(value: Any, message: Message, depth: int) -> Any:
        if why := why_inexact(value):
            raise Refused(why)
        return preparer(value, message, depth)

    return exact


# Tried in this order for types that aren't in _PREPARERS themselves.
_BY_BASE: tuple[tuple[type, _Preparer], ...] = (
    (enum.Enum, _enum),
    (np.generic, _scalar),
    (np.ndarray, _array),
    (tuple, _tuple),
    (list, _list),
    (Record, _record),
    (dict, _as_base(dict)),
    (set, _set),
    (frozenset, _frozenset),
    (int, _as_base(int.__int__)),
    (float, _as_base(float.__float__)),
    (str, _as_base(lambda text: str.__str__(text))),
    (bytes, _as_base(lambda data: bytes(memoryview(data)))),
    (bytearray, _bytearray),
    (array.array, _array_array),
    (datetime.datetime, _exact(_PREPARERS[datetime.datetime])),
    (datetime.date, _PREPARERS[datetime.date]),
    (datetime.timedelta, _exact(_timedelta)),
    (uuid.UUID, _uuid),
    (pathlib.PurePath, _as_base(os.fspath)),
)


def _preparer_for(value: Any) -> _Preparer:
    kind = type(value)
    if isinstance(value, np.ma.MaskedArray):
        raise Refused("masked arrays can't be sent: the mask would be lost; send .data and .mask")
    if has_fields(kind):
        return _instance
    for base, preparer in _BY_BASE:
        if isinstance(value, base):
            return preparer
    if is_tensor(kind):
        return _tensor
    if is_tabular(kind):
        return _tabular
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    raise Refused(f"{name} can't be sent{instead_of(kind)}")
