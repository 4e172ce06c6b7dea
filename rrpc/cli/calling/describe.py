"""``rrpc-call ADDRESS list`` and ``describe``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from rrpc.cli.common import BadInput
from rrpc.schema import Service, to_data
from rrpc.schema.to_python import to_interface
from rrpc.service import signature_text

from .offered import Offered

__all__ = ["describe", "listing"]


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
        services = [dataclasses.replace(service, methods=(method,))]
    if strict:
        return json.dumps([to_data(service) for service in services])
    return "\n\n".join(map(_signatures, services))


def _signatures(service: Service) -> str:
    interface = to_interface(service)
    lines = [f"service {interface.name}", *_indented(interface.doc)]
    for method in [*interface.methods.values(), *interface.streams.values()]:
        lines += ["", f"  {signature_text(method)}", *_indented(method.doc, "      ")]
    return "\n".join(lines)


def _indented(doc: str, indent: str = "    ") -> list[str]:
    return [f"{indent}{line}".rstrip() for line in doc.strip().splitlines()]
