"""Parts of signatures that compiled plans hand over to Python: what they give and raise is what plans in Python do."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import gc
import sys
import uuid
from collections.abc import Callable
from typing import Annotated, Any

import attrs
import numpy as np
import pydantic
import pytest
from compiled_plans import ANYTHING, TYPED, TYPES, Color, Pair, assert_same, blocks_of, plan_of
from handed_over import Event, Sample, User
from hypothesis import given, settings
from hypothesis import strategies as st
from made import examples
from numpy.typing import NDArray

import rrpc
from rrpc._interface import MISSING, Parameter, Plan
from rrpc._interface.compiled import PURE_PYTHON

pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="the codec in Python does it all")

KEY = uuid.UUID(int=7)
NOW = dt.datetime(2026, 11, 28, 12, 30, tzinfo=dt.UTC)


def two_plans(annotation: Any) -> tuple[Plan, Plan]:
    """Returns the plan of a method with its compiled part, and one that does all of it in Python."""
    pure, _ = plan_of(annotation, int, result=annotation)
    mixed = Plan("Lab.measure", pure.declared, annotation)
    assert mixed.compiled is not None
    return mixed, pure


def outcome(run: Callable[[], Any]) -> tuple[Any, str]:
    """Returns what a call gives, or the error's class, with its text and that of its cause."""
    try:
        return run(), ""
    except Exception as error:
        return type(error), f"{error} / {error.__cause__} / {error.__suppress_context__}"


