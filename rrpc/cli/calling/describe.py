"""``rrpc-call ADDRESS list`` and ``describe``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from rrpc import idl  # its printer needs lark, which may be missing where none is asked for
from rrpc._interface import AnnotationError, signature_text
from rrpc.cli.common import BadInput, one_line
from rrpc.schema import Method, Service, modules_of, to_data
from rrpc.schema.closure import closure
from rrpc.schema.to_python import to_interface

from .offered import Offered


def listing(offered: Offered, arguments: Sequence[str], strict: bool) -> str:
    """Every service and its methods, a line each."""
    if arguments:
        raise BadInput(f"list takes no {arguments[0]!r}; describe {arguments[0]} shows one")
    services = [offered.service(name) for name in offered.names()]
    if strict:
        return json.dumps(
            [
                {"name": service.name, "doc": service.doc, "methods": [m.name for m in service.methods]}
                for service in services
            ]
        )
    lines = []
    for service in services:
        lines.append(_line(service.name, service.doc))
        lines += [_line(f"  {method.name}", method.doc) for method in service.methods]
    return "\n".join(lines)


def _line(name: str, doc: str) -> str:
    first = doc.strip().partition("\n")[0]
    return f"{name:<24}  {first}" if first else name


def describe(offered: Offered, arguments: Sequence[str], strict: bool) -> str:
    """The interface of all services, of one, or one method."""
    if len(arguments) > 1:
        raise BadInput("describe takes one service or service.method")
    target = arguments[0] if arguments else ""
    if not target:
        services = [offered.service(name) for name in offered.names()]
    elif target in offered.names() or "." not in target:
        services = [offered.service(target)]
    else:
        service, method = offered.method(target)
        services = [_with_methods(service, [method])]
    if strict:
        return json.dumps([to_data(service) for service in services])
    try:
        return "\n\n".join(map(_text, services))
    except ImportError as error:
        raise BadInput(
            f"describe needs {error.name}: pip install {error.name}; --json does without"
        ) from None


def _with_methods(service: Service, methods: Sequence[Method]) -> Service:
    declarations = closure(methods, service.declarations.__getitem__)
    return dataclasses.replace(service, methods=tuple(methods), declarations=declarations)


def _files(service: Service) -> str:
    """Returns the text of the service's .rrpc file, or of one file for each package that it uses."""
    modules = modules_of([service])
    texts = [(path, idl.print_module(module).rstrip()) for path, module in modules.items()]
    return "\n\n".join(text if len(texts) == 1 else f"// {path}\n{text}" for path, text in texts)


def _text(service: Service) -> str:
    """Returns the text of a service's .rrpc files.

    Methods that .rrpc can't express follow as comments: the reason and the Python signature.
    """
    try:
        return _files(service)
    except AnnotationError:
        reasons = {method.name: _why_not(service, method) for method in service.methods}
    rest = [method for method in service.methods if not reasons[method.name]]
    parts = [_files(_with_methods(service, rest))] if rest else []
    interface = to_interface(service)
    for name, reason in reasons.items():
        if reason:
            parts.append(f"// {reason}\n//   {signature_text(interface.methods[name])}")
    return "\n\n".join(parts)


def _why_not(service: Service, method: Method) -> str:
    try:
        _files(_with_methods(service, [method]))
    except AnnotationError as error:
        return one_line(str(error))
    return ""
