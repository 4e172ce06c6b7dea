"""Checks of Arrow's tables and record batches, and of data frames of pandas, which travel as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rrpc.codec import ARROW_TABLE, Record, Refused, one_batch, pyarrow, table_in, table_of

from .libraries import Library
from .mismatch import AnnotationError, Check, Mismatch


def table_check(library: Library, kind: Any) -> Check:
    """Returns the check; it takes a table of any library, or the parts of one that has arrived."""
    try:
        pyarrow()
    except ImportError as error:
        raise AnnotationError(f"{library.full_name}: {error}") from None
    made = _MADE[library.name]
    expected = library.full_name

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        try:
            if type(value) is not Record:
                table = table_in(value)
            elif value.type_name == ARROW_TABLE:
                table = table_of(value)
            else:
                raise Mismatch(expected, value)
            return made(table)
        except Refused as refused:
            raise Mismatch(expected, value, refused.reason) from None
        except ValueError as error:
            raise Mismatch(expected, value, str(error)) from None

    return check


def _frame(table: Any) -> Any:
    try:
        return table.to_pandas()
    except Exception as error:  # what pandas' metadata may say is the peer's
        raise ValueError(f"pandas makes no data frame of it: {error}") from None


_MADE: dict[str, Callable[[Any], Any]] = {
    "Table": lambda table: table,
    "RecordBatch": one_batch,
    "DataFrame": _frame,
}
