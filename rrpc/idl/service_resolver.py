"""Services, their methods and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rrpc.schema import Method, Parameter, Scalar, Service

from . import rules, syntax
from .member_resolver import Members
from .scope import Problem, Scope
from .type_checks import size_problems
from .type_resolver import Types

_ATTRIBUTES = ("deprecated", "idempotent")


class Services:
    """Resolves services to the schema."""

    def __init__(self, scope: Scope, types: Types, members: Members) -> None:
        self._scope = scope
        self._types = types
        self._members = members

    def all(self) -> dict[str, Service]:
        """Returns the services by full name. The declarations of their methods are added later."""
        nodes = self._scope.own.items()
        return {name: self._service(name, node) for name, node in nodes if isinstance(node, syntax.Service)}

    def _service(self, name: str, node: syntax.Service) -> Service:
        if not node.methods:
            self._scope.add(node.at, "a service has at least one method")
        seen: set[str] = set()
        methods = []
        for method in node.methods:
            if method.name.text in seen:
                self._scope.add(method.name.at, f"the service has a method {method.name.text!r} already")
            seen.add(method.name.text)
            if (made := self._method(method)) is not None:
                methods.append(made)
        return Service(name, tuple(methods), **self._members.notes(node.doc, node.attributes, node.at))

    def _method(self, node: syntax.Method) -> Method | None:
        self._members.check_name(node.name, rules.method_name)
        attributes = self._members.attributes(node.attributes, _ATTRIBUTES)
        parameters = self._parameters(node)
        result = (
            Scalar("none")
            if node.result is None
            else self._types.resolve(node.result.type, may_borrow=not node.result.stream)
        )
        errors = tuple(self._throws(node.throws))
        if result is None or parameters is None:
            return None
        for wrong, message in size_problems([(p.name, p.type) for p in parameters], (result,)):
            self._scope.add(next(p.name.at for p in _named(node) if p.name.text == wrong), message)
        return Method(
            node.name.text,
            parameters,
            result,
            node.result is not None and node.result.stream,
            errors,
            "idempotent" in attributes,
            doc=node.doc,
            deprecated=attributes.get("deprecated"),
            position=self._members.position(node.name.at),
        )

    def _throws(self, words: Sequence[syntax.Word]) -> Iterator[str]:
        seen: set[str] = set()
        for word in words:
            try:
                name = self._scope.reference(word, ("error",), "error")
            except Problem as problem:
                self._scope.add_problem(problem)
                continue
            if name in seen:
                self._scope.add(word.at, f"the error {word.text!r} stands here twice")
            seen.add(name)
            yield name

    # --- parameters

    def _parameters(self, node: syntax.Method) -> tuple[Parameter, ...] | None:
        star, slash = self._markers(node)
        seen: set[str] = set()
        made = []
        for place, item in enumerate(node.parameters):
            if isinstance(item, syntax.Marker):
                continue
            if item.name.text in seen:
                self._scope.add(item.name.at, f"the method has a parameter {item.name.text!r} already")
            seen.add(item.name.text)
            made.append(self._parameter(item, keyword_only=place > star >= 0, positional_only=place < slash))
        self._order(node)
        self._streams(node)
        known = tuple(parameter for parameter in made if parameter is not None)
        return known if len(known) == len(made) else None

    def _parameter(
        self, node: syntax.Parameter, keyword_only: bool, positional_only: bool
    ) -> Parameter | None:
        self._members.check_name(node.name, rules.parameter_name)
        kind = self._types.resolve(node.type, may_borrow=not node.stream)
        notes = self._members.notes(node.doc, node.attributes, node.name.at)
        if kind is None:
            return None
        default = self._members.default(node.default, kind, f"the default of {node.name.text!r}")
        return Parameter(node.name.text, kind, default, keyword_only, positional_only, node.stream, **notes)

    def _markers(self, node: syntax.Method) -> tuple[int, int]:
        """Returns the places of ``*`` and ``/`` among the parameters, -1 for none; reports misplaced ones."""
        places = {"*": -1, "/": -1}
        for place, item in enumerate(node.parameters):
            if not isinstance(item, syntax.Marker):
                continue
            if places[item.text] >= 0:
                self._scope.add(item.at, f"'{item.text}' stands here twice")
                continue
            places[item.text] = place
            if item.text == "*" and not _is_parameter(node, place + 1):
                self._scope.add(
                    item.at, "behind '*' come the parameters that are given by name; there are none"
                )
            elif item.text == "/" and not _is_parameter(node, place - 1):
                self._scope.add(item.at, "before '/' come the parameters without a name; there are none")
            elif item.text == "/" and places["*"] >= 0:
                self._scope.add(item.at, "'/' comes before '*'")
        return places["*"], places["/"]

    def _order(self, node: syntax.Method) -> None:
        with_default = ""
        for item in node.parameters:
            if isinstance(item, syntax.Marker):
                if item.text == "*":
                    return  # those given by name have any order
            elif item.default is not None:
                with_default = item.name.text
            elif with_default:
                message = f"a parameter without a default behind one with a default ({with_default!r})"
                self._scope.add(item.name.at, f"{message}: put it before, or behind '*'")

    def _streams(self, node: syntax.Method) -> None:
        for item in _named(node):
            if not item.stream:
                continue
            if len(list(_named(node))) > 1:
                self._scope.add(item.name.at, "a method that takes a stream takes nothing else")
            if item.default is not None:
                self._scope.add(item.default.at, "a stream has no default")
            if any(isinstance(other, syntax.Marker) for other in node.parameters):
                self._scope.add(item.name.at, "a stream stands alone, without '*' and '/'")


def _named(node: syntax.Method) -> Iterator[syntax.Parameter]:
    return (item for item in node.parameters if isinstance(item, syntax.Parameter))


def _is_parameter(node: syntax.Method, place: int) -> bool:
    return 0 <= place < len(node.parameters) and isinstance(node.parameters[place], syntax.Parameter)
