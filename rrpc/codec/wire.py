"""Extension codes, layouts and limits: the facts both directions share.

Array header (after a u32 buffer index for lifted ones; little-endian)::

    u16 length of what follows, u8 flags, u8 rank, rank × u64 dimensions, the dtype's description

Inline arrays have their bytes right behind it. A bytes-like header is ``u8 kind, u8 typecode`` (the
typecode is array.array's, else 0), again after the index or before the bytes.

Tuples, sets and dataclasses are MessagePack arrays whose first element is a mark, an extension of
no or few bytes; the elements follow. A dataclass has its class name in the mark and one map behind it.
"""

import struct
from typing import Final

__all__: list[str] = []

LIFT_BYTES: Final = 4096
"""Buffers of this many bytes and more leave the message and are fetched by remote read."""

MAX_DEPTH: Final = 128
"""How deep lists, tuples, dicts, sets and dataclasses may nest in what is sent."""

BIG_INT_BYTES: Final = 1 << 16
"""The longest int."""

MARKED: Final = 0xC1
"""First byte of a payload with marked lists."""

ARRAY, ARRAY_LIFTED, BYTES, BYTES_LIFTED, OUT = 1, 2, 3, 4, 5
TUPLE, SET, FROZENSET, RECORD = 16, 17, 18, 19
BIG_INT, COMPLEX, DATETIME, DATE, TIME, TIMEDELTA, DECIMAL, UUID = 32, 33, 34, 35, 36, 37, 38, 39

FORTRAN, SCALAR, VIEW = 1, 2, 4
"""Array flags: Fortran order; a numpy scalar; to be handed out as a memoryview."""

KIND_BYTES, KIND_BYTEARRAY, KIND_VIEW, KIND_ARRAY = 0, 1, 2, 3

INDEX: Final = struct.Struct("<I")
ARRAY_HEAD: Final = struct.Struct("<HBB")
DIMENSIONS: Final = tuple(struct.Struct(f"<{rank}Q") for rank in range(65))
COMPLEX_PARTS: Final = struct.Struct("<dd")
TIMEDELTA_PARTS: Final = struct.Struct("<iii")
