"""Types for annotations that say more than Python's own: sizes of numbers, shapes of arrays.

::

    queries: Annotated[NDArray[np.float32], rrpc.Shape("n", 64)]
    k: rrpc.i32 = 10
    weights: rrpc.Borrowed[NDArray[np.float32]]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

__all__ = [
    "Borrowed",
    "Lending",
    "Shape",
    "Sized",
    "f32",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
]


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


INTEGER_BOUNDS = {
    f"{sign}{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) if sign == "i" else (0, (1 << bits) - 1)
    for sign in "iu"
    for bits in (8, 16, 32, 64)
}
"""Least and greatest number of each size of integers."""


@dataclass(frozen=True)
class Lending:
    """The note in ``Borrowed``: the array's owner lends its memory."""


_T = TypeVar("_T")

Borrowed = Annotated[_T, Lending()]
"""An array that its receiver reads in the owner's memory: ``rrpc.Borrowed[NDArray[np.float32]]``.

Over shm the receiver maps an array that stands in pool memory (``rrpc.empty``, ``rrpc.like``; ``rrpc.snapshot`` puts
any array there with one copy). Every other array, and every array over another transport, is copied to the receiver as
usual. The receiver gets a read-only array in all cases.

It stands around a numpy array in a parameter or a result: alone, with ``| None``, or in a tuple, list or dict there. A
class's field and a stream's item can't be borrowed; ``AnnotationError`` says so.

The owner must not change a lent array if its readers need a steady value: they see each change at once, and may see
half of one. The view keeps the owner's memory lent until the last reference to it goes.

"""

i8 = Annotated[int, Sized("i8")]
i16 = Annotated[int, Sized("i16")]
i32 = Annotated[int, Sized("i32")]
i64 = Annotated[int, Sized("i64")]
u8 = Annotated[int, Sized("u8")]
u16 = Annotated[int, Sized("u16")]
u32 = Annotated[int, Sized("u32")]
u64 = Annotated[int, Sized("u64")]
f32 = Annotated[float, Sized("f32")]
