"""Kinds of option values, read from a flag's text or from a TOML value."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from rrpc._numa import AUTO, cpu_list


class Kind(NamedTuple):
    """A kind of value that an option takes, on the command line and in the file."""

    what: str
    """What a value is, for errors: "... isn't a whole number from 1 up"."""
    toml_types: tuple[type, ...]
    read: Callable[[Any], Any]
    """Makes the value of text or of one of ``toml_types``; ValueError where it can't be one."""
    metavar: str = ""
    """What stands for a value in the help."""
    names: tuple[str, ...] = ()
    """All values, where a shell can complete them."""

    def from_text(self, text: str) -> Any:
        """Makes the value of text. Raises argparse.ArgumentTypeError if it is none."""
        try:
            return self.read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} isn't {self.what}") from None

    def from_toml(self, value: object) -> Any:
        """Raises ValueError, whose message goes after the key."""
        try:
            if type(value) in self.toml_types:
                return self.read(value)
        except ValueError:
            pass
        raise ValueError(f"{value!r} isn't {self.what}")


def one_of(*names: str) -> Kind:
    """Returns the kind of value that is one of ``names``."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return Kind(f"one of {', '.join(names)}", (str,), read, names=names)


def _positive(value: str | int) -> int:
    number = int(value)
    if number < 1:
        raise ValueError(value)
    return number


def _seconds(value: str | float) -> float:
    number = float(value)
    if number < 0 or math.isnan(number):
        raise ValueError(value)
    return number


def _rate(value: str | float) -> float:
    number = float(value)
    if not 1e-3 <= number <= 1e9:
        raise ValueError(value)
    return number


def _size(value: str | int) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", str(value), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise ValueError(value)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()]


def host_and_port(value: str) -> tuple[str, int]:
    """Splits "host:port", "[::1]:port" or ":port". Raises ValueError for any other text."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(value)
    return host.strip("[]"), int(port)


def _host_port(value: str) -> str:
    host_and_port(value)
    return value


def _cpus(value: str) -> str:
    cpu_list(value)
    return value


def _whole(value: str | int) -> int:
    number = int(value)
    if number < 0:
        raise ValueError(value)
    return number


def _node(value: str | int) -> int | str:
    return value if value == AUTO else _whole(value)


POSITIVE = Kind("a whole number from 1 up", (int,), _positive, "N")
NUMBER = Kind("a whole number from 0 up", (int,), _whole, "N")
RATE = Kind("a number of calls a second from 0.001 to 1e9", (int, float), _rate, "N")
SECONDS = Kind("a number of seconds", (int, float), _seconds, "SECONDS")
SIZE = Kind("a size such as 512M or 4G", (int, str), _size, "BYTES")
HOST_PORT = Kind("of the form host:port", (str,), _host_port, "HOST:PORT")
CPUS = Kind("a list of processors such as 0-3,8", (str,), _cpus, "LIST")
NUMA_NODE = Kind("a node's number or auto", (int, str), _node, "N|auto")
TEXT = Kind("text", (str,), str)
SWITCH = Kind("true or false", (bool,), bool)
