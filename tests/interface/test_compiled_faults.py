"""Compiled plans: what is left to Python, what isn't lost, and what a peer can't do."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Annotated, Any

import numpy as np
import pytest
from compiled_plans import (
    DTYPES,
    Point,
    blocks_of,
    plan_of,
)
from numpy.typing import NDArray

import rrpc
from rrpc import _core
from rrpc._interface import MISSING, Parameter, Plan
from rrpc._interface.compiled import PURE_PYTHON

pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="the codec in Python does it all")


@pytest.mark.parametrize(
    "blocks",
    [None, [], [None], [bytearray(8)], [bytearray(65535)]],
    ids=["none", "empty", "gone", "short", "odd"],
)
def test_bulk_array_without_its_block_is_left(blocks: Any) -> None:
    plan, compiled = plan_of(NDArray[np.float32])
    payload, _ = plan.encode_arguments((np.zeros(16384, np.float32),))
    assert compiled.read_arguments(payload, blocks) is None


def test_two_arrays_never_share_a_block() -> None:
    plan, compiled = plan_of(NDArray[np.float32], NDArray[np.float32])
    payload, message = plan.encode_arguments((np.zeros(16384, np.float32),) * 2)
    twice = payload.replace(b"\x02\x01\x00\x00\x00", b"\x02\x00\x00\x00\x00")
    assert twice != payload
    assert compiled.read_arguments(twice, blocks_of(message)) is None
    with pytest.raises(rrpc.ProtocolError, match="stands for two values"):
        plan.decode_arguments(twice, blocks_of(message))


def test_bulk_array_stands_in_its_block() -> None:
    _, compiled = plan_of(NDArray[np.float32])
    packed = compiled.pack_arguments((np.arange(16384, dtype=np.float32),))
    assert packed is not None
    block: Any = _core.allocate(65536)
    read = compiled.read_arguments(packed[0], [block])
    assert read is not None
    read[0][5] = 7
    assert memoryview(block).cast("f")[5] == 7
    assert read[0].base is block


@pytest.mark.parametrize(
    "payload", ["91d1012c", "91d200010000", "91d37fffffffffffffff", "91d0ff", "91cd0100"]
)
def test_ranges_hold_in_every_format_of_an_int(payload: str) -> None:
    _, compiled = plan_of(rrpc.u8)
    assert compiled.read_arguments(bytes.fromhex(payload), None) is None
    assert compiled.read_arguments(bytes.fromhex("91d0") + b"\x7f", None) == [127]


def test_a_size_below_zero() -> None:
    rows = Annotated[NDArray[np.float32], rrpc.Shape("n")]
    plan = Plan("Lab.m", [Parameter("n", int, MISSING), Parameter("a", rows, MISSING)], None)
    assert plan.compiled is not None
    assert plan.compiled.pack_arguments((-(1 << 63), np.zeros(3, np.float32))) is None


@dataclasses.dataclass
class Raises:
    error: str

    def __post_init__(self) -> None:
        raise {"stop": KeyboardInterrupt, "value": ValueError, "key": KeyError, "": MemoryError}[self.error]()


@pytest.mark.parametrize(
    ("error", "raised"), [("stop", KeyboardInterrupt), ("key", KeyError), ("", MemoryError)]
)
def test_what_a_constructor_raises_is_not_lost(error: str, raised: type[BaseException]) -> None:
    _, compiled = plan_of(Raises)
    record = object.__new__(Raises)
    record.error = error
    packed = compiled.pack_arguments((record,))
    assert packed is not None
    with pytest.raises(raised):
        compiled.read_arguments(packed[0], None)


def test_what_a_constructor_refuses_is_pythons() -> None:
    plan, compiled = plan_of(Raises)
    record = object.__new__(Raises)
    record.error = "value"
    packed = compiled.pack_arguments((record,))
    assert packed is not None
    assert compiled.read_arguments(packed[0], None) is None
    with pytest.raises(rrpc.InvalidArgument, match="argument 'a0': expected Raises"):
        plan.decode_arguments(packed[0], None)


def test_a_peer_cannot_fill_the_table_of_dtypes() -> None:
    plan, compiled = plan_of(np.ndarray)
    payload, _ = plan.encode_arguments((np.zeros(2, np.float32),))
    odd = payload.replace(b"<f4", b"|f4")
    assert odd != payload
    for _ in range(100):
        compiled.read_arguments(odd, None)
    for kind in DTYPES:
        assert compiled.pack_arguments((np.zeros(2, kind),)) is not None


def test_annotations_that_would_take_too_many_nodes() -> None:
    kind: Any = Point
    for level in range(8):
        fields = [(f"f{i}", kind) for i in range(4)]
        kind = dataclasses.make_dataclass(f"Level{level}", fields)
    assert Plan("Lab.m", [Parameter("a", kind, MISSING)], None).compiled is None
    huge = Annotated[NDArray[np.float32], rrpc.Shape(1 << 63)]
    assert Plan("Lab.m", [Parameter("a", huge, MISSING)], None).compiled is None


def test_without_it_everything_works() -> None:
    code = """
import numpy as np, rrpc
from rrpc._interface.compiled import PURE_PYTHON
assert PURE_PYTHON

@rrpc.service
class Lab:
    @rrpc.method
    def add(self, a: int, b: int = 2) -> int:
        return a + b

with rrpc.Server(Lab(), listen="tcp://127.0.0.1:0") as server, rrpc.connect(server.addresses[0]) as client:
    print(client.call("Lab.add", 40))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RRPC_PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("42\n", "")
