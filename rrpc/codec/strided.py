"""Memory layout of arrays: strided arrays that are sent in pieces, unpacked, and dtypes with padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import wire

__all__: list[str] = []


def goes_in_pieces(value: np.ndarray[Any, Any]) -> bool:
    """Whether ``value``, which isn't contiguous, is in C order a few large pieces that don't overlap."""
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
    for step, count in sorted(outer):
        if step < span:
            return False
        span += step * (count - 1)
    return True


_PADDED = (np.longdouble, np.clongdouble)


def has_padding(dtype: np.dtype[Any]) -> bool:
    """Whether copying items may leave bytes as they were: those must not show the peer our memory."""
    return dtype.names is not None or dtype.type in _PADDED
