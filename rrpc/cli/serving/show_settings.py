"""--print-config: every option as a TOML file that reads back the same."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from rrpc.cli.common import find_service
from rrpc.cli.construct import Given, distribute

from .config import dotted, quoted
from .serve_options import GROUPS, Option
from .settings import Settings


def as_toml(options: Settings) -> str:
    """Returns a configuration file that has these settings."""
    return "\n".join([*_lines(options), ""])


def _lines(options: Settings) -> Iterator[str]:
    yield "# rrpc-serve --config FILE: every option. A line that is commented out shows what may be set."
    for title, group in GROUPS.items():
        yield from ("", f"# ---- {title}")
        for option in group:
            yield from ("", *textwrap.wrap(option.help, 110, initial_indent="# ", subsequent_indent="# "))
            yield _line(option, getattr(options, option.attribute))
    yield from _authorization(options)
    for target, arguments in _service_arguments(options).items():
        yield from ("", f"[{dotted(('services', target))}]")
        for name, given in arguments.items():
            yield f"{dotted((name,))} = {toml_value(given.value)}"
    if not options.services:
        yield from (
            "",
            '# A table for each service, with its constructor\'s arguments:\n# [services."module:Service"]',
        )


def _authorization(options: Settings) -> Iterator[str]:
    if options.authorization is None:
        yield from (
            "",
            "# Who may call what; once this table stands, nobody may call what no line permits.",
            '# [authorization]\n# "Service" = ["user:alice", "group:ml"]\n# "rrpc.Health" = ["any"]',
        )
        return
    yield from ("", "[authorization]")
    for rule, allowed in options.authorization.rules.items():
        yield f"{dotted((rule,))} = {toml_value(allowed)}"


def _line(option: Option, value: Any) -> str:
    if value is None:
        return f"# {option.name} = {toml_value(option.example)}"
    return f"{option.name} = {toml_value(value)}"


def _service_arguments(options: Settings) -> dict[str, Mapping[str, Given]]:
    tables = {target: options.service_arguments.get(target, {}) for target in options.services}
    if not options.arg:
        return tables
    names = [find_service(target)[1].name for target in tables]  # --arg goes by the services' own names
    given = distribute(names, options.arg, list(tables.values()))
    return dict(zip(tables, given.values(), strict=True))


def toml_value(value: Any) -> str:
    """Returns the value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        items = (f"{dotted((key,))} = {toml_value(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return repr(value)
