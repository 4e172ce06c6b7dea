"""Types for annotations that say more than Python's own: sizes of numbers, shapes of arrays.

::

    queries: Annotated[NDArray[np.float32], rrpc.Shape("n", 64)]
    k: rrpc.i32 = 10
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

__all__ = ["Shape", "Sized", "f32", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]


class Shape:
    """The dimensions of an array, for ``Annotated[NDArray[...], Shape("n", 3)]``.

    A name is the same size wherever it stands in the arguments and the result of a call, an int is that size,
    None is any size. ``Shape()`` is an array without dimensions.
    """

    __slots__ = ("dims",)

    def __init__(self, *dims: str | int | None) -> None:
        for dim in dims:
            if isinstance(dim, str) and not dim.isidentifier():
                raise ValueError(f"a dimension can't be called {dim!r}: use letters, digits and _")
            if isinstance(dim, int) and (isinstance(dim, bool) or dim < 0):
                raise ValueError(f"a dimension can't be {dim!r}")
            if dim is not None and not isinstance(dim, (str, int)):
                raise TypeError(f"a dimension is a name, a size or None, not {type(dim).__name__}")
        self.dims = dims

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(self.dims)

    def __repr__(self) -> str:
        return f"rrpc.Shape({', '.join(map(repr, self.dims))})"


@dataclass(frozen=True)
class Sized:
    """The size of a number: ``i8`` to ``u64``, ``f32``."""

    name: str


i8 = Annotated[int, Sized("i8")]
i16 = Annotated[int, Sized("i16")]
i32 = Annotated[int, Sized("i32")]
i64 = Annotated[int, Sized("i64")]
u8 = Annotated[int, Sized("u8")]
u16 = Annotated[int, Sized("u16")]
u32 = Annotated[int, Sized("u32")]
u64 = Annotated[int, Sized("u64")]
f32 = Annotated[float, Sized("f32")]
