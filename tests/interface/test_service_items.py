"""The items of streams: what is sent for one, and what is said of one that isn't as declared."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc
from rrpc._interface import RECEIVES, SENDS, Plan
from rrpc._interface.decorators import interface_of
from rrpc._interface.stream_items import Items


@dataclass
class Row:
    id: int
    name: str = ""


@rrpc.service
class Flow:
    @rrpc.method
    def watch(self, name: str) -> Iterator[Row]:
        yield Row(1, name)

    @rrpc.method
    def add(self, rows: Iterable[Row]) -> int: ...  # type: ignore[empty-body]

    @rrpc.method
    def both(self, rows: Iterator[int]) -> AsyncIterator[str]: ...  # type: ignore[empty-body]

    @rrpc.method
    def scale(  # type: ignore[empty-body]
        self, d: int, by: Annotated[NDArray[np.float32], rrpc.Shape("d")]
    ) -> Iterator[Annotated[NDArray[np.float32], rrpc.Shape("n", "d")]]: ...

    @rrpc.method
    def plain(self, d: int) -> int: ...  # type: ignore[empty-body]


def plan(name: str) -> Plan:
    interface = interface_of(Flow)
    assert interface is not None
    method = interface.resolved().methods[name]
    return Plan(method.name, method.parameters, method.result)


def trip(items: Items, value: Any) -> Any:
    payload, buffers = items.encode(value)
    return items.decode(payload, buffers and [np.frombuffer(buffer, np.uint8) for buffer in buffers])


def test_kinds() -> None:
    kinds = {name: plan(name).kind for name in ("watch", "add", "both", "scale", "plain")}
    assert kinds == {"watch": RECEIVES, "add": SENDS, "both": SENDS | RECEIVES, "scale": RECEIVES, "plain": 0}


def test_what_is_a_stream_is_no_argument() -> None:
    add = plan("add")
    payload, _ = add.encode_arguments(())
    assert add.decode_arguments(payload, None)[0] == []
    assert add.decode_result(*add.encode_result(3)[:1], None) == 3
    watch = plan("watch")
    assert watch.decode_result(watch.encode_result(None)[0], None) is None


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (int, 1 << 70),
        (str, "é"),
        (bytes, b"b" * 100_000),
        (None, None),
        (float, 1.5),
        (Row, Row(1, "a")),
        (list[Row], [Row(1)]),
    ],
)
def test_there_and_back(annotation: Any, value: Any) -> None:
    assert trip(Items("S.m", "", annotation, None), value) == value


def test_an_int_is_a_float_where_floats_are_sent() -> None:
    value = trip(Items("S.m", "", float, None), 2)
    assert type(value) is float


def test_an_item_that_is_not_as_declared() -> None:
    add, watch = plan("add").sent, plan("watch").received
    assert add is not None
    assert watch is not None
    with pytest.raises(
        rrpc.InvalidArgument, match=r"Flow\.add\(\): an item of 'rows'\.id isn't .*: expected int, got str"
    ):
        add.encode(Row("x"))  # type: ignore[arg-type]
    with pytest.raises(rrpc.InvalidArgument, match=r"Flow\.add\(\): an item of 'rows' isn't as declared"):
        add.decode(b"\x01", None)
    with pytest.raises(rrpc.Internal, match=r"Flow\.watch\(\): an item of the result isn't as declared"):
        watch.encode(3)
    with pytest.raises(rrpc.InvalidArgument, match="a str can't be sent as UTF-8"):
        Items("S.m", "p", str, None).encode("\ud800")
    with pytest.raises(rrpc.ProtocolError):
        Items("S.m", "p", int, None).decode(b"\xc1", None)


def test_dimensions_of_items() -> None:
    scale = plan("scale")
    assert scale.received is not None
    _, message = scale.encode_arguments((3, np.zeros(3, np.float32)))
    for rows in (1, 5):  # n is each item's own
        item = np.zeros((rows, 3), np.float32)
        payload, _ = scale.received.encode(item, message.sizes)
        assert scale.received.decode(payload, None, message.sizes).shape == item.shape
    with pytest.raises(rrpc.Internal, match=r"an item of the result.*dimension d is 2, argument 'd' says 3"):
        scale.received.encode(np.zeros((1, 2), np.float32), message.sizes)
