"""A syntax tree to a module of the schema: every name means something, every rule is held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from rrpc import schema
from rrpc.schema import MISSING, Const, Declaration, Module, OneOf, Struct, Type, Union
from rrpc.schema.closure import closure

from . import rules, syntax
from .alike import LookAlikes
from .diagnostics import DIAGNOSTICS_MAX, At, Diagnostics, Source
from .member_resolver import Members
from .scope import Scope
from .service_resolver import Services
from .spell import type_text
from .type_checks import UNION_DEPTH_MAX, contains_itself, deep_unions, endless, unhashable
from .type_resolver import Types
from .values import Values

CONSTANT_DEPTH_MAX = 16

Imports = Mapping[syntax.Import, Module]


def resolve(source: Source, file: syntax.File, imports: Imports, diagnostics: Diagnostics) -> Module:
    """The file's module, complete only if nothing was added to ``diagnostics``."""
    return _Resolver(source, file, imports, diagnostics).module()


class _Resolver:
    def __init__(self, source: Source, file: syntax.File, imports: Imports, diagnostics: Diagnostics) -> None:
        self._file = file
        self._imports = imports
        self._scope = Scope(source, diagnostics)
        self._types = Types(self._scope, self.constant)
        self._values = Values(self._scope, self.constant)
        self._members = Members(self._scope, self._types, self._values)
        self._open_constants: list[str] = []
        self._bad_constants: set[str] = set()
        self._doc = ""

    def module(self) -> Module:
        scope = self._scope
        self._header()
        for imported, module in self._imports.items():
            scope.take(module, imported.at)
        for statement in self._file.statements:
            if isinstance(statement, syntax.Declared):
                self._members.check_name(statement.name, rules.declaration_name)
                scope.declare(statement)
        # In this order: defaults look into enums and unions, dimensions into constants.
        self._each(syntax.Enum, self._members.enum)
        self._each(syntax.Union, self._union)
        for name, declared in scope.own.items():
            if isinstance(declared, syntax.Const):
                self.constant(name)
        self._each(syntax.Struct, self._members.struct)
        self._each(syntax.Error, self._members.error)
        services = Services(scope, self._types, self._members).all()
        if not scope.errors:
            self._check_whole()
        return self._result(services)

    def _result(self, services: dict[str, schema.Service]) -> Module:
        scope = self._scope
        declarations = {name: scope.resolved[name] for name in scope.own if name in scope.resolved}
        if not scope.errors:
            services = {name: self._closed(service) for name, service in services.items()}
        imports = {node.path.value: module for node, module in self._imports.items()}
        return Module(scope.package, declarations, services, imports, doc=self._doc)

    def _closed(self, service: schema.Service) -> schema.Service:
        found = closure(service.methods, self._scope.resolved.__getitem__)
        return replace(service, declarations=found)

    def _each(self, kind: type, make: Callable[[str, Any], Declaration | None]) -> None:
        for name, node in self._scope.own.items():
            if isinstance(node, kind) and (made := make(name, node)) is not None:
                self._scope.resolved[name] = made

    # --- the file's head

    def _header(self) -> None:
        place = 0
        for statement in self._file.statements:
            order = {syntax.Package: 0, syntax.Import: 1}.get(type(statement), 2)
            if order < place:
                first = "package comes first" if order == 0 else "imports come before declarations"
                self._scope.add(statement.at, f"{first} in a file")
            place = max(place, order)
        packages = [s for s in self._file.statements if isinstance(s, syntax.Package)]
        for second in packages[1:]:
            self._scope.add(second.at, "a file has one package")
        if packages:
            self._package(packages[0])

    def _package(self, node: syntax.Package) -> None:
        self._doc = node.doc
        if node.name is not None:
            self._scope.package = node.name.text
            for part in node.name.text.split("."):
                if wrong := rules.python_name(part, "a part of a package's name"):
                    self._scope.add(node.name.at, wrong)

    # --- constants and unions

    def constant(self, name: str) -> Const | None:
        """A constant by its full name; None if it was reported."""
        known = self._scope.resolved.get(name)
        if isinstance(known, Const):
            return known
        node = self._scope.own.get(name)
        if not isinstance(node, syntax.Const) or name in self._bad_constants:
            return None
        if name in self._open_constants or len(self._open_constants) == CONSTANT_DEPTH_MAX:
            self._scope.add(node.at, self._too_deep(name))
            return None
        self._open_constants.append(name)
        made = self._constant(name, node)
        self._open_constants.pop()
        if made is None:
            self._bad_constants.add(name)
        else:
            self._scope.resolved[name] = made
        return made

    def _too_deep(self, name: str) -> str:
        if name not in self._open_constants:
            return f"constants that need each other, more than {CONSTANT_DEPTH_MAX} of them"
        way = [*self._open_constants[self._open_constants.index(name) :], name]
        return f"a constant that needs its own value: {self._way(way)}"

    def _constant(self, name: str, node: syntax.Const) -> Const | None:
        notes = self._members.notes(node.doc, node.attributes, node.at)
        kind = self._types.resolve(node.type)
        value = (
            MISSING
            if kind is None
            else self._members.default(node.value, kind, f"the value of {node.name.text!r}")
        )
        return None if kind is None or value is MISSING else Const(name, kind, value, **notes)

    def _union(self, name: str, node: syntax.Union) -> OneOf | None:
        notes = self._members.notes(node.doc, node.attributes, node.at)
        kind = self._types.resolve(node.type)
        if kind is None:
            return None
        if isinstance(kind, schema.Optional):
            self._scope.add(node.type.at, f"a named union has no none: use {node.name.text}? where it may be")
            return None
        if not isinstance(kind, Union):
            self._scope.add(node.type.at, "a union has two alternatives or more: A | B")
            return None
        return OneOf(name, kind.items, **notes)

    # --- when all is resolved

    def _check_whole(self) -> None:
        scope = self._scope
        own = {name: scope.resolved[name] for name in scope.own if name in scope.resolved}
        self._check_unions()
        if scope.errors:
            return
        alike = LookAlikes(scope.lookup, scope.package)
        for union, at in self._types.unions:
            if wrong := alike.problem(union.items):
                scope.add(at, wrong)
        self._check_keys(self._types.keys)
        for name, way in endless((n for n, known in own.items() if isinstance(known, Struct)), scope.lookup):
            hint = "make a field on the way optional"
            scope.add(scope.own[name].at, f"a value of it would never end: {self._way(way)}; {hint}")

    def _check_unions(self) -> None:
        scope = self._scope
        unions = {name: known for name, known in scope.resolved.items() if isinstance(known, OneOf)}
        deep = deep_unions(unions)
        for name in [name for name in scope.own if name in deep][:DIAGNOSTICS_MAX]:
            wrong = f"unions stand in each other, more than {UNION_DEPTH_MAX} deep"
            if contains_itself(unions[name], scope.lookup):
                wrong = "a union can't contain itself: put a struct between"
            scope.add(scope.own[name].at, wrong)

    def _way(self, names: Iterable[str]) -> str:
        return " -> ".join(name.removeprefix(f"{self._scope.package}.") for name in names)

    def _check_keys(self, keys: Iterable[tuple[Type, str, At]]) -> None:
        for kind, what, at in keys:
            if (found := unhashable(kind, self._scope.lookup)) is not None:
                text = type_text(found, self._scope.package)
                self._scope.add(at, f"{text} can't stand {'as ' * (what[0] == 'a')}{what}")
