"""Plain calls whose signatures have types that Python packs and reads: only these run Python of rrpc's."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pydantic
import pytest
from direct import FOLDER, python_run
from flow import generated
from numpy.typing import NDArray

import rrpc
from rrpc._interface.compiled import PURE_PYTHON

pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="all calls go through Python")
ADDRESS = f"shm://rrpc-handed-over-{os.getpid()}"
NOW = dt.datetime(2026, 11, 28, 12, 30, tzinfo=dt.UTC)


class User(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2)
    age: int = pydantic.Field(default=3, ge=0)


@attrs.define
class Sample:
    count: int = attrs.field(validator=attrs.validators.ge(0))
    data: NDArray[np.float64]


@rrpc.service
class Store:
    @rrpc.method
    def mark(self, a: int, when: dt.datetime, tags: set[str], *, weight: complex = 1j) -> dt.datetime:
        assert (type(when), type(tags), weight) == (dt.datetime, set, 1j)
        return when + dt.timedelta(a)

    @rrpc.method
    def name(self, key: uuid.UUID, numbers: list[float]) -> dict[uuid.UUID, float]:
        return {key: sum(numbers)}

    @rrpc.method
    def average(self, a: float, sample: Sample, more: NDArray[np.float64]) -> Sample:
        return Sample(sample.count + 1, sample.data * a + more)

    @rrpc.method
    def meet(self, user: User, wrong: bool) -> User:
        return {"name": "x", "age": -1} if wrong else user  # type: ignore[return-value]


store_rpc = generated(Store, "store_rpc")


@pytest.fixture(name="client")
def client_fixture() -> Iterator[Any]:
    with (
        rrpc.Server(Store(), listen=ADDRESS, workers=2) as server,
        store_rpc.StoreClient(server.addresses[0], timeout=30.0) as client,
    ):
        yield client


def test_no_python_runs_for_times_and_sets(client: Any) -> None:
    def call() -> None:
        assert client.mark(1, NOW, {"a", "b"}) == NOW + dt.timedelta(1)

    call()
    assert python_run(call) == set()


def test_python_runs_for_the_part_alone(client: Any) -> None:
    key = uuid.uuid4()

    def call() -> None:
        assert client.name(key, [1.0, 2.0]) == {key: 3.0}

    call()
    ran = {function.removeprefix(FOLDER + "/").partition(":")[0] for function in python_run(call)}
    assert "_interface/handed_over.py" in ran
    assert {name.partition("/")[0] for name in ran} == {"_interface", "codec"}
    assert "_interface/plan.py" not in ran


@pytest.mark.parametrize("size", [3, 3000])
def test_arrays_of_both_kinds_in_one_call(client: Any, size: int) -> None:
    sample = client.average(2.0, store_rpc.Sample(1, np.arange(float(size))), np.ones(size))
    assert sample.count == 2
    np.testing.assert_array_equal(sample.data, np.arange(float(size)) * 2 + 1)


def test_errors_of_users_classes(client: Any) -> None:
    assert client.meet(store_rpc.User(name="Ann", age=3), False) == store_rpc.User(name="Ann", age=3)
    with pytest.raises(rrpc.InvalidArgument, match=r"argument 'user': expected User.*at least 2 characters"):
        client.meet(store_rpc.User(name="x", age=3), False)
    with pytest.raises(
        rrpc.InvalidArgument, match=r"argument 'user': expected User.*greater than or equal to 0"
    ):
        client.meet(store_rpc.User(name="Ann", age=-3), False)
    with pytest.raises(rrpc.Internal, match=r"the result isn't as declared: expected User.*name: .*age: "):
        client.meet(store_rpc.User(name="Ann", age=3), True)
    with pytest.raises(
        rrpc.InvalidArgument, match=r"argument 'sample': expected Sample.*'count' must be >= 0"
    ):
        client.average(2.0, store_rpc.Sample(-1, np.zeros(3)), np.ones(3))
