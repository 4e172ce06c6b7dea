"""A Python module from interfaces: their classes, and typed clients and bases of servers for each.

The text is the same for the same interfaces. A signature that is longer than a line has one parameter a line, and so
do the items of a list. Nothing else is broken: ``# fmt: off`` at the top tells formatters to leave the file as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rrpc._interface import AnnotationError, Interface
from rrpc.schema import service_of
from rrpc.schema.fingerprints import fingerprint

from .emit_classes import define
from .emit_methods import (
    ASYNC,
    BLOCKING,
    Style,
    base_class,
    base_name,
    client_class,
    client_name,
    method_classes,
)
from .emit_text import WIDTH, broken, camel, docstring, quoted
from .emit_types import Types

_STANDARD = {"abc", "array", "collections.abc", "dataclasses", "datetime", "decimal", "enum", "functools"}
_STANDARD |= {"pathlib", "typing", "uuid"}
_OTHERS = {
    "jax": "import jax",
    "ml_dtypes": "import ml_dtypes",
    "numpy": "import numpy as np",
    "pandas": "import pandas as pd",
    "pyarrow": "import pyarrow as pa",
    "rrpc": "import rrpc",
    "torch": "import torch",
}
SIDES = ("client", "server")
_STYLES = (BLOCKING, ASYNC)


@dataclass(frozen=True)
class Constant:
    """A value that the file has under a name."""

    annotation: Any
    value: Any
    doc: str = ""


@dataclass(frozen=True)
class Unit:
    """Contents of one generated file.

    Its header names ``source`` as the origin. ``declared`` has classes, one-ofs and constants by name; the file
    contains them whether or not a method names them.
    """

    source: str
    interfaces: Sequence[Interface]
    declared: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""


def emit(
    unit: Unit, version: str, homes: Mapping[Any, str] | None = None, sides: Sequence[str] = SIDES
) -> str:
    """Returns the module's text, made by this version of rrpc-gen.

    ``homes`` has the modules beside it that have some of the classes (and by ``OneOfName`` one-ofs). Raises
    AnnotationError, which names what can't be written, and where.
    """
    return _Emitter(unit, homes or {}, sides).text(version)


class _Emitter:
    def __init__(self, unit: Unit, homes: Mapping[Any, str], sides: Sequence[str]) -> None:
        self._unit = unit
        self._interfaces = [interface.resolved() for interface in unit.interfaces]
        self._types = Types(define, homes)
        self._sides = sides
        self._own = []
        for interface in self._interfaces:
            if "client" in sides:
                self._own += [client_name(interface, style) for style in _STYLES]
            if "server" in sides:
                self._own += [base_name(interface, style) for style in _STYLES]

    def text(self, version: str) -> str:
        fingerprints = {i.name: fingerprint(service_of(i)) for i in self._interfaces}
        types = self._types
        classes = self._method_classes()
        types.taken |= {kind for names in classes.values() for kind in names.values()}
        constants = self._declared()
        bodies = []
        for interface in self._interfaces:
            for style in _STYLES if "client" in self._sides else ():
                names = classes[interface.name, style]
                bodies += client_class(interface, names, fingerprints[interface.name], types, style)
            for style in _STYLES if "server" in self._sides else ():
                bodies.append(base_class(interface, fingerprints[interface.name], types, style))
        self._refuse_clashes(constants)
        definitions = [*types.definitions.values(), *types.aliases.values(), *constants.values(), *bodies]
        head = "\n".join(["# fmt: off", *docstring(self._head(version, fingerprints), "")])
        return "\n\n".join([f"{head}\n{_imports(types)}\n\n{self._all(constants)}", *definitions])

    def _method_classes(self) -> dict[tuple[str, Style], dict[str, str]]:
        """Returns the names of the classes behind each client's methods, by interface name and style."""
        several = len(self._interfaces) > 1
        classes: dict[tuple[str, Style], dict[str, str]] = {}
        for style in _STYLES:
            for interface in self._interfaces:
                taken = {kind for names in classes.values() for kind in names.values()}
                prefix = style.prefix + (camel(interface.name) if several else "")
                classes[interface.name, style] = method_classes(interface, prefix, taken)
        return classes

    def _declared(self) -> dict[str, str]:
        """Has the classes and one-ofs written; the constants' text."""
        constants = {}
        for name, thing in self._unit.declared.items():
            if isinstance(thing, Constant):
                constants[name] = self._constant(name, thing)
            else:
                self._types.text(thing)
        return constants

    def _constant(self, name: str, constant: Constant) -> str:
        self._types.use("typing", "Final")
        start = f"{name}: Final[{self._types.text(constant.annotation)}] = "
        lines = self._types.value_lines(start, constant.value)
        return "\n".join([*lines, *docstring(constant.doc, "")[:-1]]) + "\n"

    def _refuse_clashes(self, constants: Mapping[str, str]) -> None:
        others = [*self._types.definitions, *self._types.aliases, *constants]
        for name in self._own:
            if name in others:
                raise AnnotationError(
                    f"{name} is the name of a class in the interface and of the client or base"
                )
            if self._own.count(name) > 1:
                raise AnnotationError(f"two services would have a {name}: write a file for each")

    def _head(self, version: str, fingerprints: Mapping[str, str]) -> str:
        what = " and ".join({"client": "Client", "server": "server base"}[side] for side in self._sides)
        names = ", ".join(fingerprints)
        own = f"{what[0].upper()}{what[1:]} of {names}." if names else "Types of interfaces."
        lines = [
            self._unit.doc or own,
            "",
            f"Generated by rrpc-gen {version} from {self._unit.source}: do not edit.",
        ]
        return "\n".join([*lines, *(f"Interface {name}: {digits}" for name, digits in fingerprints.items())])

    def _all(self, constants: Mapping[str, str]) -> str:
        defined = [*self._types.definitions, *self._types.aliases, *constants]
        public = [name for name in defined if name != "AnyArray" and name[0] != "_"]
        names = sorted([*public, *self._own], key=_import_order)
        return "\n".join(broken("__all__ = [", list(map(quoted, names)), "]")) + "\n"


def _imports(types: Types) -> str:
    standard = [f"import {module}" for module in sorted(types.modules & _STANDARD)]
    others = [text for module, text in _OTHERS.items() if module in types.modules]
    beside: list[str] = []
    for module in sorted(types.names):
        section = beside if module.startswith(".") else standard if module in _STANDARD else others
        section += _import_from(module, sorted(types.names[module], key=_import_order))
    sections = [["from __future__ import annotations"], standard, others, beside]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _import_from(module: str, names: Sequence[str]) -> list[str]:
    """A statement for the names that stay and one for each that gets another; in the order of their first names."""
    kept = [name for name in names if " as " not in name]
    statements = {name: [f"from {module} import {name}"] for name in names if " as " in name}
    if kept:
        one = f"from {module} import {', '.join(kept)}"
        statements[kept[0]] = [one] if len(one) <= WIDTH else broken(f"from {module} import (", kept, ")")
    return [line for name in sorted(statements, key=_import_order) for line in statements[name]]


def _import_order(name: str) -> tuple[int, str]:
    """Constants, classes, the rest: as import sorters have it."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name
