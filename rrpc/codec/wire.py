"""Extension codes, layouts and limits: the facts both directions share.

Array header (after a u32 buffer index for bulk ones; little-endian)::

    u16 length of what follows, u8 flags, u8 rank, rank × u64 dimensions, the dtype's description

Inline arrays have their bytes right behind it. A bytes-like header is ``u8 kind, u8 typecode`` (the
typecode is array.array's, else 0), again after the index or before the bytes.

Tuples, sets and dataclasses are MessagePack arrays whose first element is a mark, an extension of
no or few bytes; the elements follow. A dataclass has its class name in the mark and one map behind it.
"""

import struct
from typing import Final

__all__: list[str] = []

# Measured with a server of one worker, calls that take or give one array of n bytes, inline and bulk by
# turns in one run, medians. shm, one in flight, inline / bulk in us: 8 KiB 10.6 / 12.5, 16 KiB 11.7 / 13.3,
# 32 KiB 11.4 / 12.7, 64 KiB 16.3 / 16.9. tcp: 4 KiB 16.2 / 25.3, 8 KiB 25.8 / 25.8, 16 KiB 85.0 / 83.5,
# 32 KiB 90.4 / 86.4. Sixteen in flight over tcp, thousand calls/s: 8 KiB 30.7 / 30.3, 16 KiB 28.8 / 30.2,
# 32 KiB 14.3 / 17.7. So tcp gains from 16 KiB on, and shm loses little there.
BULK_BYTES: Final = 16_384
"""Buffers of this many bytes and more leave the message and are fetched by remote read."""

# Measured with bench/strided.py, packed / in pieces in us, the array as an argument and not in any cache. shm, 8 pieces
# of 128 KiB 124 / 133, 256 KiB 198 / 188, 512 KiB 341 / 328, 1 MiB 1073 / 741, 2 MiB 2177 / 1429; 2 pieces of 1 MiB
# 238 / 167. tcp, 8 pieces of 256 KiB 1232 / 1347, 512 KiB 2547 / 2409, 1 MiB 5002 / 3704. Arrays that are in the cache
# pack quicker: shm, 4 pieces of 512 KiB 112 / 163, 1 MiB 237 / 148. An adapter registers a piece in about 16 us and
# 60 us per MiB, unless it knows it already.
PIECE_BYTES: Final = 1 << 20
PIECES_MAX: Final = 16
"""Strided arrays of at most so many pieces, each at least so long, aren't packed but fetched piece by piece."""

MAX_DEPTH: Final = 128
"""How deep lists, tuples, dicts, sets and dataclasses may nest in what is sent."""

BIG_INT_BYTES: Final = 1 << 16
"""The longest int."""

MARKED: Final = 0xC1
"""First byte of a payload with marked lists."""

ARRAY, BULK_ARRAY, BYTES, BULK_BYTES_LIKE, OUT = 1, 2, 3, 4, 5
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
