"""The schema as the text of an .rrpc file, in the one canonical form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rrpc._interface import AnnotationError
from rrpc.schema import model

from . import syntax
from .diagnostics import Diagnostics, IdlError, Source
from .literals import quoted
from .parser import parse_source
from .resolver import resolve
from .spell import Inexpressible, idl_literal, type_text, value_text

_WIDTH = 100


def print_module(module: model.Module) -> str:
    """Returns the text of a ``.rrpc`` file in the one canonical form; reading it gives the module again.

    Raises:
        AnnotationError: The language can't express something; it names the method or field, and why.
    """
    text = _Printer(module).file()
    again = _read(text, module)
    if _Printer(again).file() != text:
        changed = [n for n, known in module.declarations.items() if again.declarations.get(n) != known]
        changed += [n for n, service in module.services.items() if again.services.get(n) != service]
        raise AnnotationError(f"{', '.join(changed)}: can't be written so that it is read the same")
    return text


def _read(text: str, module: model.Module) -> model.Module:
    """Parses the printed text into a module. Raises AnnotationError if the language refuses the text."""
    source, diagnostics = Source(module.package or "<text>", text), Diagnostics()
    file = parse_source(source, diagnostics)
    imports = {s: module.imports[str(s.path.value)] for s in file.statements if isinstance(s, syntax.Import)}
    try:
        diagnostics.raise_any()
        again = resolve(source, file, imports, diagnostics)
        diagnostics.raise_any()
    except IdlError as error:
        first = error.diagnostics[0]
        raise AnnotationError(f"the language refuses '{first.text.strip():.100}': {first.message}") from None
    return again


class _Printer:
    def __init__(self, module: model.Module) -> None:
        self._module = module
        self._known = dict(_declarations(module))

    def file(self) -> str:
        module = self._module
        blocks = []
        if module.package or module.doc:
            package = f" {module.package}" if module.package else ""
            blocks.append([*_doc(module.doc, ""), f"package{package};"])
        if module.imports:
            blocks.append([f"import {quoted(path)};" for path in module.imports])
        previous: list[str] = []
        for name, known in (*module.declarations.items(), *module.services.items()):
            lines = (
                self._service(known) if isinstance(known, model.Service) else self._declaration(name, known)
            )
            if len(previous) == len(lines) == 1 and _is_const(previous) and _is_const(lines):
                blocks[-1] += lines
            else:
                blocks.append(lines)
            previous = lines
        return "".join("\n" * (place > 0) + "\n".join(lines) + "\n" for place, lines in enumerate(blocks))

    def _bare(self, name: str) -> str:
        package, _, bare = name.rpartition(".")
        if package != self._module.package:
            of = f"the package {self._module.package}" if self._module.package else "a file without a package"
            raise AnnotationError(f"{name} doesn't belong into {of}")
        return bare

    def _type(self, kind: model.Type, what: str) -> str:
        try:
            return type_text(kind, self._module.package)
        except Inexpressible as error:
            raise AnnotationError(f"{what}: {error}") from None

    def _default(self, value: Any, kind: model.Type, what: str) -> str:
        if value is model.MISSING:
            return ""
        try:
            return f" = {value_text(value, kind, self._known.get)}"
        except Inexpressible as error:
            raise AnnotationError(f"{what}: its default: {error}") from None

    # --- declarations

    def _declaration(self, name: str, known: model.Declaration) -> list[str]:
        bare = self._bare(name)
        attributes = _attributes(known.deprecated)
        doc = _doc(known.doc, "")
        if isinstance(known, model.Const):
            text = self._type(known.type, bare)
            return [*doc, f"const {bare}: {text}{self._default(known.value, known.type, bare)}{attributes};"]
        if isinstance(known, model.OneOf):
            return [*doc, f"union {bare} = {self._type(model.Union(known.alternatives), bare)}{attributes};"]
        if isinstance(known, model.Enum):
            members = [
                [*_doc(m.doc, "  "), f"  {m.name} = {idl_literal(m.value)}{_attributes(m.deprecated)};"]
                for m in known.members
            ]
            return [*doc, *_body(f"enum {bare}{attributes}", [*members, *_reserved(known.reserved)])]
        items = [*(self._field(bare, field) for field in known.fields), *_reserved(known.reserved)]
        if isinstance(known, model.Error):
            head = f"error {bare}({known.code}){attributes}"
            return [*doc, *_body(head, items)] if items else [*doc, f"{head};"]
        return [*doc, *_body(f"{'frozen ' * known.frozen}struct {bare}{attributes}", items)]

    def _field(self, owner: str, field: model.Field) -> list[str]:
        what = f"{owner}.{field.name}"
        text = f"{field.number}: {field.name}: {self._type(field.type, what)}"
        default = self._default(field.default, field.type, what)
        return [*_doc(field.doc, "  "), f"  {text}{default}{_attributes(field.deprecated)};"]

    # --- services

    def _service(self, service: model.Service) -> list[str]:
        bare = self._bare(service.name)
        methods = [self._method(bare, method) for method in service.methods]
        return [*_doc(service.doc, ""), *_body(f"service {bare}{_attributes(service.deprecated)}", methods)]

    def _method(self, service: str, method: model.Method) -> list[str]:
        what = f"{service}.{method.name}()"
        result = self._type(method.result, f"{what}: result")
        stream = "stream " * method.result_stream
        arrow = "" if method.result == model.Scalar("none") and not stream else f" -> {stream}{result}"
        errors = ", ".join(self._reference(name) for name in method.errors)
        throws = f" throws {errors}" if errors else ""
        end = f"){arrow}{throws}{_attributes(method.deprecated, method.idempotent)};"
        doc = _doc(method.doc, "  ")
        parameters = list(_marked(method.parameters, [self._parameter(what, p) for p in method.parameters]))
        line = f"  {method.name}({', '.join(parameters)}{end}"
        if len(line) <= _WIDTH and not any(parameter.doc for parameter in method.parameters):
            return [*doc, line]
        documented = iter(method.parameters)
        lines = []
        for text in parameters:
            lines += _doc(next(documented).doc, "    ") if text not in ("*", "/") else []
            lines.append(f"    {text},")
        return [*doc, f"  {method.name}(", *lines, f"  {end}"]

    def _parameter(self, method: str, parameter: model.Parameter) -> str:
        what = f"{method}: parameter {parameter.name!r}"
        kind = f"{'stream ' * parameter.stream}{self._type(parameter.type, what)}"
        default = self._default(parameter.default, parameter.type, what)
        return f"{parameter.name}: {kind}{default}{_attributes(parameter.deprecated)}"

    def _reference(self, name: str) -> str:
        package, _, bare = name.rpartition(".")
        return bare if package == self._module.package else name


def _declarations(module: model.Module) -> Iterator[tuple[str, model.Declaration]]:
    for inner in module.imports.values():
        yield from _declarations(inner)
    for service in module.services.values():
        yield from service.declarations.items()
    yield from module.declarations.items()


def _is_const(lines: Sequence[str]) -> bool:
    return lines[0].startswith("const ")


def _body(head: str, members: Sequence[list[str]]) -> list[str]:
    """Members in braces; a documented one stands apart from the one before it."""
    if not members:
        return [f"{head} {{}}"]
    lines = [f"{head} {{"]
    for place, member in enumerate(members):
        lines += [""] * (place > 0 and len(member) > 1 and member[0].startswith("  ///")) + member
    return [*lines, "}"]


def _doc(text: str, indent: str) -> list[str]:
    text = text.strip("\n").encode(errors="replace").decode()
    return [f"{indent}/// {line}".rstrip() for line in text.split("\n")] if text.strip() else []


def _attributes(deprecated: str | None, idempotent: bool = False) -> str:
    found = []
    if deprecated is not None:
        text = " ".join(deprecated.split()).encode(errors="replace").decode()
        found.append(f"deprecated = {quoted(text)}" if text else "deprecated")
    found += ["idempotent"] * idempotent
    return f" [{', '.join(found)}]" if found else ""


def _reserved(items: Sequence[int | str]) -> list[list[str]]:
    return [[f"  reserved {', '.join(map(idl_literal, items))};"]] if items else []


def _marked(parameters: Sequence[model.Parameter], texts: Iterable[str]) -> Iterator[str]:
    """The parameters with ``/`` and ``*`` between them."""
    positional_only = keyword_only = False
    for parameter, text in zip(parameters, texts, strict=True):
        if positional_only and not parameter.positional_only:
            yield "/"
        if parameter.keyword_only and not keyword_only:
            yield "*"
        positional_only, keyword_only = parameter.positional_only, parameter.keyword_only
        yield text
    if positional_only:
        yield "/"
