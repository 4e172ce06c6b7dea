"""Arrow types that can be sent, and the buffers that their arrays consist of."""

from __future__ import annotations

import functools
import sys
from typing import Any, Final, NamedTuple

from rrpc.codec.advice import instead_of
from rrpc.codec.unsendable import Refused

__all__ = ["NAME", "Layout", "check_schema", "is_tabular", "layout_of", "pyarrow", "table_in"]

NAME: Final = "ArrowTable"
"""The name under which a table's parts travel."""
# A peer chooses the schema: the limits bound the time and the stack that reading it takes.
FIELDS_MAX: Final = 16_384
NESTING_MAX: Final = 32
EMPTY_ITEMS_MAX: Final = 1 << 24
"""Most items of an array that has no bytes for them, such as one of nulls."""

NULL, BITS, FIXED, BINARY, VIEW, LIST, FIXED_LIST, STRUCT, DICTIONARY, EXTENSION = range(10)


class Layout(NamedTuple):
    """Describes which buffers the arrays of a type consist of.

    ``width`` is the number of bytes of an item (``FIXED``) or of an offset (``BINARY``, ``LIST``), or the number of
    items of a list (``FIXED_LIST``).
    """

    kind: int
    width: int = 0


def pyarrow() -> Any:
    """Returns the package; ImportError says what to install."""
    try:
        import pyarrow
    except ImportError:
        raise ImportError("tables travel as Arrow: pip install rrpc-rdma[arrow]") from None
    return pyarrow


def is_tabular(kind: type) -> bool:
    """Returns whether instances of ``kind`` give their columns as Arrow's, by its C data interface."""
    return hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")


def table_in(value: Any) -> Any:
    """Returns a table, record batch or data frame of any library as a ``pyarrow.Table``, in its memory where possible.

    Raises Refused with the way to send it.
    """
    try:
        pa = pyarrow()
        if isinstance(value, pa.Table):
            return value
        if isinstance(value, pa.RecordBatch):
            return pa.Table.from_batches([value])
        if isinstance(value, pa.RecordBatchReader):
            raise Refused("a RecordBatchReader can be read once only: send .read_all()")
        if isinstance(value, getattr(sys.modules.get("pandas"), "DataFrame", ())):
            return pa.Table.from_pandas(value)
        if not hasattr(value, "columns") and not hasattr(value, "column_names"):
            raise Refused(f"{type(value).__name__} is no table{instead_of(type(value))}")
        return pa.table(value)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"{type(value).__name__} can't be sent as a table: {error}") from None


def check_schema(schema: Any) -> None:
    """Raises ValueError, with the column, for what isn't sent: types without a layout, too deep ones, too many."""
    count = 0
    for place, field in enumerate(schema):
        try:
            count += _count(field, 0)
        except UnicodeDecodeError:
            raise ValueError(f"column {place}: a name or a time zone isn't UTF-8") from None
        except ValueError as error:
            raise ValueError(f"column {field.name!r:.80}: {error}") from None
        if count > FIELDS_MAX:
            raise ValueError(f"more than {FIELDS_MAX} columns, those within others counted")


def _count(field: Any, depth: int) -> int:
    """Returns the number of fields, including this field and the nested ones.

    Raises ValueError if they are nested too deep, and UnicodeDecodeError if a name or time zone isn't UTF-8.
    """
    if depth > NESTING_MAX:
        raise ValueError(f"nested deeper than {NESTING_MAX} levels")
    kind = field.type
    # Reading them decodes them, which is where text that isn't UTF-8 is found.
    str(field.name)
    str(getattr(kind, "tz", ""))
    return 1 + sum(_count(inner, depth + 1) for inner in _inner_fields(kind))


def inner_types(kind: Any) -> list[Any]:
    """The types of the nodes within a node of this type."""
    return [field.type for field in _inner_fields(kind)]


def _inner_fields(kind: Any) -> list[Any]:
    layout = layout_of(kind)
    if layout.kind == DICTIONARY:
        return [pyarrow().field("dictionary", kind.value_type)]
    if layout.kind == EXTENSION:
        return _inner_fields(kind.storage_type)
    return [kind.field(index) for index in range(kind.num_fields)]


@functools.lru_cache(maxsize=1024)
def layout_of(kind: Any) -> Layout:
    """Returns the layout; raises ValueError where there is none."""
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return Layout(EXTENSION)
    known = _known().get(kind.id)
    if known is not None:
        return known
    if kind.id == pa.lib.Type_FIXED_SIZE_LIST:
        return Layout(FIXED_LIST, kind.list_size)
    if kind.id in _fixed():
        return Layout(FIXED, kind.bit_width // 8)
    raise ValueError(
        f"columns of type {kind!s:.80} can't be sent: cast them to a list, a struct or a primitive type"
    )


@functools.cache
def _known() -> dict[int, Layout]:
    lib = pyarrow().lib
    return {
        lib.Type_NA: Layout(NULL),
        lib.Type_BOOL: Layout(BITS),
        lib.Type_STRING: Layout(BINARY, 4),
        lib.Type_BINARY: Layout(BINARY, 4),
        lib.Type_LARGE_STRING: Layout(BINARY, 8),
        lib.Type_LARGE_BINARY: Layout(BINARY, 8),
        lib.Type_STRING_VIEW: Layout(VIEW),
        lib.Type_BINARY_VIEW: Layout(VIEW),
        lib.Type_LIST: Layout(LIST, 4),
        lib.Type_MAP: Layout(LIST, 4),
        lib.Type_LARGE_LIST: Layout(LIST, 8),
        lib.Type_STRUCT: Layout(STRUCT),
        lib.Type_DICTIONARY: Layout(DICTIONARY),
    }


@functools.cache
def _fixed() -> set[int]:
    lib = pyarrow().lib
    names = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
    names += [
        "HALF_FLOAT",
        "FLOAT",
        "DOUBLE",
        "DATE32",
        "DATE64",
        "TIME32",
        "TIME64",
        "TIMESTAMP",
        "DURATION",
    ]
    names += ["INTERVAL_MONTH_DAY_NANO", "FIXED_SIZE_BINARY"]
    names += [f"DECIMAL{bits}" for bits in (32, 64, 128, 256)]
    return {getattr(lib, f"Type_{name}") for name in names if hasattr(lib, f"Type_{name}")}
