"""Values through the codec, and what the tests of it share."""

import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrpc import _core
from rrpc.codec import Message, decode, encode

STRUCTURED = np.dtype([("id", "<i4"), ("at", [("x", ">f8"), ("when", "<M8[ms]")]), ("grid", "<u2", (2, 3))])


@dataclass(frozen=True)
class Point:
    x: int
    rows: Any


def block_of(buffer: Any) -> _core.Block:
    """What a buffer becomes on the other side."""
    raw = buffer.tobytes() if isinstance(buffer, (np.ndarray, array.array)) else bytes(buffer)
    block = _core.allocate(len(raw))
    writable: Any = block
    memoryview(writable)[:] = raw
    return block


def sent(value: Any) -> tuple[bytes, list[Any]]:
    message = Message()
    payload = encode(value, message)
    for buffer in message:
        assert not isinstance(buffer, np.ndarray) or buffer.flags.c_contiguous
    return payload, [block_of(buffer) for buffer in message]


def through(value: Any) -> Any:
    payload, blocks = sent(value)
    return decode(payload, blocks or None)
