"""Tensors as arrays and back, without a copy: numpy's as they are, torch's by the memory that both share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["array_of", "check", "device_of", "tensor_of"]


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    return torch is not None and isinstance(tensor, torch.Tensor)


def device_of(tensor: Any) -> str:
    """The kind of device that a tensor is on: "cpu", "cuda", ..."""
    return str(tensor.device.type) if _is_torch(tensor) else "cpu"


def array_of(tensor: Any) -> NDArray[Any]:
    """An array of a tensor's own memory; a torch tensor's items appear as integers of the same size.

    Raises:
        TypeError: It is neither an array nor a strided tensor in the processor's memory.
    """
    if _is_torch(tensor):
        import torch

        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError(
                f"the transport does not support a tensor on {tensor.device} with layout {tensor.layout}, "
                f"dtype {tensor.dtype}: it moves dense ones in the processor's memory, as .cpu() and .to_dense() give"
            )
        plain = tensor.detach().resolve_conj().resolve_neg()
        array: NDArray[Any] = plain.view(_carrier(tensor.dtype)).numpy()
        return array
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"the transport moves numpy arrays and torch tensors, not {type(tensor).__name__}")
    return tensor


def _carrier(dtype: Any) -> Any:
    """A dtype of torch's that numpy has too, with items of the same size."""
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[
        dtype.itemsize
    ]


def tensor_of(array: NDArray[Any], dtype: Any) -> Any:
    """The tensor that ``array_of`` made an array of; ``dtype`` is the tensor's."""
    if isinstance(dtype, np.dtype):
        return array
    import torch

    return torch.from_numpy(array).view(dtype)


def check(array: Any, shape: Sequence[int], dtype: Any) -> None:
    """Raises ValueError unless what arrived is an array of that shape, with items as ``dtype``, numpy's or torch's."""
    if not isinstance(array, np.ndarray) or array.shape != tuple(shape):
        raise ValueError(
            f"expected an array of shape {tuple(shape)}, got {getattr(array, 'shape', type(array))}"
        )
    same = array.dtype == dtype if isinstance(dtype, np.dtype) else array.itemsize == dtype.itemsize
    if not same or array.dtype.hasobject:
        raise ValueError(f"expected an array of {dtype}, got one of {array.dtype}")
