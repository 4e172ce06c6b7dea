"""Tensors of other libraries as arrays in their own memory: by DLPack, torch's and JAX's by what these offer besides.

No library is imported here: a program that has one of its tensors has imported it.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, get_args

import numpy as np

from rrpc.memory import empty

from .copy_counters import count_device_copy, count_pack
from .unsendable import Refused

DeviceTensors = Literal["refuse", "stage"]

_HOST_DEVICES = (1, 3, 11, 13)  # DLDeviceType's kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged
_CURE = "copy it to the host, e.g. .cpu(), or call rrpc.set_device_tensors('stage')"
_SAME_SIZE = {1: "uint8", 2: "int16", 4: "int32"}
"""torch's integers, by bytes, that stand in for floats which numpy has only by ml_dtypes."""

# Of the process. Any thread may set it, and it holds for the tensors after that.
_device_tensors: DeviceTensors = "refuse"


def set_device_tensors(device: DeviceTensors) -> None:
    """Sets what happens to tensors in the memory of a device, such as a GPU, that are to be sent.

    Applies to the whole process: arguments, results and items.

    Args:
        device: "refuse" (the default) refuses them with InvalidArgument, as copying them takes time and the caller may
            have a better place for the copy. "stage" copies each once to registered host memory and sends that;
            ``device_copies`` and ``bytes_from_devices`` of ``rrpc.stats`` count it.

    Raises:
        ValueError: ``device`` is neither.
    """
    global _device_tensors
    if device not in get_args(DeviceTensors):
        raise ValueError(f"device tensors can be 'refuse'd or 'stage'd, not {device!r:.40}")
    _device_tensors = device


def is_tensor(kind: type) -> bool:
    """Returns whether instances of ``kind`` share their memory as tensors do."""
    return hasattr(kind, "__dlpack__")


def array_in(value: Any) -> np.ndarray[Any, Any]:
    """Returns an array in the memory of a tensor on the host, read-only where that is.

    A tensor on a device is copied, if ``set_device_tensors`` allows it. Raises Refused with the way to send it.
    """
    try:
        if isinstance(value, _class_of("torch", "Tensor")):
            return _of_torch(value, sys.modules["torch"])
        if isinstance(value, _class_of("jax", "Array")):
            return _of_jax(value)
        return _by_dlpack(value)
    except Refused:
        raise
    except Exception as error:
        text = (str(error) or type(error).__name__).split("\n", 1)[0]
        raise Refused(f"it can't be shared: {text}; for torch, use .detach().cpu()") from None


def _class_of(library: str, name: str) -> Any:
    """The class, or no class at all where the library isn't imported."""
    return getattr(sys.modules.get(library), name, ())


def _must_stage(where: object) -> None:
    if _device_tensors != "stage":
        raise Refused(f"its memory is on {where}; {_CURE}")


def _counted(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    count_device_copy(array.nbytes)
    return array


def _by_dlpack(value: Any) -> np.ndarray[Any, Any]:
    device = int(value.__dlpack_device__()[0])
    if device in _HOST_DEVICES:
        return np.from_dlpack(value)
    _must_stage(f"DLPack device {device}")
    return _counted(np.from_dlpack(value, device="cpu", copy=True))


def _of_jax(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, sys.modules["jax"].core.Tracer):
        raise Refused(
            "it is traced and has no value yet: call from outside of jax.jit, or by jax.pure_callback"
        )
    places = {device.platform: device for device in value.devices()}
    if set(places) == {"cpu"}:
        return np.asarray(value)  # in its own memory, but for an array that is spread over several devices
    _must_stage(", ".join(map(str, places.values())))
    return _counted(np.asarray(value))


def _of_torch(tensor: Any, torch: Any) -> np.ndarray[Any, Any]:
    if tensor.is_quantized:
        raise Refused("a quantized tensor can't be sent: send .dequantize(), or .int_repr() and its scale")
    if tensor.layout is not torch.strided:
        text = "send .to_dense(), or its parts (of a sparse one .indices() and .values(), with its shape)"
        raise Refused(f"a tensor of layout {tensor.layout} can't be sent: {text}")
    if tensor.is_meta:
        raise Refused(
            "a meta tensor has no data to send: make a real one, torch.zeros_like(tensor, device='cpu')"
        )
    if tensor.requires_grad:
        raise Refused("it requires grad, which doesn't travel: send .detach()")
    # Torch negates or conjugates such a tensor when it is read: its memory has other values.
    if tensor.is_conj() or tensor.is_neg():
        count_pack(tensor.nbytes)
        tensor = tensor.resolve_conj().resolve_neg()
    kind = ml_type(tensor.dtype)
    if kind is not None:
        tensor = tensor.view(getattr(torch, _SAME_SIZE[tensor.itemsize]))
    if tensor.device.type == "cpu":
        array = tensor.numpy()
    else:
        _must_stage(tensor.device)
        array = empty(tuple(tensor.shape), torch.empty(0, dtype=tensor.dtype).numpy().dtype)
        torch.from_numpy(array).copy_(tensor)
        _counted(array)
    return array if kind is None else array.view(kind)  # type: ignore[no-any-return]


def ml_type(torch_dtype: Any) -> type[np.generic] | None:
    """Returns the type of ml_dtypes for a dtype of torch that numpy hasn't; None for numpy's own.

    Raises Refused if ml_dtypes isn't installed, or doesn't have it either.
    """
    name = str(torch_dtype).removeprefix("torch.")
    if not name.startswith(("bfloat", "float8", "float4", "complex32")):
        return None
    try:
        import ml_dtypes
    except ImportError:
        raise Refused(f"a tensor of {name} needs the package ml_dtypes: pip install rrpc-rdma[ml]") from None
    kind = getattr(ml_dtypes, name, None)
    if kind is None:
        raise Refused(
            f"ml_dtypes {ml_dtypes.__version__} has no {name}: convert the tensor, or send .view(torch.uint8)"
        )
    return kind  # type: ignore[no-any-return]
