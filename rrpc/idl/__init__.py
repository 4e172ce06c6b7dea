"""The interface language: ``.rrpc`` files to the schema and back, and stubs as Python text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .diagnostics import Diagnostic, IdlError
from .emit_python import SIDES, Constant, Unit, emit
from .units import PythonFiles

if TYPE_CHECKING:
    from .loader import load, parse
    from .printer import print_module

__all__ = [
    "SIDES",
    "Constant",
    "Diagnostic",
    "IdlError",
    "PythonFiles",
    "Unit",
    "emit",
    "load",
    "parse",
    "print_module",
]


# The parser needs lark, which takes a while to import: it comes when it is asked for.
_LATER = {"load": "loader", "parse": "loader", "print_module": "printer"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"module 'rrpc.idl' has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __name__), name)


def __dir__() -> list[str]:
    """Lists the names of the module, including those imported on first use."""
    return sorted({*globals(), *__all__})
