"""numpy dtypes as bytes and back.

An unstructured dtype is its numpy string in ASCII (``<f4``, ``>i8``, ``<M8[ns]``, ``|S5``), one of the package
ml_dtypes ``<`` and its name (``<bfloat16``, ``<float8_e4m3fn``, ``<int4``, whose items take a byte each). A structured
one is MessagePack: ``[itemsize, aligned, [[name, title or nil, offset, description, [dimension, ...]], ...]]``.
Python objects and anything without a fixed size have no description.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgpack
import numpy as np

from rrpc.errors import FailedPrecondition

# A description has to match before numpy sees it, as numpy takes many texts more, objects among them.
_TEXT = re.compile(
    rb"[<>|](?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?|[SUV]\d{1,9})"
)
_ML_MODULE = "ml_dtypes"
_ML = re.compile(rb"<(bfloat16|b?complex32|float[468]_[a-z0-9]{1,16}|u?int[124])")
_MAX_NESTING = 16
_CACHE_LIMIT = 1024

_K = TypeVar("_K")
_V = TypeVar("_V")

_described: dict[np.dtype[Any], bytes] = {}
_parsed: dict[bytes, np.dtype[Any]] = {}


def describe(dtype: np.dtype[Any]) -> bytes:
    """The description of ``dtype``; TypeError says why there is none."""
    known = _described.get(dtype)
    if known is not None:
        return known
    if dtype.names is not None:
        # Not cached: dtypes that differ only in alignment compare equal.
        packed: bytes = msgpack.packb(_fields(dtype))
        return packed
    if dtype.type.__module__ == _ML_MODULE:
        return _remember(_described, dtype, f"<{dtype.type.__name__}".encode())
    text = dtype.str.encode("ascii", "replace")
    if dtype.hasobject or not _TEXT.fullmatch(text) or np.dtype(text.decode()) != dtype:
        raise TypeError(f"arrays of dtype {dtype} can't be sent; convert to a fixed-size dtype")
    return _remember(_described, dtype, text)


def parse(description: bytes) -> np.dtype[Any]:
    """The dtype that ``description`` stands for.

    Raises ValueError, which says what is wrong with it, and FailedPrecondition if it is one of ml_dtypes and that
    package isn't installed, or too old.
    """
    known = _parsed.get(description)
    if known is not None:
        return known
    # Not all of them are kept: a peer chooses how long a description is.
    dtype = _simple(description) if description[:1] in b"<>|=" else _build(msgpack.unpackb(description), 0)
    return _remember(_parsed, description, dtype) if len(description) <= 256 else dtype


def _simple(description: bytes) -> np.dtype[Any]:
    if _TEXT.fullmatch(description):
        return np.dtype(description.decode())
    if found := _ML.fullmatch(description):
        return np.dtype(_ml_type(found[1].decode()))
    raise ValueError(f"dtype {description[:40]!r} isn't one that may be sent")


def _ml_type(name: str) -> type[np.generic]:
    try:
        import ml_dtypes
    except ImportError:
        text = f"an array of {name} needs the package ml_dtypes here: pip install rrpc-rdma[ml]"
        raise FailedPrecondition(text) from None
    kind = getattr(ml_dtypes, name, None)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise FailedPrecondition(
            f"ml_dtypes {ml_dtypes.__version__}, as installed here, has no {name}: upgrade it"
        )
    return kind


def numpy_kind(kind: type[np.generic]) -> type[np.generic]:
    """Returns numpy's type of the same numbers for one of ml_dtypes, which says nothing of that; others as they are."""
    if kind.__module__ != _ML_MODULE:
        return kind
    name = kind.__name__
    return np.int64 if "int" in name else np.complex128 if "complex" in name else np.float64


def _remember(cache: dict[_K, _V], key: _K, value: _V) -> _V:
    if len(cache) >= _CACHE_LIMIT:  # a peer must not be able to grow it
        cache.clear()
    cache[key] = value
    return value


def _fields(dtype: np.dtype[Any]) -> list[Any]:
    assert dtype.names is not None
    assert dtype.fields is not None
    fields = []
    for name in dtype.names:
        field, offset, *title = dtype.fields[name]
        base, shape = field.subdtype or (field, ())
        inner = _fields(base) if base.names is not None else describe(base)
        fields.append([name, title[0] if title else None, offset, inner, list(shape)])
    return [dtype.itemsize, dtype.isalignedstruct, fields]


def _build(description: Any, depth: int) -> np.dtype[Any]:
    if isinstance(description, bytes):
        return _simple(description)
    if depth > _MAX_NESTING:
        raise ValueError("a structured dtype is nested too deep")
    itemsize, aligned, fields = description
    names, titles, offsets, formats = [], [], [], []
    for name, title, offset, inner, shape in fields:
        if type(name) is not str or type(offset) is not int or offset < 0:
            raise ValueError(f"a structured dtype has a bad field {name!r} at {offset!r}")
        if any(type(n) is not int or not 0 <= n < 1 << 31 for n in shape):
            raise ValueError(f"field {name!r} of a structured dtype has the shape {shape!r}")
        names.append(name)
        titles.append(title)
        offsets.append(offset)
        formats.append((_build(inner, depth + 1), tuple(shape)) if shape else _build(inner, depth + 1))
    spec: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
    if any(title is not None for title in titles):
        spec["titles"] = titles
    # numpy itself refuses fields that reach beyond the item.
    built: np.dtype[Any] = np.dtype(spec, align=bool(aligned))
    return built
