"""The service that the tests of rrpc-call call: every kind of argument and result."""

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import rrpc


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Track:
    """A walk."""

    name: str
    points: NDArray[np.float64]
    unit: Unit = Unit.METRE
    tags: list[str] = field(default_factory=list)


@dataclass
class Circle:
    size: float


@dataclass
class Square:
    size: float


@dataclass
class Label:
    size: str


@rrpc.service
class Kinds:
    """All kinds of values."""

    @rrpc.method
    def plain(self, a: int, b: float = 0.5, c: bool = False, d: str = "d", e: None = None) -> list[Any]:
        """Plain values.

        More about them.
        """
        return [a, b, c, d, e]

    @rrpc.method
    def text(self, text: str) -> str:
        return text

    @rrpc.method
    def maybe(self, value: str | int | None = None) -> str:
        return repr(value)

    @rrpc.method
    def choice(self, unit: Unit, *, level: Level = Level.LOW, literal: Literal["a", 2] = "a") -> list[Any]:
        return [unit.name, level.name, literal]

    @rrpc.method
    def track(self, track: Track) -> Track:
        return track

    @rrpc.method
    def shape(self, shape: Circle | Square) -> str:
        return type(shape).__name__

    @rrpc.method
    def either(self, item: Circle | Label | None) -> str:
        return repr(item)

    @rrpc.method
    def maybe_track(self, track: Track | None = None) -> bool:
        return track is not None

    @rrpc.method
    def digit(self, digit: Literal["1", "2"], prices: list[decimal.Decimal]) -> list[Any]:
        return [digit, *prices]

    @rrpc.method
    def containers(
        self, a: list[int], b: tuple[int, str], c: dict[int, list[str]], d: set[int], e: tuple[int, ...] = ()
    ) -> dict[int, Any]:
        return {1: a, 2: b, 3: c, 4: d, 5: e}

    @rrpc.method
    def times(
        self,
        day: datetime.date,
        at: datetime.datetime,
        span: datetime.timedelta,
        price: decimal.Decimal,
        key: uuid.UUID,
        number: complex,
    ) -> list[Any]:
        return [day, at, span, price, key, number]

    @rrpc.method
    def binary(self, data: bytes) -> bytes:
        return data[::-1]

    @rrpc.method
    def floats(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        return array * 2

    @rrpc.method
    def bytes_of(self, array: NDArray[np.uint8]) -> int:
        return int(array.sum())

    @rrpc.method
    def describe(self, array: NDArray[Any]) -> str:
        return f"{array.dtype} {array.shape}"

    @rrpc.method
    def two(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return np.arange(count), np.zeros((count, 2), np.float32)

    @rrpc.method
    def endless(self) -> list[float]:
        return [float("nan"), float("inf"), -float("inf"), 1.5]

    @rrpc.method
    def anything(self, value: Any) -> str:
        return f"{type(value).__name__} {value!r:.60}"

    @rrpc.method
    def missing(self, name: str) -> None:
        raise rrpc.NotFound(f"there is no\ntrack {name!r}")

    @rrpc.method
    def badge(self, shown: bool = True) -> dict[str, Any]:
        """What came beside the arguments; it goes back beside the result, or the error."""
        metadata = rrpc.context().metadata
        received = {name: metadata.get_all(name) for name in metadata}
        rrpc.context().set_metadata(received)
        if not shown:
            raise rrpc.PermissionDenied("no badge", details={"wanted": ["key", 7]})
        return received

    @rrpc.method
    def broken(self) -> None:
        raise KeyError("swim")


@rrpc.service
class Odd:
    @rrpc.method
    def fine(self) -> int:
        return 1

    @rrpc.method
    def mutable(self) -> bytearray:
        return bytearray(1)
