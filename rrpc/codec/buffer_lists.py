"""Lists of buffers, ``list[memoryview]``: packed by hand, as the codec would pack them."""

from __future__ import annotations

import struct
from typing import Any

from . import wire
from .encoder import Message
from .unsendable import scanned

_VIEW = bytes((wire.KIND_VIEW, 0))
_BULK = struct.Struct("<BBBI2s")  # an extension of 6 bytes: the index, then what the buffer is
# 0xC7 and 0xC8 are MessagePack's extensions with a length of one byte or two.
_SHORT = struct.Struct(">BBB2s")
_LONG = struct.Struct(">BHB2s")
_LIST_16, _LIST_32 = struct.Struct(">BH"), struct.Struct(">BI")


def encode_frames(frames: list[Any]) -> tuple[bytes, Message | None]:
    """Returns the payload and the buffers of an item that is a list of buffers: what shares contiguous memory.

    Raises TypeError, ValueError or BufferError for anything else, and Refused for more of them than a message takes.
    """
    message = Message()
    count = len(frames)
    parts: list[Any] = [_list_head(count)]
    for frame in frames:
        view = frame if type(frame) is memoryview else memoryview(frame)
        if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
            view = view.cast("B")
        nbytes = view.nbytes
        if nbytes >= wire.BULK_BYTES:
            parts.append(_BULK.pack(0xC7, 6, wire.BULK_BYTES_LIKE, len(message), _VIEW))
            message.append(view)
            continue
        # The length counts two bytes more, and has to fit into one byte.
        if nbytes < 254:
            parts.append(_SHORT.pack(0xC7, nbytes + 2, wire.BYTES, _VIEW))
        else:
            parts.append(_LONG.pack(0xC8, nbytes + 2, wire.BYTES, _VIEW))
        parts.append(view)
    return scanned(b"".join(parts)), message or None


def _list_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return _LIST_16.pack(0xDC, count) if count < 1 << 16 else _LIST_32.pack(0xDD, count)


def decode_frames(payload: bytes, blocks: list[Any] | None) -> list[memoryview] | None:
    """Returns what ``encode_frames`` packed, each buffer writable; None for any other payload, right or wrong."""
    count, at = _list_count(payload)
    if count < 0:
        return None
    frames: list[memoryview] = []
    bulk = blocks or []
    taken, end = 0, len(payload)
    for _ in range(count):
        # Whatever looks otherwise is left to the decoder, which says what is wrong with it.
        if at + 4 > end or (first := payload[at]) not in (0xC7, 0xC8):
            return None
        at += first - 0xC5
        nbytes = payload[at - 1] if first == 0xC7 else payload[at - 2] << 8 | payload[at - 1]
        start, at = at + 1, at + 1 + nbytes
        if at > end:
            return None
        if payload[start - 1] == wire.BYTES and payload[start : start + 2] == _VIEW:
            frames.append(memoryview(bytearray(payload[start + 2 : at])))
            continue
        if payload[start - 1 : at] != _BULK.pack(0, 0, wire.BULK_BYTES_LIKE, taken, _VIEW)[2:]:
            return None
        if taken == len(bulk) or bulk[taken] is None:
            return None
        view = memoryview(bulk[taken])
        if view.readonly:  # lent: the decoder copies it
            return None
        frames.append(view)
        taken += 1
    return frames if at == end and taken == len(bulk) else None


def _list_count(payload: bytes) -> tuple[int, int]:
    """Returns the number of items in the payload's list and their offset; -1 and 0 if it isn't a list."""
    first = payload[0] if payload else 0
    if first & 0xF0 == 0x90:
        return first & 15, 1
    head = _LIST_16 if first == 0xDC else _LIST_32 if first == 0xDD else None
    if head is None or len(payload) < head.size:
        return -1, 0
    return head.unpack_from(payload)[1], head.size
