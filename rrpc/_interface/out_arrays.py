"""``out=``: the caller's memory that an array of the result is written into."""

from __future__ import annotations

import array
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrpc.codec import (
    array_in,
    decode,
    describe_dtype,
    fields_in,
    frozen,
    has_fields,
    is_tensor,
    parse_dtype,
)
from rrpc.errors import InvalidArgument, ProtocolError, RpcError

from .foreign_arrays import array_of
from .members import members_of
from .mismatch import Mismatch


class Target(np.ndarray[Any, Any]):
    """An array in the memory of an object that isn't one, such as a tensor or an mmap."""

    given: Any

    def in_place(self, result: Any) -> Any:
        """Returns ``result`` with the very object that was given where this array stands in it."""
        if result is self:
            return self.given
        if isinstance(result, (list, tuple)):
            items = [self.in_place(item) for item in result]
            if all(new is old for new, old in zip(items, result, strict=True)):
                return result
            # Named tuples take their items one by one.
            return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
        if isinstance(result, dict):
            for key, item in result.items():
                result[key] = self.in_place(item)
        elif has_fields(type(result)):
            for member in members_of(type(result)):
                item = getattr(result, member.attribute)
                if (new := self.in_place(item)) is not item:
                    # A frozen dataclass refuses a plain assignment.
                    object.__setattr__(result, member.attribute, new)
        return result


def target_of(out: Any) -> np.ndarray[Any, Any] | None:
    """Returns the array that ``out=`` means: itself, or a ``Target`` in the memory of another object.

    Raises InvalidArgument where it has no memory that it could share.
    """
    if out is None or isinstance(out, np.ndarray):
        return out
    try:
        if isinstance(out, (bytes, bytearray, memoryview, array.array)):
            found: np.ndarray[Any, Any] | None = np.asarray(memoryview(out))
        else:
            found = array_of(out, "an array")
    except Mismatch as mismatch:
        raise InvalidArgument(f"out=: {mismatch}") from None
    if found is None:
        raise InvalidArgument(
            f"out= must be an array, or share its memory by DLPack or as a buffer, not {type(out).__name__}"
        )
    target = found.view(Target)
    target.given = out
    return target


def decode_into(
    payload: bytes, blocks: list[Any] | None, out: np.ndarray[Any, Any] | None = None, borrow: bool = False
) -> Any:
    """Returns the result of a reply to a call by name, with what ``out=`` was in the place of the array there.

    With ``borrow`` its other arrays are read-only, and lent ones stay in their owner's memory.
    """
    result = decode(payload, blocks, out, borrow)
    if borrow:
        frozen(result, out)
    return out.in_place(result) if isinstance(out, Target) else result


@dataclass(frozen=True)
class OutSpec:
    """dtype and shape of the caller's array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @staticmethod
    def of(out: np.ndarray[Any, Any]) -> OutSpec:
        """Returns the spec of the caller's array; raises InvalidArgument if the array can't take a result."""
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
        """Reads the description from a request."""
        try:
            description, shape = spec
            # A caller wrote this: bool is an int too, and isn't meant.
            if any(type(n) is not int or n < 0 for n in shape):
                raise ValueError(f"shape {shape}")
            return OutSpec(parse_dtype(description), tuple(shape))
        except RpcError:
            raise
        except Exception as error:
            raise ProtocolError(f"malformed request: bad out=: {error}") from None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def packable(self) -> list[Any]:
        return [describe_dtype(self.dtype), list(self.shape)]

    def choose(self, result: Any) -> Any:
        """Returns the one array or tensor of ``result`` that fits; InvalidArgument if none or several do."""
        found = list(_arrays(result))
        arrays = [array for _, array in found]
        # By dtype and shape, as the request doesn't say in which place of the result it is.
        fitting = [v for v, array in found if array.dtype == self.dtype and array.shape == self.shape]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise InvalidArgument(f"out= is {self}, as are {len(fitting)} arrays of the result")
        if not arrays:
            raise InvalidArgument(f"out= is {self}, the result has no array")
        shown = " and ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise InvalidArgument(f"out= is {self}, the result is {shown}")

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


def _arrays(value: Any) -> Iterator[tuple[Any, np.ndarray[Any, Any]]]:
    """The arrays and tensors in a result, the latter as arrays beside."""
    if isinstance(value, np.ndarray):
        yield value, value
    elif is_tensor(type(value)) and not isinstance(value, np.generic):
        yield value, array_in(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)
    elif has_fields(type(value)):
        for item in fields_in(value).values():
            yield from _arrays(item)
