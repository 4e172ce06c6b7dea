"""The interface language: ``.rrpc`` files to the schema and back, and stubs as Python text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .diagnostics import Diagnostic, IdlError
from .emit_python import SIDES, Constant, Unit, emit
from .units import PythonFiles

if TYPE_CHECKING:
    from rrpc.schema import Module

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


def load(path: str | os.PathLike[str], include: Sequence[str | os.PathLike[str]] = ()) -> Module:
    """Reads the module of a file.

    Args:
        path: The ``.rrpc`` file.
        include: Folders in which imports are looked for that aren't beside the file that has them.

    Raises:
        IdlError: Something is wrong in this file or in those it imports; it has all of it.
        OSError: The file can't be read.
    """
    from . import loader  # it needs lark

    return loader.load(path, include)


def parse(text: str | bytes, name: str = "<text>", include: Sequence[str | os.PathLike[str]] = ()) -> Module:
    """Reads the module of a text.

    Args:
        text: What a ``.rrpc`` file has, in UTF-8 where it is bytes.
        name: A path by which diagnostics name it; imports are looked for beside it first.
        include: Folders in which they are looked for then.

    Raises:
        IdlError: Something is wrong in it or in what it imports; it has all of it.
    """
    from . import loader

    return loader.parse(text, name, include)


def print_module(module: Module) -> str:
    """The text of an .rrpc file with the module in it, in the one canonical form.

    AnnotationError names the method or field that the language can't express, and why.
    """
    from . import printer

    return printer.print_module(module)
