"""Arrays in registered memory.

An array from ``empty`` or ``zeros`` lives in the pool that is registered with the transport:
passing it to a call costs neither a registration nor a copy. It behaves as any other array, and its
memory goes back to the pool when the last array that uses it is gone.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _core

__all__ = [
    "empty",
    "like",
    "memory_of",
    "prefault_pool",
    "set_pool_idle_timeout",
    "set_pool_limit",
    "snapshot",
    "trim",
    "zeros",
]


def empty(
    shape: SupportsIndex | tuple[SupportsIndex, ...] | list[int],
    dtype: DTypeLike = float,
    order: Literal["C", "F"] = "C",
) -> np.ndarray[Any, Any]:
    """Makes an array in registered memory, its items not initialised; as ``numpy.empty``.

    Args:
        shape: The dimensions: one int, or several.
        dtype: Any dtype of fixed size; float64 by default.
        order: "C" for rows that are contiguous, "F" for columns.

    Returns:
        The array, of that shape and dtype. Its memory goes back to the pool when the last array that uses it is gone.

    Raises:
        ValueError: The shape is negative, too large, or has more than 64 dimensions.
        TypeError: The dtype has no fixed size (objects, ``StringDType``), or the shape isn't of ints.
        ResourceExhausted: The pool's limit doesn't allow it.
    """
    kind = np.dtype(dtype)
    if kind.hasobject or kind.kind == "T":
        raise TypeError(f"dtype {kind} has no fixed size and can't live in registered memory")
    dimensions = _dimensions(shape)
    nbytes = math.prod(dimensions) * kind.itemsize
    if nbytes >= 1 << 63:
        raise ValueError(f"array is too big: shape {dimensions} of {kind}")
    if not nbytes:
        return np.empty(dimensions, kind, order=order)
    block: Any = _core.allocate(nbytes)
    array: np.ndarray[Any, Any] = np.ndarray(dimensions, kind, buffer=block, order=order)
    _core.share_references(array)
    return array


def zeros(
    shape: SupportsIndex | tuple[SupportsIndex, ...] | list[int],
    dtype: DTypeLike = float,
    order: Literal["C", "F"] = "C",
) -> np.ndarray[Any, Any]:
    """Makes an array in registered memory, filled with zeros; as ``numpy.zeros``.

    Args:
        shape: The dimensions: one int, or several.
        dtype: Any dtype of fixed size; float64 by default.
        order: "C" for rows that are contiguous, "F" for columns.

    Returns:
        The array, of that shape and dtype.

    Raises:
        ValueError: The shape is negative, too large, or has more than 64 dimensions.
        TypeError: The dtype has no fixed size (objects, ``StringDType``), or the shape isn't of ints.
        ResourceExhausted: The pool's limit doesn't allow it.
    """
    array = empty(shape, dtype, order)
    array[...] = np.zeros((), array.dtype)
    return array


def like(array: ArrayLike) -> np.ndarray[Any, Any]:
    """Makes an array in registered memory of another one's shape and dtype, its items not initialised.

    ::

        weights = rrpc.like(model)
        np.multiply(model, scale, out=weights)

    Args:
        array: An array, or whatever ``numpy.asarray`` takes.

    Returns:
        The array, Fortran-contiguous where ``array`` is, else C-contiguous.

    Raises:
        TypeError: The dtype has no fixed size (objects, ``StringDType``).
        ResourceExhausted: The pool's limit doesn't allow it.
    """
    model = np.asarray(array)
    flags = model.flags
    return empty(model.shape, model.dtype, "F" if flags.f_contiguous and not flags.c_contiguous else "C")


def snapshot(array: ArrayLike) -> np.ndarray[Any, Any]:
    """Copies an array as it is now into registered memory, for a method that goes on changing the original.

    Hold the lock that guards ``array`` meanwhile; the copy can be sent after that, at no further cost.

    Args:
        array: An array, or whatever ``numpy.asarray`` takes.

    Returns:
        The copy, of the same shape and dtype, Fortran-contiguous where ``array`` is, else C-contiguous.

    Raises:
        TypeError: The dtype has no fixed size (objects, ``StringDType``).
        ResourceExhausted: The pool's limit doesn't allow it.
    """
    live = np.asarray(array)
    copy = like(live)
    np.copyto(copy, live)
    return copy


def set_pool_limit(nbytes: int) -> None:
    """The most memory, in bytes, that this process registers for its pool; ResourceExhausted beyond it."""
    _core.set_pool_limit(nbytes)


def set_pool_idle_timeout(seconds: float | None) -> None:
    """Sets how long free pool memory rests before its pages go back to the system; None: until ``trim``.

    10 s by default. A connection of this process must exist: its thread does the work. Raises ValueError for
    a negative time.
    """
    if seconds is not None and not seconds >= 0:
        raise ValueError(f"a timeout of {seconds} s: want at least 0, or None")
    _core.set_pool_idle_timeout(seconds)


def prefault_pool(nbytes: int) -> None:
    """Brings in memory for the first ``nbytes`` of received arrays now, and keeps it until the process ends.

    The first large array that is received then lands as fast as the later ones. Takes about a second for each
    GB. At most the pool's limit is brought in. Raises ResourceExhausted when the system has no memory.
    """
    _core.prefault_pool(nbytes)


def share_memory(processes: int) -> None:
    """Makes this process one of so many that share the machine's memory; before it has arrays or connections."""
    _core.set_processes(processes)
    set_pool_limit(_core.stats()["pool_limit_bytes"] // processes)


def trim() -> int:
    """Gives the pages of all free pool memory back to the system now. Returns their number of bytes.

    Memory that a transfer or an open result still uses follows when those end. The next arrays in trimmed
    memory are slower once, as new pages come with the first touch.
    """
    return _core.trim()


def _dimensions(shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, str) or hasattr(shape, "__index__") else tuple(shape)
    dimensions = tuple(operator.index(size) for size in sizes)
    if any(size < 0 for size in dimensions):
        raise ValueError(f"negative dimensions are not allowed: {dimensions}")
    if len(dimensions) > 64:
        raise ValueError(f"maximum supported dimension for an ndarray is 64, found {len(dimensions)}")
    return dimensions


def memory_of(out: Any) -> Any:
    """Returns the array that the core writes a result into, or None if ``out`` is None or has no bytes."""
    return None if out is None or not out.nbytes else out