def assert_same_outcome(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    (found, text), (wanted, wanted_text) = outcome(one), outcome(other)
    assert text == wanted_text
    assert_same(found, wanted)


@settings(max_examples=examples(300))
@given(TYPES, ANYTHING)
def test_other_values_end_alike(pair: tuple[Any, Any], value: Any) -> None:
    mixed, pure = two_plans(pair[0])
    assert_same_outcome(
        lambda: mixed.encode_arguments((value, 1))[0], lambda: pure.encode_arguments((value, 1))[0]
    )
    assert_same_outcome(lambda: mixed.encode_result(value)[0], lambda: pure.encode_result(value)[0])


@settings(max_examples=examples(500))
@given(TYPED, st.data())
def test_malformed_payloads_end_alike(typed: tuple[Any, Any], data: st.DataObject) -> None:
    mixed, pure = two_plans(typed[0])
    payload, message = pure.encode_arguments((typed[1], 1))
    at = data.draw(st.integers(0, len(payload)))
    change = data.draw(st.binary(max_size=3))
    cut = data.draw(st.integers(0, 3))
    broken = payload[:at] + change + payload[at + cut :]
    assert_same_outcome(
        lambda: mixed.decode_arguments(broken, blocks_of(message))[0],
        lambda: pure.decode_arguments(broken, blocks_of(message))[0],
    )


@settings(max_examples=examples(300))
@given(TYPES, ANYTHING)
def test_other_payloads_end_alike(pair: tuple[Any, Any], value: Any) -> None:
    loose = Plan("Lab.measure", [Parameter(name, Any, MISSING) for name in "ab"], Any)
    try:
        payload, message = loose.encode_arguments((value, 1))
        answer, given = loose.encode_result(value)
    except (rrpc.InvalidArgument, rrpc.Internal):
        return
    mixed, pure = two_plans(pair[0])
    assert_same_outcome(
        lambda: mixed.decode_arguments(payload, blocks_of(message))[0],
        lambda: pure.decode_arguments(payload, blocks_of(message))[0],
    )
    assert_same_outcome(
        lambda: mixed.decode_result(answer, blocks_of(given)),
        lambda: pure.decode_result(answer, blocks_of(given)),
    )


@pytest.mark.parametrize("levels", range(120, 132))
def test_nesting_ends_at_the_same_level(levels: int) -> None:
    """A part that stands within others is as deep as it would be there."""
    nested: Any = 1
    for _ in range(levels):
        nested = {"a": nested}
    mixed, pure = two_plans(tuple[int, collections.abc.Mapping[str, Any]])
    assert_same_outcome(
        lambda: mixed.encode_arguments(((1, nested), 1))[0],
        lambda: pure.encode_arguments(((1, nested), 1))[0],
    )


def test_only_the_part_that_the_core_has_no_node_for_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def hands_over(annotation: Any, depth: int) -> Any:
        given.append((annotation, depth))
        return handed_over(annotation, depth)

    module = sys.modules["rrpc._interface.compiled"]
    handed_over = module.handed_over
    monkeypatch.setattr(module, "handed_over", hands_over)
    cases: list[tuple[Any, list[Any]]] = [
        (uuid.UUID, [(uuid.UUID, 0)]),
        (tuple[int, list[uuid.UUID]], [(list[uuid.UUID], 1)]),
        (dict[str, Sample | None] | int, [(dict[str, Sample | None] | int, 0)]),
        (dict[uuid.UUID, int], [(dict[uuid.UUID, int], 0)]),
        (list[tuple[int, uuid.UUID | None]], [(uuid.UUID, 2)]),
        (list[Event], [(uuid.UUID, 2), (Sample, 2)]),
        (int | uuid.UUID | str, [(int | uuid.UUID | str, 0)]),
        (set[int | uuid.UUID], [(set[int | uuid.UUID], 0)]),
        (set[Color], [(set[Color], 0)]),
        (frozenset[tuple[Pair, int]], [(frozenset[tuple[Pair, int]], 0)]),
        (Annotated[int, "noted"] | None, []),
        (dt.datetime | complex | None, []),
        (dict[str, set[tuple[dt.date, int]]], []),
    ]
    for annotation, parts in cases:
        given.clear()
        assert Plan("Lab.m", [Parameter("a", annotation, MISSING)], None).compiled is not None
        # What was tried and then given up for the whole around it comes before it.
        assert given[len(given) - len(parts) :] == parts, annotation
        assert bool(given) == bool(parts)


def test_what_concerns_other_arguments_is_not_handed_over() -> None:
    for annotation in (
        collections.abc.Sequence[Annotated[NDArray[np.float32], rrpc.Shape("n")]],
        collections.abc.Sequence[rrpc.Borrowed[NDArray[np.float32]]],
    ):
        assert Plan("Lab.m", [Parameter("a", annotation, MISSING)], None).compiled is None
    rows = Annotated[NDArray[np.float32], rrpc.Shape("n")]
    sized = [Parameter("rows", rows, MISSING), Parameter("n", int | rrpc.u8, MISSING)]
    assert Plan("Lab.m", sized, None).compiled is None


def test_buffers_of_both_kinds_are_numbered_in_one_row() -> None:
    large, inline = np.arange(5000.0, dtype=np.float32), np.arange(5.0, dtype=np.float32)
    annotations = (NDArray[np.float32], Sample, bytearray, NDArray[np.float32], list[Sample])
    values = (large, Sample(1, large + 1), bytearray(20000), large + 2, [Sample(2, inline), Sample(3, large)])
    plan, compiled = plan_of(*annotations)
    packed = compiled.pack_arguments(values)
    payload, message = plan.encode_arguments(values)
    assert packed is not None
    assert packed[0] == payload
    assert packed[1] is not None
    assert [len(memoryview(buffer).cast("B")) for buffer in packed[1]] == [20000] * 5
    read = compiled.read_arguments(payload, blocks_of(message))
    assert read is not None
    assert_same(read, list(values))


@pytest.mark.parametrize("order", [(0, 0), (1, 1), (1, 0), (0, 2), (2, 1), (9, 0)])
def test_a_block_stands_for_one_value(order: tuple[int, int]) -> None:
    """A peer may number its buffers as it likes, but each stands for one value, whoever reads them."""
    mixed, pure = two_plans(tuple[bytearray, NDArray[np.uint8]])
    payload, _ = pure.encode_arguments(((bytearray(16384), np.zeros(16384, np.uint8)), 1))
    bulk = payload.replace(b"\x04\x00\x00\x00\x00", b"\x04%c\x00\x00\x00" % order[0])
    bulk = bulk.replace(b"\x02\x01\x00\x00\x00", b"\x02%c\x00\x00\x00" % order[1])
    assert bulk != payload

    def blocks() -> list[Any]:
        return [memoryview(bytearray([number]) * 16384) for number in range(3)]

    assert_same_outcome(
        lambda: mixed.decode_arguments(bulk, blocks())[0], lambda: pure.decode_arguments(bulk, blocks())[0]
    )


class Stop(BaseException):
    pass


ERRORS: dict[str, type[BaseException]] = {
    "value": ValueError,
    "type": TypeError,
    "key": KeyError,
    "memory": MemoryError,
    "rpc": rrpc.NotFound,
    "stop": Stop,
}


def _judge(name: str) -> str:
    if name in ERRORS:
        raise ERRORS[name](f"no {name}")
    return name


@attrs.define
class Judged:
    name: str = attrs.field(converter=_judge)


class Validated(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def _check(cls, name: str) -> str:
        return _judge(name)


@dataclasses.dataclass
class Holder:
    number: int
    judged: Judged | None = None
    validated: Validated | None = None


@pytest.mark.parametrize("kind", [Judged, Validated])
@pytest.mark.parametrize("name", ["value", "type", "key", "memory", "rpc", "fine"])
def test_errors_of_users_classes_are_those_of_a_plan_in_python(kind: Any, name: str) -> None:
    for annotation in (kind, Holder):
        value: Any = {"name": name}
        if annotation is Holder:
            value = {"number": 1, kind.__name__.lower(): value}
        assert_alike(annotation, value)
        assert_alike(annotation, _record(annotation, value))


def assert_alike(annotation: Any, value: Any) -> None:
    """Holds both plans to the same outcome for a value, as it is packed and as it arrives."""
    mixed, pure = two_plans(annotation)
    loose = Plan("Lab.measure", [Parameter(name, Any, MISSING) for name in "ab"], Any)
    payload, _ = loose.encode_arguments((value, 1))
    answer, _ = loose.encode_result(value)
    assert_same_outcome(
        lambda: mixed.decode_arguments(payload, None)[0], lambda: pure.decode_arguments(payload, None)[0]
    )
    assert_same_outcome(lambda: mixed.decode_result(answer, None), lambda: pure.decode_result(answer, None))
    assert_same_outcome(
        lambda: mixed.encode_arguments((value, 1))[0], lambda: pure.encode_arguments((value, 1))[0]
    )


def _record(kind: Any, members: dict[str, Any]) -> rrpc.Record:
    record = rrpc.Record(
        {
            name: _record({"judged": Judged, "validated": Validated}[name], member)
            if isinstance(member, dict)
            else member
            for name, member in members.items()
        }
    )
    record.type_name = kind.__name__
    if kind is Holder:
        record.setdefault("judged", None)
        record.setdefault("validated", None)
        for name in ("number", "judged", "validated"):  # in the order of its class, which the core reads
            record[name] = record.pop(name)
    return record


def test_what_is_no_exception_is_not_lost() -> None:
    plan, compiled = plan_of(int, Judged)
    loose = Plan("Lab.measure", [Parameter(name, Any, MISSING) for name in "ab"], None)
    payload, _ = loose.encode_arguments((1, _record(Judged, {"name": "stop"})))
    for read in (plan.decode_arguments, compiled.read_arguments):
        with pytest.raises(Stop, match="no stop"):
            read(payload, None)
    with pytest.raises(Stop, match="no stop"):
        compiled.pack_arguments((1, {"name": "stop"}))


def test_containers_that_change_while_they_are_packed() -> None:
    around: list[Any] = []

    class Meddler(pydantic.BaseModel):
        what: str

        @pydantic.model_serializer
        def _dump(self) -> dict[str, Any]:
            container = around[0]
            if self.what == "clear":
                container.clear()
            elif isinstance(container, list):
                container.append(container[0])
            else:
                container[f"more {len(container)}"] = (1, self)
            return {"what": self.what}

    for what in ("clear", "grow"):
        meddler = Meddler(what=what)
        for annotation, container in [
            (list[tuple[int, Meddler]], [(1, meddler), (2, meddler)]),
            (dict[str, tuple[int, Meddler]], {"a": (1, meddler), "b": (2, meddler)}),
        ]:
            around[:] = [container]
            _, compiled = plan_of(annotation)
            assert compiled.pack_arguments((container,)) is None, (what, annotation)


def test_sets_that_change_while_they_are_packed() -> None:
    changing: set[dt.datetime] = set()

    class Zone(dt.tzinfo):
        def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
            changing.clear()
            return dt.timedelta(0)

        def dst(self, when: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta(0)

        def tzname(self, when: dt.datetime | None) -> str:
            return "changing"

    _, compiled = plan_of(set[dt.datetime])
    changing.update([NOW, NOW + dt.timedelta(1), NOW + dt.timedelta(2)])
    fine = set(changing)
    packed = compiled.pack_arguments((fine,))
    assert packed is not None
    changing.add(dt.datetime(2026, 1, 1, tzinfo=Zone()))
    changing.update(fine)
    assert compiled.pack_arguments((changing,)) is None


def test_a_class_that_uses_the_same_plan_while_it_is_read() -> None:
    plans: list[Any] = []

    @attrs.define
    class Again:
        level: int

        def __attrs_post_init__(self) -> None:
            if plans and self.level > 0:
                packed = plans[0].pack_arguments((0, Again(0), {"a": KEY}))
                assert plans[0].read_arguments(packed[0], None) == [0, Again(0), {"a": KEY}]

    _, compiled = plan_of(int, Again, dict[str, uuid.UUID])
    plans.append(compiled)
    values = (5, Again(3), {"b": KEY})
    packed = compiled.pack_arguments(values)
    assert packed is not None
    assert compiled.read_arguments(packed[0], None) == list(values)


def test_nothing_is_kept() -> None:
    """Neither of values that were packed or read, nor of those where that ended in between."""
    _, compiled = plan_of(User, Sample, set[dt.datetime], Judged)
    loose = Plan("Lab.measure", [Parameter(name, Any, MISSING) for name in "abcd"], None)
    sample = Sample(1, np.zeros(5000, np.float32))
    good = (User(name="a"), sample, {NOW}, Judged("fine"))
    bad = (*good[:3], _record(Judged, {"name": "key"}))
    refused = (*good[:3], KEY)
    packed = compiled.pack_arguments(good)
    payload, message = loose.encode_arguments(bad)
    assert packed is not None

    def work() -> None:
        block: Any = memoryview(bytearray(20000))
        assert compiled.pack_arguments(good) is not None
        assert compiled.pack_arguments(refused) is None
        assert compiled.read_arguments(packed[0], [block]) is not None
        with pytest.raises(KeyError):
            compiled.read_arguments(payload, blocks_of(message))

    def count() -> tuple[int, ...]:
        gc.collect()
        watched = (*good, KEY, NOW, sample.data, Judged, User)
        return (*map(sys.getrefcount, watched), len(gc.get_objects()))

    for _ in range(3):
        work()
    before = count()
    for _ in range(200):
        work()
    after = count()
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) < 50, (before, after)


def test_a_set_of_items_whose_hashes_collide_is_refused() -> None:
    """The core builds sets by itself, and is as careful as the decoder."""
    colliding = [complex(1000003.0 * (5000 - i), i) for i in range(1, 3001)]
    assert len({*map(hash, colliding)}) == 1
    loose = Plan("Lab.measure", [Parameter("a", Any, MISSING)], None)
    plan, compiled = plan_of(set[complex])
    for items, fine in [(colliding, False), (colliding[:30], True), ([i * 1j for i in range(3000)], True)]:
        payload, _ = loose.encode_arguments((tuple(items),))
        hostile = payload.replace(b"\xc7\x00\x10", b"\xc7\x00\x11", 1)
        assert hostile != payload
        if fine:
            assert compiled.read_arguments(hostile, None) == [set(items)]
            continue
        assert compiled.read_arguments(hostile, None) is None
        with pytest.raises(rrpc.ProtocolError, match="a set of 3000 items whose hashes collide"):
            plan.decode_arguments(hostile, None)
