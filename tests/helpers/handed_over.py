"""Annotations that compiled plans hand over to Python, and values of each."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import pathlib
import uuid
from typing import Annotated, Any, Generic, Optional, TypedDict, TypeVar

import attrs
import numpy as np
import pydantic
from hypothesis import strategies as st
from numpy.typing import NDArray

import rrpc

T = TypeVar("T")


@attrs.define
class Sample:
    """An attrs class, with an array that may leave the message."""

    count: int = attrs.field(validator=attrs.validators.ge(0))
    data: NDArray[np.float32]


class User(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(default=3, ge=0)


class Options(TypedDict):
    verbose: bool
    level: int


@dataclasses.dataclass
class Event:
    """Has nodes of the core's, and between them one that Python reads."""

    name: str
    key: uuid.UUID
    when: dt.datetime
    tags: set[str]
    sample: Sample | None = None


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


@dataclasses.dataclass
class Tree:
    value: int
    children: list[Tree]
    parent: Optional[Tree] = None  # noqa: UP045 - a name that is resolved later


@dataclasses.dataclass
class Grid:
    """Its dimension has a name of the class's own."""

    rows: Annotated[NDArray[np.float32], rrpc.Shape("n", 2)]
    n: int


def _array(nbytes: int) -> NDArray[np.float32]:
    return np.arange(nbytes // 4, dtype=np.float32)


SIZES = st.sampled_from([0, 40, 16380, 16384, 20000])
SAMPLES = st.builds(Sample, st.integers(0, 99), SIZES.map(_array))
USERS = st.builds(User, name=st.text(), age=st.integers(0, 99))
EVENTS = st.builds(
    Event, st.text(), st.uuids(), st.datetimes(), st.sets(st.text(), max_size=5), st.none() | SAMPLES
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.builds(Tree, st.integers(0, 9), st.just([])),
    lambda inner: st.builds(Tree, st.integers(0, 9), st.lists(inner, max_size=3), st.none() | inner),
    max_leaves=5,
)
GRIDS = st.integers(0, 3).map(lambda n: Grid(np.zeros((n, 2), np.float32), n))

LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (uuid.UUID, st.uuids()),
    (dt.timedelta, st.timedeltas()),
    (pathlib.PurePosixPath, st.text("ab/.", min_size=1).map(pathlib.PurePosixPath)),
    (bytearray, SIZES.map(bytearray)),
    (memoryview, SIZES.map(bytearray).map(memoryview)),
    (np.float32, st.floats(width=32).map(np.float32)),
    (set[float | decimal.Decimal | uuid.UUID], st.sets(st.floats(allow_nan=False) | st.uuids(), max_size=40)),
    (collections.abc.Sequence[int], st.lists(st.integers(0, 9)) | st.lists(st.integers(0, 9)).map(tuple)),
    (collections.abc.Mapping[uuid.UUID, int], st.dictionaries(st.uuids(), st.integers(0, 9), max_size=32)),
    (int | uuid.UUID | bytearray, st.integers(0, 9) | st.uuids() | SIZES.map(bytearray)),
    (list[int] | list[str], st.lists(st.integers(0, 9)) | st.lists(st.text())),
    (tuple[uuid.UUID, bytearray], st.tuples(st.uuids(), SIZES.map(bytearray))),
    (Options, st.fixed_dictionaries({"verbose": st.booleans(), "level": st.integers(0, 9)})),
    (Sample, SAMPLES),
    (User, USERS),
    (Event, EVENTS),
    (Box[dt.timedelta], st.builds(Box, st.timedeltas())),
    (Tree, TREES),
    (Grid, GRIDS),
]
