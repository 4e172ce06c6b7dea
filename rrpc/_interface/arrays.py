"""Checks of numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from .foreign_arrays import array_of
from .mismatch import AnnotationError, Check, Compile, Mismatch, item_type, type_text


def array_check(kind: Any) -> Check:
    if kind is np.object_:
        raise AnnotationError("NDArray[object_] isn't supported: Python objects can't be sent")
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise AnnotationError(
            f"an array of {type_text(kind)} isn't supported; write NDArray[np.float32], or of another numpy type"
        )
    any_item = kind is np.generic
    name = f"{'ml_dtypes' if kind.__module__ == 'ml_dtypes' else 'np'}.{kind.__name__}"
    expected = "array" if any_item else f"{kind.__name__} array"

    def check(value: Any) -> Any:
        found = value if isinstance(value, np.ndarray) else array_of(value, expected)
        if found is not None:
            item = found.dtype.type
            if any_item or item is kind or issubclass(item, kind) or _same(found.dtype, kind):
                return found
            raise Mismatch(expected, found, f"use .astype({name})")
        hint = f"use np.asarray(..., dtype={name})" if not any_item else "use np.asarray(...)"
        raise Mismatch(expected, value, hint if isinstance(value, (list, tuple, np.generic)) else "")

    return check


def _same(dtype: np.dtype[Any], kind: type[np.generic]) -> bool:
    # C's long and long long are two numpy types of one layout.
    return issubclass(kind, np.integer) and kind not in _ABSTRACT and dtype == np.dtype(kind)


_ABSTRACT = {np.integer, np.signedinteger, np.unsignedinteger}


def ndarray_check(annotation: Any, arguments: tuple[Any, ...], compile_inner: Compile) -> Check:
    return array_check(item_type(annotation))
