"""Arrays that arrive in memory that their sender lends: copied into memory of their own, or read-only."""

from __future__ import annotations

from typing import Any

import numpy as np

from rrpc import _core

from .copy_counters import count_unpack


def owned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copies an array, contiguous in C or Fortran order, into memory of its own, with the bytes between its fields.

    The memory is the pool's, of the kind that received arrays land in: a forked child has its own copy.

    Raises ResourceExhausted if the pool's limit doesn't allow it.
    """
    block: Any = _core.allocate(array.nbytes, private=True)
    np.ndarray(array.nbytes, np.uint8, block)[...] = array.ravel("K").view(np.uint8)
    count_unpack(array.nbytes)
    copy: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, block, strides=array.strides)
    _core.share_references(copy)
    return copy


def own(value: Any) -> Any:
    """Copies the arrays in a decoded value that are read-only; other values stay, containers change in place."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else owned(value)
    if type(value) is tuple:
        return tuple(map(own, value))
    if type(value) is list:
        value[:] = map(own, value)
    elif isinstance(value, dict):
        # The keys stay as they are, so the dict may change while it is walked.
        for key, item in value.items():
            value[key] = own(item)
    return value


def frozen(value: Any, out: Any = None) -> Any:
    """Makes the arrays in a decoded value read-only, and returns the value; the caller's own array stays writable."""
    if isinstance(value, np.ndarray):
        if value is not out:
            value.flags.writeable = False
    elif isinstance(value, dict):
        for item in value.values():
            frozen(item, out)
    elif isinstance(value, (list, tuple)):
        for item in value:
            frozen(item, out)
    return value
