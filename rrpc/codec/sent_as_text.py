"""Types whose values are sent as texts in extensions: dates, times and decimal numbers."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any, Final

from . import wire

SENT_AS_TEXT: Final[dict[type, tuple[int, Callable[[Any], str], Callable[[str], Any]]]] = {
    datetime.datetime: (wire.DATETIME, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: (wire.DATE, datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: (wire.TIME, datetime.time.isoformat, datetime.time.fromisoformat),
    decimal.Decimal: (wire.DECIMAL, str, decimal.Decimal),
}
"""Per type the code of its extension, the function that makes the text of a value, and the one that reads it."""
