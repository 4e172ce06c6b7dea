"""Values of other libraries, by the protocols that they share their memory with: DLPack and Python's buffers."""

from __future__ import annotations

import array
from typing import Any

import numpy as np

from rrpc.codec import Refused, array_in, is_tensor

from .mismatch import Mismatch

_OWN = (bytes, bytearray, memoryview, array.array, np.ndarray, np.generic)
"""Types that have annotations of their own, so that a value of theirs is never taken for another one."""


def array_of(value: Any, expected: str) -> np.ndarray[Any, Any] | None:
    """Returns an array in the memory of ``value``, for example of a torch tensor; None if it shares none.

    Raises Mismatch if its memory isn't the host's, or if it refuses.
    """
    if isinstance(value, _OWN):
        return None
    if not is_tensor(type(value)):
        view = view_of(value)
        return None if view is None else np.asarray(view)
    try:
        return array_in(value)
    except Refused as refused:
        raise Mismatch(expected, value, refused.reason) from None


def view_of(value: Any) -> memoryview | None:
    """Returns the bytes of ``value``, for example of an mmap or a pyarrow.Buffer; None if it isn't such a value."""
    if isinstance(value, (*_OWN, str)) or is_tensor(type(value)):
        return None
    try:
        view = memoryview(value)
    except (TypeError, BufferError, ValueError):
        return None
    return view if view.format == "B" and view.ndim == 1 else _typed(view)


def _typed(view: memoryview) -> memoryview:
    """Returns bytes as B, as pyarrow's aren't; anything else as it is."""
    return view.cast("B") if view.ndim == 1 and view.itemsize == 1 and view.c_contiguous else view
