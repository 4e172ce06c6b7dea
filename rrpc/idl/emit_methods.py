"""The classes of a service in a generated file: its clients, and the bases of servers."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rrpc._interface import (
    MISSING,
    RECEIVES,
    SENDS,
    Interface,
    Method,
    Parameter,
    item_of,
    streams_as,
)
from rrpc._interface.libraries import library_of
from rrpc._interface.members import fields_of, has_members

from .emit_text import broken, camel, docstring, quoted, tuple_text
from .emit_types import Types


@dataclasses.dataclass(frozen=True)
class Style:
    """Style of generated code: how clients call methods and how bases define them."""

    prefix: str
    module: str
    define: str
    call: str
    stream: Any
    """Type of a handler's streams."""


BLOCKING = Style("", "rrpc", "def", "self._call", Iterator)
ASYNC = Style("Async", "rrpc.aio", "async def", "await self._start", AsyncIterator)


def client_name(interface: Interface, style: Style = BLOCKING) -> str:
    """NearestClient of lab.search.Nearest; AsyncNearestClient."""
    return f"{style.prefix}{interface.name.rpartition('.')[2]}Client"


def base_name(interface: Interface, style: Style = BLOCKING) -> str:
    """NearestBase of lab.search.Nearest; AsyncNearestBase."""
    return f"{style.prefix}{interface.name.rpartition('.')[2]}Base"


def method_classes(interface: Interface, prefix: str, taken: Collection[str] = ()) -> dict[str, str]:
    """Returns the names of the classes behind the client's methods, by method; avoids names in ``taken``."""
    classes: dict[str, str] = {}
    for name in interface.methods:
        kind = f"_{prefix}{camel(name)}"
        while kind in taken or kind in classes.values():
            kind = f"{kind}_{len(classes)}"
        classes[name] = kind
    return classes


def client_class(
    interface: Interface, classes: dict[str, str], fingerprint: str, types: Types, style: Style
) -> list[str]:
    """The text of each class that the client is made of, its own last."""
    types.use("rrpc")
    texts = [_class_of(interface.methods[name], kind, types, style) for name, kind in classes.items()]
    lines = [f"class {client_name(interface, style)}({style.module}.Client):"]
    lines += docstring(interface.doc or f"Client of {interface.name}.", "    ")
    lines += _fingerprints(interface, fingerprint, types)
    lines += ["", *(f"    {name} = rrpc.stub({kind})" for name, kind in classes.items())] if classes else []
    return [*texts, "\n".join(lines) + "\n"]


def base_class(interface: Interface, fingerprint: str, types: Types, style: Style) -> str:
    """The text of the abstract class that servers derive from."""
    types.use("rrpc")
    types.use("abc")
    hidden = set(interface.methods)
    lines = [
        f"@rrpc.service(name={quoted(interface.name)})",
        f"class {base_name(interface, style)}(abc.ABC):",
        *docstring(interface.doc or f"A server of {interface.name}.", "    "),
        *_fingerprints(interface, fingerprint, types),
    ]
    for method in interface.methods.values():
        text = _Method(streams_as(style.stream, method), types, hidden)
        lines += ["", *text.decorator(), "    @abc.abstractmethod", *text.abstract(style)]
    return "\n".join(lines) + "\n"


def _class_of(method: Method, kind: str, types: Types, style: Style) -> str:
    """The class behind the client's method."""
    if not method.kind:
        return _Method(method, types).client(kind, style)
    taken: Any = Iterable if style is BLOCKING else _AnyIterable()
    return _Method(streams_as(taken, method), types).stream_client(kind, style)


class _AnyIterable:
    """Type of the iterables that an asyncio client takes items from: asynchronous or not."""

    def __getitem__(self, item: Any) -> Any:
        return AsyncIterable[item] | Iterable[item]


def _fingerprints(interface: Interface, fingerprint: str, types: Types) -> list[str]:
    types.use("typing", "ClassVar")
    entry = f"{quoted(interface.name)}: {quoted(fingerprint)}"
    return broken("    rpc_fingerprints: ClassVar[dict[str, str]] = {", [entry], "}", "    ")


_STREAM_CLASSES = {
    SENDS: ("RequestStreamMethod", "_send_all"),
    RECEIVES: ("ResponseStreamMethod", "_open"),
    SENDS | RECEIVES: ("DuplexStreamMethod", "_exchange"),
}


