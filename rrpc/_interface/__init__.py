"""Services: the decorators, and what they make of a class.

::

    @rrpc.service
    class Nearest:
        @rrpc.method
        def search(self, queries: NDArray[np.float32], k: int = 10) -> NDArray[np.int64]: ...

A method's signature is its interface: every parameter and the result are annotated, with None, bool,
int, float, complex, str, bytes, bytearray, memoryview, array.array, NDArray of a dtype, numpy scalars and those of
ml_dtypes, date and time types, Decimal, UUID, paths, enums, dataclasses, attrs classes, Pydantic models, typed dicts,
named tuples, Literal, Any, and lists, tuples, dicts, sets, Optional and Union of these; numbers of a size and arrays
of a shape (``rrpc.types``).
"""

# Decorators run when users' modules are imported. Any thread, worker or event loop runs what is made of a signature
# (checks, plans, items), at both ends; it changes only by what is compiled at first use.

from .checks import compile_check
from .declared_errors import OF_EVERY_ERROR, DeclaredErrors, declared, error, is_declared
from .decorators import interface_of, method, service
from .interface import MISSING, Interface, Method, Parameter, signature_text, streams_as
from .mismatch import AnnotationError, Mismatch
from .out_arrays import OutSpec, Target, decode_into, target_of
from .plan import Plan, untyped_request
from .stream_annotations import RECEIVES, SENDS, item_of, kind_of

__all__ = [
    "MISSING",
    "OF_EVERY_ERROR",
    "RECEIVES",
    "SENDS",
    "AnnotationError",
    "DeclaredErrors",
    "Interface",
    "Method",
    "Mismatch",
    "OutSpec",
    "Parameter",
    "Plan",
    "Target",
    "compile_check",
    "declared",
    "decode_into",
    "error",
    "interface_of",
    "is_declared",
    "item_of",
    "kind_of",
    "method",
    "service",
    "signature_text",
    "streams_as",
    "target_of",
    "untyped_request",
]
