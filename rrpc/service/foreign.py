"""Values of other libraries, by the protocols that they share their memory with: DLPack and Python's buffers."""

from __future__ import annotations

import array
from typing import Any

import numpy as np

from .mismatch import Mismatch

__all__ = ["array_of", "view_of"]

_OWN = (bytes, bytearray, memoryview, array.array, np.ndarray, np.generic)
"""Types that have annotations of their own, so that a value of theirs is never taken for another one."""
_HOST_DEVICES = (1, 3, 11, 13)  # DLDeviceType's kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged


def array_of(value: Any, expected: str) -> np.ndarray[Any, Any] | None:
    """Returns an array in the memory of ``value``, for example of a torch tensor; None if it shares none.

    Raises Mismatch if its memory isn't the host's, or if it refuses.
    """
    if isinstance(value, _OWN):
        return None
    if not hasattr(type(value), "__dlpack__"):
        view = view_of(value)
        return None if view is None else np.asarray(view)
    try:
        device = int(value.__dlpack_device__()[0])
        if device in _HOST_DEVICES:
            return np.from_dlpack(value)
    except Exception as error:
        raise Mismatch(
            expected, value, f"it can't be shared: {error}; for torch, use .detach().cpu()"
        ) from None
    raise Mismatch(
        expected, value, f"its memory is on DLPack device {device}; copy it to the host, e.g. .cpu()"
    )


def view_of(value: Any) -> memoryview | None:
    """Returns the bytes of ``value``, for example of an mmap or a pyarrow.Buffer; None if it isn't such a value."""
    if isinstance(value, (*_OWN, str)) or hasattr(type(value), "__dlpack__"):
        return None
    try:
        view = memoryview(value)
    except (TypeError, BufferError, ValueError):
        return None
    return view if view.format == "B" and view.ndim == 1 else _typed(view)


def _typed(view: memoryview) -> memoryview:
    """Returns bytes as B, as pyarrow's aren't; anything else as it is."""
    return view.cast("B") if view.ndim == 1 and view.itemsize == 1 and view.c_contiguous else view