class _Method:
    """The text of one method. Names that are ``hidden`` where it stands are none of its annotations'."""

    def __init__(self, method: Method, types: Types, hidden: set[str] | frozenset[str] = frozenset()) -> None:
        self._method = method
        self._types = types
        self._hidden = hidden
        self._hint = camel(method.name.rpartition(".")[2])
        self._parameters = [self._parameter(parameter) for parameter in method.parameters]

    def _parameter(self, parameter: Parameter) -> str:
        hint = f"{self._hint}{camel(parameter.name)}"
        default = ""
        if parameter.default is not MISSING:
            what = f"{self._method.name}(): parameter {parameter.name!r}"
            default = f" = {self._types.default(what, parameter.annotation, parameter.default, hint)}"
        return f"{parameter.name}: {self._types.named(parameter.annotation, hint, self._hidden)}{default}"

    def _result(self) -> str:
        return self._types.named(self._method.result, f"{self._hint}Result", self._hidden)

    def _signature(self, options: Sequence[str]) -> list[str]:
        parameters = self._method.parameters
        signature = ["self"]
        starred = False
        for index, (parameter, text) in enumerate(zip(parameters, self._parameters, strict=True)):
            if parameter.keyword_only and not starred:
                signature.append("*")
                starred = True
            signature.append(text)
            following = parameters[index + 1 : index + 2]
            if parameter.positional_only and not (following and following[0].positional_only):
                signature.append("/")
        return [*signature, *(["*"] if options and not starred else []), *options]

    def _options(self) -> tuple[list[str], str]:
        """The caller's own, as parameters and passed on."""
        options = ["timeout: float | None = None"]
        if any(parameter.name == "metadata" for parameter in self._method.parameters):
            return options, "timeout"
        return [*options, "metadata: rrpc.MetadataLike | None = None"], "timeout, metadata"

    def client(self, kind: str, style: Style) -> str:
        """The class behind the client's method."""
        method = self._method
        base = f"{style.module}.UnaryMethod"
        result = self._result()
        out = self._out()
        names = [parameter.name for parameter in method.parameters]
        options, given = self._options()
        if out:
            options.append(f"out: {out} | None = None")
            given += ", out" if "metadata" not in names else ", None, out"
        signature = self._signature(options)
        passed = [tuple_text(names), *given.split(", ")]
        returns = "" if result == "None" else "return "
        lines = [
            *broken(f"class {kind}(", [f"{base}[{result}]"], "):"),
            *docstring(method.doc, "    "),
            f'    rpc_name = "{method.name}"',
            *(["    rpc_idempotent = True"] if method.idempotent else []),
            *self._errors(),
            "",
            *broken(f"    {style.define} __call__(", signature, f") -> {result}:", "    "),
            *docstring(method.doc, "        ")[:-1],
            *broken(f"        {returns}{style.call}(", passed, ")", "        "),
            "",
            *broken("    def start(", signature, f") -> {style.module}.Future[{result}]:", "    "),
            '        """Starts the call and returns its future."""',
            *broken("        return self._start(", passed, ")", "        "),
        ]
        return "\n".join(lines) + "\n"

    def _errors(self) -> list[str]:
        names = self._error_names()
        return [f"    rpc_errors = {tuple_text(names)}"] if names else []

    def _error_names(self) -> list[str]:
        return [
            self._types.named(error, f"{self._hint}{error.__name__}", self._hidden)
            for error in self._method.errors
        ]

    def decorator(self) -> list[str]:
        """Returns the decorator of a base's method."""
        options = ["idempotent=True"] if self._method.idempotent else []
        if names := self._error_names():
            options.append(f"throws=[{', '.join(names)}]")
        return broken("    @rrpc.method(", options, ")", "    ") if options else ["    @rrpc.method"]

    def stream_client(self, kind: str, style: Style) -> str:
        """The class behind the client's method, where it has streams."""
        method = self._method
        base, opened = _STREAM_CLASSES[method.kind]
        waits = style is ASYNC and method.kind == SENDS
        items = self._stream_items()
        returned = f"{style.module}.ResponseStream[{items[-1]}]" if method.kind & RECEIVES else items[-1]
        names = [parameter.name for parameter in method.parameters]
        options, given = self._options()
        passed = [names[0] if method.kind & SENDS else tuple_text(names), *given.split(", ")]
        start = f"        {'return ' * (returned != 'None')}{'await ' * waits}self.{opened}("
        lines = [
            *broken(f"class {kind}(", [f"{style.module}.{base}[{', '.join(items)}]"], "):"),
            *docstring(method.doc, "    "),
            f'    rpc_name = "{method.name}"',
            *(["    rpc_idempotent = True"] if method.idempotent else []),
            *self._errors(),
            "",
            *broken(
                f"    {'async ' * waits}def __call__(", self._signature(options), f") -> {returned}:", "    "
            ),
            *docstring(method.doc, "        ")[:-1],
            *broken(start, passed, ")", "        "),
        ]
        return "\n".join(lines) + "\n"

    def _stream_items(self) -> list[str]:
        """Returns the types of the items sent, and of those received or the result."""
        annotations = [p.annotation for p in self._method.parameters] if self._method.kind & SENDS else []
        annotations.append(self._method.result)
        hints = [f"{self._hint}Item", f"{self._hint}Result"][-len(annotations) :]
        items = [item_of(annotation)[0] for annotation in annotations]
        return [self._types.named(item, hint) for item, hint in zip(items, hints, strict=True)]

    def abstract(self, style: Style) -> list[str]:
        """Returns the lines of the method that servers implement."""
        doc = docstring(self._method.doc, "        ")[:-1]
        body = "" if doc else " ..."
        # An async generator is called, not awaited: of one without a yield, checkers know that by its bare def.
        define = "def" if self._method.kind & RECEIVES else style.define
        start = f"    {define} {self._method.name.rpartition('.')[2]}("
        end = f") -> {self._result()}:{body}"
        return [*broken(start, self._signature([]), end, "    "), *doc]

    def _out(self) -> str:
        """The union of the result's array types; empty if there is none."""
        arrays = tuple(_arrays(self._method.result))
        if not arrays:
            return ""
        return self._types.named(typing.Union[arrays], f"{self._hint}Out")  # noqa: UP007


def _arrays(annotation: Any) -> dict[Any, None]:
    """Returns the array types in an annotation and in the fields of its classes, each of which is looked at once."""
    found: dict[Any, None] = {}
    seen: set[Any] = set()
    waiting = [annotation]
    while waiting:  # not by recursion, as a chain of classes may be long
        kind = waiting.pop()
        if kind is np.ndarray or typing.get_origin(kind) is np.ndarray:
            found[kind] = None
        elif (library := library_of(kind)) is not None:
            found |= {} if library.is_table else {kind: None}
        elif has_members(kind) and kind not in seen:
            seen.add(kind)
            waiting += reversed(fields_of(kind).values())
        else:
            waiting += reversed(typing.get_args(kind))
    return found
