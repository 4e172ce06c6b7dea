"""The configuration file: TOML with the flags' names as keys, a table for each service, and the policy."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rrpc import Authorization
from rrpc._options import suggestion
from rrpc._server.authorization import PolicyError
from rrpc.cli.common import BadInput

from .serve_options import BY_NAME, Option

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_TABLES = ("services", "authorization")


class ConfigFile:
    """A file that could be read; what is wrong in it is told with its name, line and key."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._text = Path(path).read_bytes().decode()
        except OSError as error:
            raise BadInput(f"--config {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise BadInput(f"{path}:{line}: TOML is written in UTF-8, and this isn't") from None
        try:
            self._data = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise BadInput(self._syntax(str(error))) from None

    def options(self) -> dict[str, Any]:
        """The options it sets, by attribute."""
        found: dict[str, Any] = {}
        for key, value in self._data.items():
            if key in _TABLES:
                continue
            if key not in BY_NAME:
                raise self.problem((key,), f"there is no option {key!r}{_meant(key, [*BY_NAME, *_TABLES])}")
            found[BY_NAME[key].attribute] = self._value(BY_NAME[key], value)
        return found

    def services(self) -> dict[str, dict[str, Any]]:
        """Constructor arguments by the service's target, ``module:Service``."""
        tables = self._data.get("services", {})
        if not isinstance(tables, dict):
            raise self.problem(("services",), 'write a table for each service: [services."module:Service"]')
        for target, table in tables.items():
            keys = ("services", target)
            if ":" not in target:
                raise self.problem(keys, 'the key is the service: [services."module:Service"]')
            if not isinstance(table, dict):
                raise self.problem(keys, f"must be a table of constructor arguments, not {table!r}")
        return tables

    def authorization(self) -> Authorization | None:
        """Returns the policy of the table ``[authorization]``; None if there is no such table."""
        if "authorization" not in self._data:
            return None
        table = self._data["authorization"]
        if not isinstance(table, dict):
            raise self.problem(
                ("authorization",), "must be a table, [authorization], with a line for each rule"
            )
        for name, allowed in table.items():
            keys = ("authorization", name)
            if isinstance(allowed, dict):
                inner = next(iter(allowed), "method")
                raise self.problem(keys, f'write the name in quotes: "{name}.{inner}" = ["user:alice"]')
            if not isinstance(allowed, list):
                raise self.problem(
                    keys, f'must be a list of principals such as ["user:alice"], not {allowed!r}'
                )
        try:
            return Authorization(table)
        except PolicyError as error:
            raise self.problem(("authorization", error.rule), error.why) from None

    def problem(self, keys: tuple[str, ...], text: str) -> BadInput:
        """Returns the error for the value under ``keys``, with the line where it stands."""
        return BadInput(f"{self.where(keys)}: {text}")

    def where(self, keys: tuple[str, ...]) -> str:
        """Returns the file, the line and the name of the value under ``keys``."""
        return f"{self.path}:{self._line_of(keys)}: {dotted(keys)}"

    def _value(self, option: Option, value: object) -> Any:
        values = value if option.many else [value]
        if not isinstance(values, list):
            raise self.problem((option.name,), f"must be a list, not {value!r}")
        if option.many and not values:
            raise self.problem((option.name,), "the list is empty")
        try:
            read = tuple(option.kind.from_toml(item) for item in values)
        except ValueError as error:
            raise self.problem((option.name,), str(error)) from None
        return read if option.many else read[0]

    def _syntax(self, message: str) -> str:
        match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
        if match is None:  # "at end of document"
            return f"{self.path}:{len(self._text.splitlines()) or 1}: {message}"
        return f"{self.path}:{match[2]}:{match[3]}: {match[1]}"

    def _line_of(self, keys: tuple[str, ...]) -> int:
        """Returns the line number of a key.

        The parser gives no positions, so this finds the longest beginning of the file that parses and lacks
        the key: the key is on the next line.
        """
        lines = self._text.split("\n")
        before = 0
        for count in range(len(lines) + 1):
            try:
                data = tomllib.loads("\n".join([*lines[:count], ""]))
            except tomllib.TOMLDecodeError:
                continue
            if _has(data, keys):
                break
            before = count
        return before + 1


def _has(data: Any, keys: Iterable[str]) -> bool:
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True


def _meant(key: str, known: Iterable[str]) -> str:
    return suggestion(key.replace("_", "-").lower(), known) or f"; there are {', '.join(sorted(known))}"


def dotted(keys: Iterable[str]) -> str:
    """A key as TOML writes it."""
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else quoted(key) for key in keys)


def quoted(text: str) -> str:
    """Text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
