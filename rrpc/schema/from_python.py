"""Decorated Python services to the schema.

Whatever a service can be served with has a schema: an annotation or a default that the language has no word
for becomes an ``Opaque``. Refused is only what has no meaning for a caller, two classes of one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rrpc._interface import MISSING as NO_DEFAULT
from rrpc._interface import AnnotationError, Interface, item_of
from rrpc._interface import Method as PythonMethod
from rrpc._interface import Parameter as PythonParameter
from rrpc._interface.decorators import interface_of
from rrpc.errors import RpcError

from .annotations import Declarations
from .closure import closure
from .docstrings import split_docstring
from .model import MISSING, Declaration, Method, Module, Parameter, Service, Type


def service_of(thing: Any) -> Service:
    """The schema of a service class, of its instance or its ``Interface``.

    Its package is that of the wire name: the classes that ``lab.search.Nearest`` uses are ``lab.search.Row``
    and so on. AnnotationError names what can't be resolved, and two classes of one name.
    """
    interface = thing if isinstance(thing, Interface) else interface_of(thing)
    if interface is None:
        name = thing.__name__ if isinstance(thing, type) else type(thing).__name__
        raise TypeError(f"{name} is no service: decorate the class with @rrpc.service")
    # Annotations may have been texts until here.
    interface = interface.resolved()
    declarations = Declarations(interface.name.rpartition(".")[0])
    methods = tuple(_method(name, method, declarations) for name, method in interface.methods.items())
    declared = closure(methods, declarations.found.__getitem__)  # which puts inner ones first
    doc, deprecated = split_docstring(interface.doc)
    return Service(interface.name, methods, declared, doc=doc, deprecated=deprecated)


def _method(name: str, method: PythonMethod, declarations: Declarations) -> Method:
    parameters = tuple(
        _parameter(f"{method.name}(): parameter {parameter.name!r}", parameter, declarations)
        for parameter in method.parameters
    )
    item, stream = item_of(method.result)
    result = _typed(f"{method.name}(): result", item, declarations)
    doc, deprecated = split_docstring(method.doc)
    return Method(
        name,
        parameters,
        result,
        result_stream=stream,
        errors=tuple(_error(method, cls, declarations) for cls in method.errors),
        idempotent=method.idempotent,
        doc=doc,
        deprecated=deprecated,
    )


def _parameter(what: str, parameter: PythonParameter, declarations: Declarations) -> Parameter:
    item, stream = item_of(parameter.annotation)
    kind = _typed(what, item, declarations)
    default = MISSING
    if parameter.default is not NO_DEFAULT:
        default = declarations.default_of(parameter.default, item, kind)
    return Parameter(
        parameter.name, kind, default, parameter.keyword_only, parameter.positional_only, stream=stream
    )


def _error(method: PythonMethod, cls: type[RpcError], declarations: Declarations) -> str:
    try:
        return declarations.error_of(cls)
    except AnnotationError as error:
        raise AnnotationError(f"{method.name}(): {error}") from None


def _typed(what: str, annotation: Any, declarations: Declarations) -> Type:
    try:
        return declarations.type_of(annotation)
    except AnnotationError as error:
        raise AnnotationError(f"{what}: {error}") from None


def module_of(services: Sequence[Any]) -> Module:
    """One file with these services: schemas, or what ``service_of`` takes. They share a package."""
    schemas = [thing if isinstance(thing, Service) else service_of(thing) for thing in services]
    packages = list(dict.fromkeys(schema.name.rpartition(".")[0] for schema in schemas))
    if len(packages) != 1:
        shown = ", ".join(package or "no package" for package in packages)
        raise AnnotationError(f"one file has one package, the services have {shown or 'none'}")
    declarations: dict[str, Declaration] = {}
    for schema in schemas:
        for name, declaration in schema.declarations.items():
            # Compared by meaning: positions and documentation don't count.
            if declarations.setdefault(name, declaration) != declaration:
                raise AnnotationError(f"two classes are called {name}: {schema.name} has another")
    by_name: dict[str, Service] = {}
    for schema in schemas:
        if schema.name in declarations:
            raise AnnotationError(f"{schema.name} is the name of a class and of the service")
        if by_name.setdefault(schema.name, schema) is not schema:
            raise AnnotationError(f"two services are called {schema.name}")
    return Module(packages[0], declarations, by_name)
