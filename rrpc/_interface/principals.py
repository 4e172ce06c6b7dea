"""Principals: the one syntax in which code, policy files and tests name callers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

SYNTAX = (
    "any, authenticated, same-user, user:NAME, uid:NUMBER, group:NAME, gid:NUMBER, dns:NAME, spiffe://DOMAIN/PATH "
    "and token:SUBJECT"
)
# The highest number, -1, is no user's and no group's.
_NUMBER_MAX = 0xFFFF_FFFE
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_SPIFFE = re.compile(r"spiffe://[a-z0-9._-]+(/[A-Za-z0-9._-]+)*(/\*)?")


class Principal(NamedTuple):
    """A kind of callers. Users and groups keep their names until a server resolves them."""

    kind: str
    """``any``, ``authenticated``, ``same-user``, ``user``, ``uid``, ``group``, ``gid``, ``dns``, ``uri``, ``token``."""
    value: str | int = ""


def parse_principal(text: object) -> Principal:
    """Returns the principal that the text names. Raises ValueError, whose message says what is wrong."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.80} is no principal, which is a str: there are {SYNTAX}")
    if text in ("any", "authenticated", "same-user"):
        return Principal(text)
    if text.startswith("spiffe:"):
        if not _SPIFFE.fullmatch(text):
            raise ValueError(
                f"{text!r:.200} is no SPIFFE id: write spiffe://DOMAIN/PATH, with /* at the end for all below it"
            )
        return Principal("uri", text)
    kind, colon, value = text.partition(":")
    if not colon or kind not in _READ:
        raise ValueError(f"there is no principal {text!r:.200}: there are {SYNTAX}")
    return Principal(kind, _READ[kind](text, value))


def principal_texts(given: object, where: str, what: str = "allow") -> tuple[str, ...]:
    """Returns the principals in a list, checked; an empty list means nobody.

    Raises TypeError for anything but a list, tuple or set of principals, and ValueError for a bad one; ``where``
    begins the message, and ``what`` is what takes the list.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(
            f'{where}: {what} takes a list of principals such as ["user:alice"], not {given!r:.80}'
        )
    texts = tuple(given)
    try:
        for text in texts:
            parse_principal(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return texts


def _number(text: str, value: str) -> int:
    # isdecimal() alone takes digits of other scripts too.
    if not (value.isascii() and value.isdecimal()) or int(value) > _NUMBER_MAX:
        raise ValueError(f"{text!r:.80} needs a number from 0 to {_NUMBER_MAX}, as in uid:1000")
    return int(value)


def _name(text: str, value: str) -> str:
    if not value or not value.isprintable() or value != value.strip():
        kind = text.partition(":")[0]
        raise ValueError(f"{text!r:.80} needs a name after the colon, as in {kind}:alice")
    return value


def _dns(text: str, value: str) -> str:
    labels = value.removeprefix("*.").split(".")
    if len(value) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or value.startswith("*.*"):
        raise ValueError(
            f"{text!r:.300} is no DNS name, as in dns:worker.example.org or dns:*.example.org, where *. stands for "
            "one label"
        )
    return value


_READ: dict[str, Callable[[str, str], str | int]] = {
    "user": _name,
    "uid": _number,
    "group": _name,
    "gid": _number,
    "dns": _dns,
    "token": _name,
}
