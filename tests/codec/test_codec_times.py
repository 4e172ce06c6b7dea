"""Subclasses of datetime and timedelta: sent where the base class holds them exactly, refused otherwise."""

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rrpc
from rrpc.codec import Message, Refused, decode, encode


class Timestamp(datetime.datetime):
    """As much of pandas.Timestamp as its text and its nanoseconds."""

    nanosecond: float = 0

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        text = super().isoformat(sep, "microseconds" if self.nanosecond else timespec)
        return f"{text}{self.nanosecond:03}" if self.nanosecond else text


class NotATime(Timestamp):
    """pandas.NaT."""

    nanosecond = math.nan

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        return "NaT"


class Far(Timestamp):
    """A pandas.Timestamp after the year 9999: the fields of its base class mean nothing."""

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        return "20000-01-01T00:00:00"


class Timedelta(datetime.timedelta):
    """As much of pandas.Timedelta."""

    nanoseconds = 0


class Long(Timedelta):
    """A pandas.Timedelta longer than a timedelta can be."""

    days = 10**10


def through(value: Any) -> Any:
    message = Message()
    return decode(encode(value, message), list(message))


def with_nanoseconds(value: Any, name: str) -> Any:
    setattr(value, name, 7)
    return value


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: with_nanoseconds(Timestamp(2024, 1, 1), "nanosecond"), r"nanoseconds.*to_datetime64\(\)"),
    (lambda: NotATime(1, 1, 1), "NaT isn't a time that a datetime can hold"),
    (lambda: Far(1970, 1, 1), "20000-01-01T00:00:00 isn't a time"),
    (lambda: with_nanoseconds(Timedelta(1), "nanoseconds"), r"nanoseconds.*to_timedelta64\(\)"),
    (lambda: Long(1), "longer than a timedelta can be"),
]


@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_what_the_base_class_cannot_hold_is_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(Refused, match=why) as raised:
        through({"at": [make()]})
    assert raised.value.path == ["['at']", "[0]"]


def test_what_the_base_class_holds_is_sent() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    fields = (2024, 2, 29, 23, 59, 59, 999_999, zone)
    assert through(Timestamp(*fields)) == datetime.datetime(*fields)
    assert through(Timedelta(-1, 5, 999)) == datetime.timedelta(-1, 5, 999)


def test_pandas_itself() -> None:
    pandas = pytest.importorskip("pandas")
    exact = pandas.Timestamp("2024-01-01 00:00:00.123456", tz="UTC")
    assert through(exact) == exact.to_pydatetime()
    finer = pandas.Timestamp("2024-01-01 00:00:00.123456789")
    for value in (finer, pandas.NaT, pandas.Timedelta(999, "ns")):
        with pytest.raises(Refused):
            through(value)
    assert pandas.Timestamp(through(finer.to_datetime64())) == finer


def test_a_refused_time_ends_no_other_call(address: str) -> None:
    @rrpc.service
    class Clock:
        @rrpc.method
        def shown(self, at: datetime.datetime) -> str:
            return str(at)

        @rrpc.method
        def never(self) -> datetime.datetime:
            return NotATime(1, 1, 1)

        @rrpc.method
        def exact(self, at: np.datetime64) -> np.datetime64:
            return at

    with rrpc.serve(Clock(), listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        with pytest.raises(rrpc.InvalidArgument, match="NaT isn't a time"):
            client.call("Clock.shown", NotATime(1, 1, 1))
        with pytest.raises(rrpc.Internal, match="NaT isn't a time"):
            client.call("Clock.never")
        finest = np.datetime64("2024-01-01T00:00:00.123456789")
        assert client.call("Clock.exact", finest) == finest
        assert client.call("rrpc.Health.check") is not None
        assert server.stats()["connections"] == 1
