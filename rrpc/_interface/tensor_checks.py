"""Checks of torch.Tensor and jax.Array: an array that has arrived becomes one, in the same memory where possible."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from rrpc.codec import count_unpack

from .foreign_arrays import array_of
from .libraries import Library
from .mismatch import AnnotationError, Check, Mismatch
from .out_arrays import Target

_ALIGNED = 64
"""XLA on the CPU takes memory as it is from this many bytes of alignment."""
_SAME_SIZE: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32}


def tensor_check(library: Library, kind: Any, item: Any = np.generic) -> Check:
    """Returns the check of a tensor of ``kind``, whose items are of numpy's type ``item``, any for ``np.generic``."""
    to_tensor, same_items = _WAYS[library.module]
    dtype = None if item is np.generic else _dtype_of(item)
    expected = library.full_name if dtype is None else f"{library.full_name} of {dtype.name}"

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            if dtype is not None and not same_items(value, dtype):
                raise Mismatch(expected, value, f"it has items of {value.dtype}; convert it, rrpc doesn't")
            return value
        array = value if isinstance(value, np.ndarray) else array_of(value, expected)
        if array is None or isinstance(array, np.ma.MaskedArray):
            raise Mismatch(expected, value)
        if dtype is not None and array.dtype != dtype:
            raise Mismatch(expected, array, f"convert it, .astype({dtype.name!r})")
        if type(array) is Target:  # out=, which gives the caller's own object
            return array
        if not array.dtype.isnative:
            hint = "use .astype(array.dtype.newbyteorder('='))"
            raise Mismatch(expected, array, f"its bytes are in another order; {hint}")
        return to_tensor(array, expected)

    return check


def _dtype_of(item: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(item)
    except TypeError:  # of an abstract type, np.floating for example
        dtype = np.dtype(np.object_)
    if dtype.hasobject:
        raise AnnotationError(f"a tensor has no items of {item.__name__}; name a type such as np.float32")
    return dtype


def _to_torch(array: np.ndarray[Any, Any], expected: str) -> Any:
    torch = sys.modules["torch"]
    # Torch takes no memory that is walked backwards.
    backwards = min(array.strides, default=0) < 0
    if backwards or not array.flags.writeable:  # given, not landed: torch can't say so
        array = array.copy()
    try:
        if array.dtype.type.__module__ != "ml_dtypes":
            tensor = torch.from_numpy(array)
        else:
            # Torch takes no items of ml_dtypes from numpy, but views integers of their size as its own type.
            ints = torch.from_numpy(array.view(_SAME_SIZE[array.itemsize]))
            tensor = ints.view(getattr(torch, array.dtype.name))
    except (TypeError, ValueError, KeyError, AttributeError):
        raise Mismatch(expected, array, f"torch has no {array.dtype}: declare an NDArray") from None
    return (
        tensor if tensor.numel() else tensor.new_empty(tensor.shape)
    )  # numpy's have strides that torch's haven't


def _torch_has(tensor: Any, dtype: np.dtype[Any]) -> bool:
    return str(tensor.dtype) == f"torch.{dtype.name}"


def _to_jax(array: np.ndarray[Any, Any], expected: str) -> Any:
    jax = sys.modules["jax"]
    try:
        # Unless jax_enable_x64 is set JAX would silently halve items of 64 bits, which is refused.
        kept = jax.dtypes.canonicalize_dtype(array.dtype)
        if kept == array.dtype:
            return _jax_array(array, jax)
    except TypeError:
        raise Mismatch(expected, array, f"JAX has no {array.dtype}: declare an NDArray") from None
    way = "jax.config.update('jax_enable_x64', True), or convert it before it is sent"
    raise Mismatch(expected, array, f"JAX would make it {kept}: {way}")


def _jax_array(array: np.ndarray[Any, Any], jax: Any) -> Any:
    if array.nbytes and array.ctypes.data % _ALIGNED == 0 and jax.default_backend() == "cpu":
        try:
            return jax.dlpack.from_dlpack(array)
        except (BufferError, TypeError, ValueError, RuntimeError):  # items of ml_dtypes, or read-only
            pass
    made = jax.numpy.array(array)
    count_unpack(array.nbytes)
    return made


def _jax_has(array: Any, dtype: np.dtype[Any]) -> bool:
    return bool(array.dtype == dtype)


_To = Callable[[np.ndarray[Any, Any], str], Any]
_WAYS: dict[str, tuple[_To, Callable[[Any, np.dtype[Any]], bool]]] = {
    "torch": (_to_torch, _torch_has),
    "jax": (_to_jax, _jax_has),
}
