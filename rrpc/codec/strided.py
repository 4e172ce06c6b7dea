"""Memory layout of arrays: strided arrays that are sent in pieces, unpacked, and dtypes with padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from rrpc.memory import empty

from . import wire
from .copy_counters import count_pack

__all__: list[str] = []


def goes_in_pieces(value: np.ndarray[Any, Any]) -> bool:
    """Returns whether ``value``, which isn't contiguous, is in C order a few large pieces that don't overlap."""
    piece_bytes = value.itemsize
    outer: list[tuple[int, int]] = []  # (step, count) of the dimensions outside a piece
    for count, step in zip(reversed(value.shape), reversed(value.strides), strict=True):
        if count == 1 or (step == piece_bytes and not outer):
            piece_bytes *= count
        else:
            outer.append((abs(step), count))
            if piece_bytes < wire.PIECE_BYTES:
                return False
    if value.nbytes > wire.PIECES_MAX * piece_bytes:
        return False
    span = piece_bytes
    # From the smallest step on, each dimension must step over all that lies within it, so that no two items share
    # bytes.
    for step, count in sorted(outer):
        if step < span:
            return False
        span += step * (count - 1)
    return True


def strided(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array itself if the peer can fetch it in a few large pieces, otherwise a packed copy."""
    if not has_padding(value.dtype) and goes_in_pieces(value):
        return value
    return _pack_array(value)


def _pack_array(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    packed = empty(value.shape, value.dtype)
    if has_padding(value.dtype):
        # The pool's memory has old bytes in it, which would travel in the padding.
        packed.reshape(-1).view(np.uint8)[...] = 0
    count_pack(value.nbytes)
    return copied(value, packed)


def copied(value: np.ndarray[Any, Any], into: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copies the items into another array, and returns that."""
    into[...] = value
    return into


_PADDED = (np.longdouble, np.clongdouble)


def has_padding(dtype: np.dtype[Any]) -> bool:
    """Returns whether copying items may leave bytes as they were: those must not show the peer our memory."""
    return dtype.names is not None or dtype.type in _PADDED
