"""Checks of numbers of a size and arrays of a shape: what ``Annotated`` may add to int, float, NDArray and tensors."""

from __future__ import annotations

import math
import typing
from typing import Any

import numpy as np

from rrpc.types import INTEGER_BOUNDS, Shape, Sized

from .borrowed import is_lending
from .libraries import item_note, library_of
from .mismatch import AnnotationError, Check, Compile, Mismatch, item_type, number_text, type_text
from .tensor_checks import tensor_check

_F32_OVERFLOWS = 2.0**128 - 2.0**103
"""From here on a number is nearer to 2**128 than to the largest f32."""


def annotated_check(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    base, *notes = arguments
    if is_lending(tuple(notes)):
        _must_be_array(base)
    check = compile_inner(base)
    library = library_of(base)
    if library is not None and not library.is_table and (item := item_note(notes)) is not np.generic:
        check = tensor_check(library, base, item)
    # The first of them counts. Compiled plans do the same.
    for note in notes:
        if isinstance(note, Sized):
            return _sized_check(note.name, base, check)
        if isinstance(note, Shape):
            return _shape_check(note, base, check)
    return check


def _must_be_array(base: Any) -> None:
    """Raises AnnotationError for ``rrpc.Borrowed`` around anything but a numpy array."""
    if base is np.ndarray or typing.get_origin(base) is np.ndarray:
        return
    if isinstance(base, typing.TypeVar):
        raise AnnotationError("write what is borrowed: rrpc.Borrowed[NDArray[np.float32]]")
    raise AnnotationError(f"rrpc.Borrowed is for numpy arrays, NDArray[...], not for {type_text(base)}")


def _sized_check(name: str, base: Any, check: Check) -> Check:
    if base is float and name == "f32":
        return _f32_check(check)
    if base is not int or name not in INTEGER_BOUNDS:
        raise AnnotationError(f"there is no {type_text(base)} of size {name!r}")
    low, high = INTEGER_BOUNDS[name]

    def check_int(value: Any) -> Any:
        number = value if type(value) is int else check(value)
        if low <= number <= high:
            return number
        raise Mismatch(name, value, f"{number_text(number)} is out of range, {low} to {high}")

    return check_int


def _f32_check(check: Check) -> Check:
    def check_f32(value: Any) -> Any:
        number = value if type(value) is float else check(value)
        # nan and the infinities pass, as an f32 has them too.
        if -_F32_OVERFLOWS < number < _F32_OVERFLOWS or not math.isfinite(number):
            return number
        raise Mismatch("f32", value, f"{number} is out of range, about -3.4e38 to 3.4e38")

    return check_f32


def _shape_check(shape: Shape, base: Any, check: Check) -> Check:
    library = library_of(base)
    is_tensor = library is not None and not library.is_table
    if base is not np.ndarray and typing.get_origin(base) is not np.ndarray and not is_tensor:
        raise AnnotationError(f"rrpc.Shape is for arrays, not for {type_text(base)}")
    dims = shape.dims
    rank = len(dims)
    fixed = [(axis, size) for axis, size in enumerate(dims) if isinstance(size, int)]
    item = item_type(base)
    shown = ", ".join("_" if dim is None else str(dim) for dim in dims) + "," * (rank == 1)
    name = "array" if library is None else library.full_name
    expected = f"{'' if item is np.generic else item.__name__ + ' '}{name} of shape ({shown})"

    def check_shape(value: Any) -> Any:
        array = check(value)
        if array.ndim != rank:
            raise Mismatch(expected, value, f"it has {array.ndim} dimension{'s' * (array.ndim != 1)}")
        for axis, size in fixed:
            if array.shape[axis] != size:
                raise Mismatch(expected, value, f"dimension {axis} is {array.shape[axis]}, not {size}")
        return array

    return check_shape
