"""Services and what they use as files: one for each package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from rrpc._interface import AnnotationError

from .closure import names_in, types_in
from .model import Declaration, Module, Service, Type


def modules_of(services: Sequence[Service]) -> dict[str, Module]:
    """The files that say the same as these services, by path, imported ones first.

    AnnotationError names two different declarations of one name, and packages that would import each other.
    """
    declared: dict[str, Declaration] = {}
    for service in services:
        for name, declaration in service.declarations.items():
            if declared.setdefault(name, declaration) != declaration:
                raise AnnotationError(f"two declarations are called {name}: {service.name} has another")
    packages = list(dict.fromkeys(_package(name) for name in (*declared, *(s.name for s in services))))
    needs = {package: set[str]() for package in packages}
    for name, declaration in declared.items():
        needs[_package(name)] |= _packages_in(types_in(declaration))
    for service in services:
        needs[_package(service.name)] |= _used_by(service)
    modules: dict[str, Module] = {}
    # Without itself, which the sorter would call a circle.
    for package in _in_order({name: inner - {name} for name, inner in needs.items()}):
        imports = [_path(inner) for inner in packages if inner in needs[package] and inner != package]
        modules[_path(package)] = Module(
            package,
            {name: known for name, known in declared.items() if _package(name) == package},
            {service.name: service for service in services if _package(service.name) == package},
            {path: modules[path] for path in imports},
        )
    return modules


def _package(name: str) -> str:
    return name.rpartition(".")[0]


def _path(package: str) -> str:
    return f"{package or 'main'}.rrpc"


def _packages_in(types: Iterable[Type]) -> set[str]:
    return {_package(name) for kind in types for name in names_in(kind)}


def _used_by(service: Service) -> set[str]:
    types = [kind for m in service.methods for kind in (*(p.type for p in m.parameters), m.result)]
    return _packages_in(types) | {_package(name) for m in service.methods for name in m.errors}


def _in_order(needs: dict[str, set[str]]) -> Iterable[str]:
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        names = " -> ".join(name or "no package" for name in error.args[1])
        raise AnnotationError(f"packages that need each other: {names}") from None
