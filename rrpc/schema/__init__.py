"""Interfaces of services as data, independent of any language: types, declarations, services.

``.rrpc`` files (``rrpc.idl``) and decorated Python classes both become these values; stubs, the comparison
of versions, fingerprints and reflection are made from them.
"""

# Functions of values that don't change, so any thread may call them: servers do when they are made and in
# `rrpc.Reflection`, clients where a server's version of an interface is another one.

from .canonical import from_data, to_data
from .docstrings import join_docstring, split_docstring
from .fingerprints import fingerprint
from .from_python import module_of, service_of
from .model import (
    ARRAY_ITEMS,
    MISSING,
    ML_ITEMS,
    SCALARS,
    Array,
    Const,
    Declaration,
    Enum,
    EnumMember,
    Error,
    Field,
    List,
    Literal,
    Map,
    Method,
    Module,
    Named,
    OneOf,
    Opaque,
    Optional,
    Parameter,
    Position,
    Scalar,
    Service,
    Set,
    Struct,
    Tuple,
    Type,
    Union,
)
from .packages import modules_of

__all__ = [
    "ARRAY_ITEMS",
    "MISSING",
    "ML_ITEMS",
    "SCALARS",
    "Array",
    "Const",
    "Declaration",
    "Enum",
    "EnumMember",
    "Error",
    "Field",
    "List",
    "Literal",
    "Map",
    "Method",
    "Module",
    "Named",
    "OneOf",
    "Opaque",
    "Optional",
    "Parameter",
    "Position",
    "Scalar",
    "Service",
    "Set",
    "Struct",
    "Tuple",
    "Type",
    "Union",
    "fingerprint",
    "from_data",
    "join_docstring",
    "module_of",
    "modules_of",
    "service_of",
    "split_docstring",
    "to_data",
]
