"""Subclasses of datetime and timedelta that hold more than these can; pandas is never imported for that."""

from __future__ import annotations

import datetime


def why_inexact(value: datetime.datetime | datetime.timedelta) -> str:
    """Returns why ``value`` can't be sent as a datetime or timedelta without loss; "" where it can.

    pandas.Timestamp and pandas.Timedelta count nanoseconds and reach further than their base classes, and pandas.NaT
    is a datetime to isinstance().
    """
    return _datetime(value) if isinstance(value, datetime.datetime) else _timedelta(value)


def _datetime(value: datetime.datetime) -> str:
    text = value.isoformat()
    if getattr(value, "nanosecond", 0) > 0:  # of NaT it is a nan
        return (
            f"{text} has nanoseconds, which a datetime can't hold: send a numpy.datetime64 "
            "(value.to_datetime64()), or round it (value.floor('us'))"
        )
    # NaT and years that a datetime doesn't reach have no text that this takes.
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return f"{text} isn't a time that a datetime can hold: send a numpy.datetime64, or None"
    return ""


def _timedelta(value: datetime.timedelta) -> str:
    if getattr(value, "nanoseconds", 0) > 0:
        return (
            f"{value!s} has nanoseconds, which a timedelta can't hold: send a numpy.timedelta64 "
            "(value.to_timedelta64()), or round it (value.floor('us'))"
        )
    try:
        datetime.timedelta(value.days, value.seconds, value.microseconds)
    except OverflowError:
        return f"{value!s} is longer than a timedelta can be: send a numpy.timedelta64"
    return ""
