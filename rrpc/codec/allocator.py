"""The memory that copies are made in: registered memory, once the package has said so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["allocate", "use_allocator"]

_Allocator = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray[Any, Any]]
_allocate: _Allocator = np.empty


def use_allocator(allocator: _Allocator) -> None:
    """Sets where ``allocate`` takes memory from; the package puts registered memory here."""
    global _allocate
    _allocate = allocator


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns a new C-contiguous array, its items not initialised."""
    return _allocate(shape, dtype)
