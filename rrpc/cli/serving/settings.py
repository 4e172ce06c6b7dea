"""Settings of rrpc-serve: the configuration file overrides defaults, and flags override both."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from rrpc.cli.common import Parser, takes_files
from rrpc.cli.construct import Given

from .serve_options import GROUPS, OPTIONS, Option

Settings = argparse.Namespace
"""The options by attribute, and what isn't in the table: ``services`` (targets), ``arg``, ``config``, ``print_config``.

Of the file: ``service_arguments`` by target; ``authorization``, the policy or None; functions that name the place,
``service_where`` by target, ``where`` by attribute and ``rule_where``, which takes a rule's name."""


def _parser() -> Parser:
    made = Parser(prog="rrpc-serve", description="Serve one or more services.")
    add = made.add_argument
    add("services", nargs="*", metavar="module:Service", help="a class decorated with @rrpc.service")
    config = add(
        "--config",
        metavar="FILE",
        help="a TOML file with any of these options; flags win over it; [authorization] says who may call what",
    )
    takes_files(config)
    add("--print-config", action="store_true", help="print all options as such a file, and end")
    add(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a constructor argument; Service.NAME=VALUE with several services",
    )
    for title, options in GROUPS.items():
        group = made.add_argument_group(title)
        for option in options:
            _add(group, option)
    return made


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    shown = ", ".join(option.default) if option.many and option.default else option.default
    help_text = option.help
    if option.default is None or option.default is False:
        pass
    elif isinstance(shown, float):
        help_text += f" (default: {shown:g})"
    else:
        help_text += f" (default: {shown})"
    flag = f"--{option.name}"
    if option.kind.toml_types == (bool,):
        group.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_text
        )
    else:
        action = group.add_argument(
            flag,
            action="append" if option.many else "store",
            type=option.kind.from_text,
            metavar=option.metavar or option.kind.metavar or None,
            default=argparse.SUPPRESS,
            help=help_text,
        )
        action.choices = option.kind.names or None
        if option.metavar == "FILE":
            takes_files(action)


def settings(arguments: Sequence[str] | None = None) -> Settings:
    """Raises BadInput for the file, and exits with one line for the flags."""
    reader = _parser()
    made = Settings(**{option.attribute: option.default for option in OPTIONS})
    flags = reader.parse_args(arguments)
    made.service_arguments, made.service_where, made.where = {}, {}, {}
    made.authorization = None
    if flags.config is not None:
        from .config import ConfigFile

        file = ConfigFile(flags.config)
        found = file.options()
        vars(made).update(found)
        made.where = {
            option.attribute: partial(file.where, (option.name,))
            for option in OPTIONS
            if option.attribute in found and option.attribute not in vars(flags)
        }
        made.authorization = file.authorization()
        made.rule_where = lambda rule: file.where(("authorization", rule))
        for target, table in file.services().items():
            made.service_where[target] = partial(file.where, ("services", target))
            made.service_arguments[target] = {
                name: Given(value, partial(file.where, ("services", target, name)))
                for name, value in table.items()
            }
    vars(made).update(vars(flags))
    made.services = made.services or list(made.service_arguments)
    if not made.services and not made.print_config:
        reader.error("name a service: module:Service, or a table for it in the file of --config")
    return made


def core_options(made: Settings) -> dict[str, Any]:
    """Returns the options to pass to the Server unchanged.

    Options that aren't given are left out, so that they keep the core's own default.
    """
    given = {
        option.core_name or option.attribute: getattr(made, option.attribute)
        for option in OPTIONS
        if option.core
    }
    return {name: value for name, value in given.items() if value is not None}


def guards_of(made: Settings) -> list[str]:
    """Returns the names of what keeps callers out, of that which is there."""
    return [
        name
        for name in ("authorization", "allow_client", "tls_cert", "tls_client_ca")
        if getattr(made, name) is not None
    ]


def tls_options(made: Settings) -> dict[str, Any]:
    """Returns the options of TLS and of what it protects alone, by the core's names."""
    return {
        name: value
        for name, value in core_options(made).items()
        if name.startswith("tls_") or name == "rdma_security"
    }


def where(made: Settings, error: Exception) -> str:
    """The place in the file of what the core's ``error`` is about; "" where there is none."""
    text = str(error)
    for option in OPTIONS:
        if option.attribute not in made.where:
            continue
        named = option.many and any(value in text for value in getattr(made, option.attribute))
        if named or (option.core and re.search(rf"\b{option.attribute}\b", text)):
            place: str = made.where[option.attribute]()
            return place
    return ""
