"""rrpc.Borrowed in signatures: where it may stand, what it lends, and which arrays are read-only where they arrive."""

from __future__ import annotations

import collections.abc
import dataclasses
import typing
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, NewType, Optional

import numpy as np
import pytest
from compiled_plans import blocks_of
from numpy.typing import NDArray

import rrpc
from rrpc._interface import OutSpec, Parameter, Plan, interface_of, untyped_request
from rrpc._interface.mismatch import type_text
from rrpc.codec import Lent, Message

ROWS = NDArray[np.float32]
BORROWED = rrpc.Borrowed[ROWS]
SHAPED = rrpc.Borrowed[Annotated[ROWS, rrpc.Shape("n", 64)]]
LARGE = np.arange(256 * 64, dtype=np.float32).reshape(256, 64)
SMALL = np.arange(128, dtype=np.float32).reshape(2, 64)

PLACES: list[tuple[Any, Any, str]] = [
    (BORROWED, LARGE, "r"),
    (SHAPED, LARGE, "r"),
    (Annotated[BORROWED, rrpc.Shape("n", 64)], LARGE, "r"),
    (Optional[BORROWED], LARGE, "r"),  # noqa: UP045
    (BORROWED | None, LARGE, "r"),
    (NewType("Weights", BORROWED), LARGE, "r"),
    (tuple[BORROWED, ROWS], (LARGE, LARGE), "rw"),
    (tuple[ROWS, BORROWED, int], (LARGE, LARGE, 3), "wr"),
    (tuple[BORROWED, ...], (LARGE, LARGE), "rr"),
    (list[BORROWED], [LARGE, SMALL], "rr"),
    (collections.abc.Sequence[BORROWED], (LARGE, SMALL), "rr"),
    (dict[str, BORROWED], {"a": LARGE, "b": LARGE}, "rr"),
    (collections.abc.Mapping[str, BORROWED], {"a": LARGE}, "r"),
    (list[tuple[BORROWED | None, ROWS]], [(LARGE, LARGE), (None, LARGE)], "rww"),
    (rrpc.Borrowed[np.ndarray], LARGE, "r"),
]


@dataclasses.dataclass
class Around:
    rows: ROWS
    more: list[ROWS]


@dataclasses.dataclass
class Field:
    rows: BORROWED


