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

# Measured with a server of one worker, calls that take or give one array of n bytes, inline and lifted by
# turns in one run, medians. shm, one in flight, inline / lifted in us: 8 KiB 10.6 / 12.5, 16 KiB 11.7 / 13.3,
# 32 KiB 11.4 / 12.7, 64 KiB 16.3 / 16.9. tcp: 4 KiB 16.2 / 25.3, 8 KiB 25.8 / 25.8, 16 KiB 85.0 / 83.5,
# 32 KiB 90.4 / 86.4. Sixteen in flight over tcp, thousand calls/s: 8 KiB 30.7 / 30.3, 16 KiB 28.8 / 30.2,
# 32 KiB 14.3 / 17.7. So tcp gains from 16 KiB on, and shm loses little there.
LIFT_BYTES: Final = 16_384
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
