"""Constructor arguments, from the command line as ``name=value`` or the configuration file, typed by annotations."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import Any, NamedTuple

from .common import BadInput, user_line


class Given(NamedTuple):
    """A constructor argument: text of the command line, or a value of the configuration file."""

    value: Any
    where: Callable[[], str]
    """Names it in errors."""


def distribute(
    names: Sequence[str], arguments: Sequence[str], from_file: Sequence[Mapping[str, Given]] = ()
) -> dict[str, dict[str, Given]]:
    """Returns the constructor arguments of each service in ``names``. Raises BadInput.

    ``arguments``, from the command line, override ``from_file``.
    """
    given: dict[str, dict[str, Given]] = {name: {} for name in names}
    for name, table in zip(names, from_file, strict=False):
        given[name].update(table)
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise BadInput(f"--arg {argument}: write name=value")
        service, dot, parameter = key.rpartition(".")
        if dot and service not in given:
            raise BadInput(f"--arg {argument}: there is no service {service}; there is {', '.join(given)}")
        if not dot and len(given) > 1:
            raise BadInput(f"--arg {argument}: say whose it is: {next(iter(given))}.{key}=...")
        where = f"--arg {parameter}={value}"
        given[service or next(iter(given))][parameter] = Given(value, where.__str__)
    return given


def construct(name: str, cls: type, given: Mapping[str, Given]) -> object:
    """An instance of the service's class. Raises BadInput."""
    parameters = _parameters(cls)
    for argument, value in given.items():
        if argument not in parameters:
            known = f"it has {', '.join(parameters)}" if parameters else "it has none"
            raise BadInput(f"{value.where()}: {name} has no such constructor argument; {known}")
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in given]
    if missing:
        raise BadInput(f"{name} needs {' '.join(f'--arg {argument}=...' for argument in missing)}")
    hints = _hints(cls)
    values = {key: _convert(value, hints.get(key)) for key, value in given.items()}
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
    return ConfigParser.BOOLEAN_STATES[text.lower()]


_CONVERT: dict[Any, Callable[[str], Any]] = {
    int: lambda text: int(text, 0),
    float: float,
    bool: _bool,
    str: str,
    Path: Path,
    bytes: str.encode,
    Any: str,
}


def _convert(given: Given, annotation: Any) -> Any:
    """``annotation`` is None where there is none."""
    text = isinstance(given.value, str)
    kinds = [annotation if annotation is not None else (str if text else Any)]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    for kind in kinds:
        try:
            return _CONVERT[kind](given.value) if text else _fitting(kind, given.value)
        except (KeyError, ValueError):  # noqa: PERF203
            continue
    shown = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    if text and not any(kind in _CONVERT for kind in kinds):
        raise BadInput(f"{given.where()}: a {shown} can't be given as text")
    raise BadInput(f"{given.where()}: not a valid {shown}")


def _fitting(kind: Any, value: Any) -> Any:
    """A value of the configuration file, where the annotation ``kind`` lets it be one."""
    kind = typing.get_origin(kind) or kind
    if kind is Any or (kind is float and type(value) is int):
        return value
    if not isinstance(kind, type) or not isinstance(value, kind) or (kind is int and type(value) is bool):
        raise ValueError(value)
    return value