def arrays_in(value: Any) -> Iterator[Any]:
    """Yields the arrays in a value, and in a list of buffers those that are lent."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        yield from arrays_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_in(item)


def rights(value: Any) -> str:
    return "".join("w" if array.flags.writeable else "r" for array in arrays_in(value))


def lending(buffers: Any) -> str:
    return "".join("r" if isinstance(buffer, Lent) else "w" for buffer in buffers)


def plan_for(annotation: Any, in_python: bool = False) -> Plan:
    """Returns the plan of a method with one parameter of this annotation, and a result of it."""
    plan = Plan("Lab.measure", [Parameter("a", annotation)], annotation)
    if in_python:
        plan.__dict__["_codec"] = None
    return plan


def lent(message: Any) -> Message:
    """Returns the message as if its sender lent every buffer."""
    return Message(buffer if isinstance(buffer, Lent) else Lent(buffer) for buffer in message)


@pytest.mark.parametrize(("annotation", "value", "expected"), PLACES)
@pytest.mark.parametrize("in_python", [False, True])
def test_the_signature_decides(annotation: Any, value: Any, expected: str, in_python: bool) -> None:
    plan = plan_for(annotation, in_python)
    payload, message = plan.encode_arguments((value,))
    large = "".join(r for r, array in zip(expected, arrays_in(value), strict=True) if array is LARGE)
    assert lending(message) == large
    for arrived in (
        blocks_of(message),
        blocks_of([np.asarray(b.buffer if isinstance(b, Lent) else b) for b in message]),
    ):
        (got,), _, _ = plan.decode_arguments(payload, arrived)
        assert rights(got) == expected
        assert_values(got, value)
    (got,), _, _ = plan.decode_arguments(payload, blocks_of(lent(message)))
    assert rights(got) == expected
    assert_values(got, value)

    payload, message = plan.encode_result(value)
    assert lending(message) == large
    got = plan.decode_result(payload, blocks_of(lent(message)))
    assert rights(got) == expected
    assert_values(got, value)


def assert_values(a: Any, b: Any) -> None:
    for one, other in zip(arrays_in(a), arrays_in(b), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("in_python", [False, True])
@pytest.mark.parametrize("annotation", [ROWS, Any, Annotated[ROWS, rrpc.Shape("n", 64)], np.ndarray])
def test_a_receiver_that_borrows_nothing_gets_a_copy(annotation: Any, in_python: bool) -> None:
    plan = plan_for(annotation, in_python)
    payload, message = plan.encode_arguments((LARGE,))
    blocks = blocks_of(lent(message))
    assert blocks is not None
    memory = np.frombuffer(blocks[0], np.uint8)
    (argument,), _, _ = plan.decode_arguments(payload, blocks)
    payload, _ = plan.encode_result(LARGE)
    for got in (argument, plan.decode_result(payload, blocks)):
        assert got.flags.writeable
        assert not np.shares_memory(got, memory)
        np.testing.assert_array_equal(got, LARGE)


@pytest.mark.parametrize("in_python", [False, True])
def test_a_borrowed_array_stays_in_its_block(in_python: bool) -> None:
    plan = plan_for(BORROWED, in_python)
    payload, message = plan.encode_arguments((LARGE,))
    blocks = blocks_of(message)
    assert blocks is not None
    (got,), _, _ = plan.decode_arguments(payload, blocks)
    assert np.shares_memory(got, np.frombuffer(blocks[0], np.uint8))
    with pytest.raises(ValueError, match="WRITEABLE"):
        got.flags.writeable = True  # nobody can make it so
    payload, message = plan.encode_result(LARGE)
    assert np.shares_memory(plan.decode_result(payload, blocks), np.frombuffer(blocks[0], np.uint8))


def test_what_needs_conversion_is_packed_and_not_lent() -> None:
    plan = plan_for(BORROWED)
    (buffer,) = plan.encode_arguments((LARGE[:, ::2],))[1]
    assert type(buffer) is np.ndarray


def test_what_stands_beside_borrowed_arrays_is_the_receivers_own() -> None:
    plan = Plan("Lab.measure", [Parameter("a", BORROWED), Parameter("b", Any), Parameter("c", Around)], None)
    beside = [LARGE, (LARGE, {"x": LARGE}), SMALL]
    payload, message = plan.encode_arguments((LARGE, beside, Around(LARGE, [LARGE])))
    (a, b, c), _, _ = plan.decode_arguments(payload, blocks_of(lent(message)))
    assert rights(a) == "r"
    assert rights(b) == "wwww"
    assert rights([c.rows, c.more]) == "ww"
    assert_values(b, beside)


def test_no_plan_is_compiled_that_lends_fields() -> None:
    """Annotations that nobody has verified: the codec in Python ignores the mark in a class, and so must the core."""
    plan = plan_for(Field)
    assert plan.compiled is None
    _, message = plan.encode_arguments((Field(LARGE),))
    assert lending(message) == "w"


def test_fortran_order_is_lent() -> None:
    plan = plan_for(BORROWED)
    payload, message = plan.encode_arguments((LARGE.T,))
    assert lending(message) == "r"
    (got,), _, _ = plan.decode_arguments(payload, blocks_of(message))
    assert got.flags.f_contiguous
    assert not got.flags.writeable
    np.testing.assert_array_equal(got, LARGE.T)


def test_dimensions_of_borrowed_arrays_are_checked() -> None:
    plan = plan_for(SHAPED)
    with pytest.raises(rrpc.InvalidArgument, match="dimension 1 is 3, not 64"):
        plan.encode_arguments((np.zeros((2, 3), np.float32),))
    sizes = plan.sizes_of((LARGE,))
    payload, message = plan.encode_result(LARGE, None, sizes)
    assert lending(message) == "r"
    assert rights(plan.decode_result(payload, blocks_of(message), None, sizes)) == "r"
    with pytest.raises(rrpc.Internal, match="dimension n is 2"):
        plan.encode_result(SMALL, None, sizes)


def test_out_stays_the_callers_own() -> None:
    plan = Plan("Lab.measure", [], tuple[BORROWED, BORROWED])
    out = np.zeros((64, 256), np.float32)
    payload, message = plan.encode_result((LARGE, LARGE.reshape(64, 256)), OutSpec.of(out))
    assert lending(message) == "rw"
    blocks = blocks_of(message)
    assert blocks is not None
    blocks[message.out_index] = None
    got = plan.decode_result(payload, blocks, out)
    assert got[1] is out
    assert rights(got) == "rw"


def test_defaults_are_read_only_but_stay_as_they_are() -> None:
    default = SMALL.copy()
    plan = Plan("Lab.measure", [Parameter("a", BORROWED, default)], None)
    (got,), _, _ = plan.decode_arguments(Plan("Lab.measure", [], None).encode_arguments(())[0], None)
    assert not got.flags.writeable
    assert default.flags.writeable


def test_results_that_interceptors_make_are_read_only() -> None:
    plan = Plan("Lab.measure", [], BORROWED)
    assert rights(plan.check_result(SMALL.copy(), ())) == "r"


@pytest.mark.parametrize("lend", [False, True])
def test_untyped_arguments(lend: bool) -> None:
    _, message = untyped_request([LARGE, [LARGE, SMALL]], {"b": {"c": LARGE}}, None, lend)
    assert lending(message) == ("rrr" if lend else "www")


@dataclasses.dataclass
class Inner:
    field: list[Field]


class Row(NamedTuple):
    rows: BORROWED


class Keys(typing.TypedDict):
    rows: BORROWED


T = typing.TypeVar("T")


@dataclasses.dataclass
class Box(typing.Generic[T]):
    item: T


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (rrpc.Borrowed[int], "rrpc.Borrowed is for numpy arrays, NDArray[...], not for int"),
        (rrpc.Borrowed[list[ROWS]], "rrpc.Borrowed is for numpy arrays"),
        (rrpc.Borrowed[memoryview], "rrpc.Borrowed is for numpy arrays"),
        (rrpc.Borrowed, "write what is borrowed"),
        (BORROWED | int, "an alternative can't be borrowed"),
        (set[BORROWED], "rrpc.Borrowed stands alone, or in tuples, lists and dict values"),
        (Box[BORROWED], "rrpc.Borrowed stands alone"),
        (Row, "Row.rows: a field can't be borrowed"),
        (Iterator[BORROWED], "the items of a stream can't be borrowed"),
        (Iterator[list[BORROWED]], "the items of a stream can't be borrowed"),
    ],
)
def test_where_it_can_not_stand(annotation: Any, text: str) -> None:
    def measure(self: Any) -> Any: ...

    measure.__annotations__ = {"return": annotation}
    with pytest.raises(rrpc.AnnotationError) as error:
        rrpc.service(type("Lab", (), {"measure": rrpc.method(measure)}))
    assert text in str(error.value)


@pytest.mark.parametrize(("annotation", "name"), [(Field, "Field"), (Inner, "Field"), (Keys, "Keys")])
def test_fields_can_not_be_borrowed(annotation: Any, name: str) -> None:
    def measure(self: Any, a: Any) -> None: ...

    measure.__annotations__["a"] = annotation
    service = rrpc.service(type("Lab", (), {"measure": rrpc.method(measure)}))
    interface = interface_of(service)
    assert interface is not None
    with pytest.raises(rrpc.AnnotationError, match=rf"{name}\.rows: a field can't be borrowed"):
        interface.resolved()


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (BORROWED, "rrpc.Borrowed[NDArray[float32]]"),
        (SHAPED, "rrpc.Borrowed[Annotated[NDArray[float32], rrpc.Shape('n', 64)]]"),
        (list[BORROWED], "list[rrpc.Borrowed[NDArray[float32]]]"),
    ],
)
def test_messages_name_it(annotation: Any, text: str) -> None:
    assert type_text(annotation) == text
