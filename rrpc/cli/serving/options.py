"""Every option of rrpc-serve, once: the flags, the configuration file and --print-config are made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .kinds import POSITIVE, SECONDS, SIZE, SWITCH, TEXT, Kind, one_of

__all__ = ["BY_NAME", "GROUPS", "OPTIONS", "Option"]


@dataclass(frozen=True)
class Option:
    name: str
    """The flag without its dashes, and the key in the file."""
    kind: Kind
    help: str
    metavar: str = ""
    default: Any = None
    example: Any = None
    """For --print-config, where there is no default."""
    many: bool = False
    """A flag that may be repeated, a list in the file."""
    core: bool = False
    """Goes to rrpc.Server by its attribute's name, where it is given."""

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")


_SERVING = (
    Option(
        "listen",
        TEXT,
        "where to listen; may be repeated",
        "ADDRESS",
        default=("rrpc://127.0.0.1:7471",),
        many=True,
    ),
    Option("workers", POSITIVE, "handlers that run at a time", "N", default=4),
    Option(
        "grace", SECONDS, "how long running calls may take to end after a signal", "SECONDS", default=30.0
    ),
    Option("tracebacks", SWITCH, "send tracebacks of handlers' exceptions to callers", default=False),
)

_TRANSPORTS = (
    Option(
        "transports",
        TEXT,
        "what clients of rrpc:// addresses may use, best first",
        "LIST",
        example="shm,verbs,tcp",
        core=True,
    ),
    Option(
        "any-user",
        SWITCH,
        "let other users of this host connect over shared memory",
        default=False,
        core=True,
    ),
    Option(
        "shared-receive-slots",
        POSITIVE,
        "receive slots that all connections over verbs share, for servers with hundreds of clients; "
        "without it a ring for each connection",
        "N",
        example=4096,
        core=True,
    ),
)

_LIMITS = (
    Option(
        "pool-limit",
        SIZE,
        "most registered memory, such as 512M or 4G; without it half of the memory",
        "BYTES",
        example="4G",
    ),
)

_LOGS = (
    Option(
        "log-level",
        one_of("debug", "info", "warning", "error", "critical"),
        "what to log on stderr: debug, info, warning, error or critical",
        "LEVEL",
        default="warning",
    ),
)

GROUPS: dict[str, tuple[Option, ...]] = {
    "serving": _SERVING,
    "transports": _TRANSPORTS,
    "limits": _LIMITS,
    "logs": _LOGS,
}
OPTIONS: tuple[Option, ...] = tuple(option for group in GROUPS.values() for option in group)
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
