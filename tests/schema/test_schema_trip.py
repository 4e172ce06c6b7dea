"""From a Python service to an .rrpc file, and back by way of live classes: the same interface all along."""

import collections.abc
import datetime
import enum
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc
from rrpc import Shape, idl
from rrpc.schema import Service, module_of, service_of
from rrpc.schema.fingerprints import fingerprint
from rrpc.schema.to_python import to_interface


class Metric(enum.IntEnum):
    """How near."""

    L2 = 1
    COSINE = 2


class Unit(str, enum.Enum):
    METRE = "m"


@dataclass
class Line:
    up: list["Row"]
    left: "Line | None" = None


@dataclass(frozen=True)
class Row:
    """One row.

    Deprecated: use Line
    """

    id: rrpc.u64
    line: Line
    tags: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    pair: tuple[int, str] = (1, 'a"\n')
    scale: float = 1
    far: float = float("inf")
    blob: bytes = b"\0x"
    metric: Metric = Metric.COSINE
    rrpc_numbers: ClassVar[dict[str, int]] = {"line": 50}
    rrpc_reserved: ClassVar[tuple[int | str, ...]] = (30, "old")


@rrpc.service(name="lab.Desk")
class Desk:
    """A desk.

    Deprecated: use a table
    """

    @rrpc.method
    def put(
        self,
        a: int,
        /,
        metric: Metric = Metric.L2,
        names: tuple[str, ...] = ("a", "b"),
        *,
        unit: Unit = Unit.METRE,
        rows: list[Metric] = [Metric.L2],  # noqa: B006
        numbers: dict[str, int] = {"a": 1},  # noqa: B006
        choice: Literal["a", 3, None] = None,
        other: int | str | None = None,
        array: Annotated[NDArray[np.float32], Shape("n", 3, None)] | None = None,
        big: rrpc.u64 = 2**64 - 1,
        small: rrpc.i8 = -3,
        single: rrpc.f32 = 0.5,
    ) -> list[Row | Line] | None:
        """Puts."""

    @rrpc.method(idempotent=True)
    def more(
        self,
        a: frozenset[str],
        b: memoryview,
        c: tuple[()],
        d: datetime.timedelta,
        e: Any,
        f: NDArray[Any],
        g: Annotated[NDArray[np.bool_], Shape()],
    ) -> None: ...

    @rrpc.method
    def flow(self, rows: collections.abc.Iterator[int]) -> collections.abc.Iterator[Row]:
        raise NotImplementedError


def _through_text(service: Service) -> Service:
    return idl.parse(idl.print_module(module_of([service]))).services[service.name]


def test_python_to_text_to_python_is_the_same_interface() -> None:
    desk = service_of(Desk)
    read = _through_text(desk)
    assert read == desk
    assert list(read.declarations) == list(desk.declarations)
    again = service_of(to_interface(read))
    assert again == desk
    assert fingerprint(again) == fingerprint(desk)
    assert idl.print_module(module_of([again])) == idl.print_module(module_of([Desk]))


class Flags(enum.Flag):
    ONE = 1


class Pair(typing.NamedTuple):
    a: int


@pytest.mark.parametrize(
    "annotation", [Flags, Pair, bytearray, np.float32, list[np.int8], NDArray[np.floating[Any]]], ids=str
)
def test_what_only_python_has_is_served_and_refused_by_name_in_text(annotation: Any) -> None:
    @rrpc.service
    class Odd:
        @rrpc.method
        def m(self, a: Any) -> None: ...

    Odd.m.__annotations__["a"] = annotation
    rrpc.service(Odd)
    odd = service_of(Odd)
    assert len(fingerprint(odd)) == 32
    with pytest.raises(rrpc.AnnotationError, match=r"Odd\.m\(\): parameter 'a'"):
        _through_text(odd)
