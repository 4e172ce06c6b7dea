"""``out=``: the array in the caller's memory that a result is written into."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrpc.codec import describe_dtype, parse_dtype
from rrpc.errors import InvalidArgument, ProtocolError

__all__ = ["OutSpec"]


@dataclass(frozen=True)
class OutSpec:
    """dtype and shape of the caller's array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @staticmethod
    def of(out: Any) -> OutSpec:
        """Of the caller's array; InvalidArgument says what keeps it from being used."""
        if not isinstance(out, np.ndarray):
            raise InvalidArgument(f"out= must be a numpy array, not {type(out).__name__}")
        if not out.flags.c_contiguous:
            raise InvalidArgument("out= must be C-contiguous; use np.ascontiguousarray or rrpc.empty")
        if not out.flags.writeable:
            raise InvalidArgument("out= is read-only; use a writable array")
        try:
            describe_dtype(out.dtype)
        except TypeError as error:
            raise InvalidArgument(f"out=: {error}") from None
        return OutSpec(out.dtype, out.shape)

    @staticmethod
    def parse(spec: Any) -> OutSpec:
        """From a request."""
        try:
            description, shape = spec
            if any(type(n) is not int or n < 0 for n in shape):
                raise ValueError(f"shape {shape}")
            return OutSpec(parse_dtype(description), tuple(shape))
        except Exception as error:
            raise ProtocolError(f"malformed request: bad out=: {error}") from None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def packable(self) -> list[Any]:
        return [describe_dtype(self.dtype), list(self.shape)]

    def choose(self, result: Any) -> np.ndarray[Any, Any]:
        """The one array of ``result`` that fits; InvalidArgument if none or several do."""
        arrays = list(_arrays(result))
        fitting = [array for array in arrays if array.dtype == self.dtype and array.shape == self.shape]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise InvalidArgument(f"out= is {self}, as are {len(fitting)} arrays of the result")
        if not arrays:
            raise InvalidArgument(f"out= is {self}, the result has no array")
        found = " and ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise InvalidArgument(f"out= is {self}, the result is {found}")

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name))
