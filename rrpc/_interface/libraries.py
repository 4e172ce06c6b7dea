"""Classes of other libraries that stand for arrays and tables: which they are, without importing any."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rrpc.codec import Refused, ml_type

from .mismatch import AnnotationError


class Library(NamedTuple):
    """A class of another library, as users write it in annotations."""

    module: str
    name: str
    alias: str
    """Name of the module in generated code."""
    is_table: bool = False

    @property
    def full_name(self) -> str:
        """The class with its module, for messages."""
        return f"{self.module}.{self.name}"


_LIBRARIES = (
    Library("torch", "Tensor", "torch"),
    Library("jax", "Array", "jax"),
    Library("pyarrow", "Table", "pa", is_table=True),
    Library("pyarrow", "RecordBatch", "pa", is_table=True),
    Library("pandas", "DataFrame", "pd", is_table=True),
)


def library_of(annotation: Any) -> Library | None:
    """Returns which of these classes the annotation is; None for anything else."""
    if not isinstance(annotation, type):
        return None
    for library in _LIBRARIES:
        # A class whose module nobody has imported can't be in an annotation.
        if annotation is getattr(sys.modules.get(library.module), library.name, None):
            return library
    return None


def item_note(notes: Sequence[Any]) -> Any:
    """Returns numpy's type for the dtype that notes of ``Annotated`` say; ``np.generic`` where there is none.

    The note may be a type of numpy, ml_dtypes or jax.numpy, or a torch.dtype. Raises AnnotationError for a torch.dtype
    that can't be sent.
    """
    torch = sys.modules.get("torch")
    for note in notes:
        if isinstance(note, type) and issubclass(note, np.generic):
            return note
        # The types of jax.numpy are no types of numpy's, but have a dtype.
        if isinstance(jax_dtype := getattr(note, "dtype", None), np.dtype):
            return jax_dtype.type
        if isinstance(note, getattr(torch, "dtype", ())):
            return _of_torch(note, torch)
    return np.generic


def _of_torch(dtype: Any, torch: Any) -> Any:
    try:
        return ml_type(dtype) or torch.empty(0, dtype=dtype).numpy().dtype.type
    except (Refused, TypeError, RuntimeError) as error:
        raise AnnotationError(f"tensors of {dtype} can't be sent: {error}") from None
