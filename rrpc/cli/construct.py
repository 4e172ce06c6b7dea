"""Constructor arguments from the command line: ``name=value``, typed by the constructor's annotations."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .common import BadInput, user_line

__all__ = ["construct"]


def construct(classes: Sequence[tuple[str, type]], arguments: Sequence[str]) -> list[object]:
    """An instance of each (name, class), with the ``arguments`` meant for it. Raises BadInput."""
    given: dict[str, dict[str, str]] = {name: {} for name, _ in classes}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise BadInput(f"--arg {argument}: write name=value")
        service, dot, parameter = key.rpartition(".")
        if dot and service not in given:
            raise BadInput(f"--arg {argument}: there is no service {service}; there is {', '.join(given)}")
        if not dot and len(given) > 1:
            raise BadInput(f"--arg {argument}: say whose it is: {next(iter(given))}.{key}=...")
        given[service or next(iter(given))][parameter] = value
    return [_build(name, cls, given[name]) for name, cls in classes]


def _build(name: str, cls: type, given: dict[str, str]) -> object:
    parameters = _parameters(cls)
    for argument in given:
        if argument not in parameters:
            known = f"it has {', '.join(parameters)}" if parameters else "it has none"
            raise BadInput(f"--arg {argument}: {name} has no such constructor argument; {known}")
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in given]
    if missing:
        raise BadInput(f"{name} needs {' '.join(f'--arg {argument}=...' for argument in missing)}")
    hints = _hints(cls)
    values = {key: _convert(f"--arg {key}={text}", hints.get(key, str), text) for key, text in given.items()}
    try:
        return cls(**values)
    except Exception as error:
        raise BadInput(f"constructing {name}: {user_line(error)}") from error


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    try:
        found = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return {}
    return {name: p for name, p in found.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _hints(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls.__init__)
    except Exception:  # an annotation that only a type checker can see: its value stays a str
        return {}


def _bool(text: str) -> bool:
    values = {
        "true": True,
        "yes": True,
        "1": True,
        "on": True,
        "false": False,
        "no": False,
        "0": False,
        "off": False,
    }
    return values[text.lower()]


_CONVERT: dict[Any, Callable[[str], Any]] = {
    int: lambda text: int(text, 0),
    float: float,
    bool: _bool,
    str: str,
    Path: Path,
    bytes: str.encode,
    Any: str,
}


def _convert(what: str, annotation: Any, text: str) -> Any:
    kinds = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    for kind in kinds:
        try:
            return _CONVERT[kind](text)
        except (KeyError, ValueError):  # noqa: PERF203
            continue
    shown = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    if not any(kind in _CONVERT for kind in kinds):
        raise BadInput(f"{what}: a {shown} can't be given on the command line")
    raise BadInput(f"{what}: not a valid {shown}")
