"""One address of a channel: its connection, or when to try again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rrpc.errors import DeadlineExceeded, RpcError, Unavailable, unsent

from .connection import Connection

__all__ = [
    "CONNECTING",
    "IDLE",
    "READY",
    "SHUTDOWN",
    "TRANSIENT_FAILURE",
    "Backoff",
    "Subchannel",
    "failure",
    "split",
]

IDLE = "idle"
CONNECTING = "connecting"
READY = "ready"
TRANSIENT_FAILURE = "transient_failure"
SHUTDOWN = "shutdown"


@dataclass(frozen=True)
class Backoff:
    """How long to wait before connecting again after so many failures in a row.

    The rule is gRPC's (its doc/connection-backoff.md), the times are shorter.
    """

    initial: float = 0.1
    maximum: float = 15.0
    multiplier: float = 1.6
    jitter: float = 0.2

    def delay(self, failures: int) -> float:
        """Seconds, after 1 failure or more."""
        grown: float = self.initial * self.multiplier ** min(failures - 1, 64)
        return min(self.maximum, grown) * random.uniform(1 - self.jitter, 1 + self.jitter)


class Subchannel:
    """One address. The channel's lock guards it."""

    __slots__ = ("address", "connection", "error", "failures", "retry_at", "state")

    def __init__(self, address: str) -> None:
        self.address = address
        self.state = IDLE
        self.connection: Connection | None = None
        """The last one, which is good where the state is ready."""
        self.error: RpcError | None = None
        """Why the last attempt failed."""
        self.failures = 0
        self.retry_at = 0.0

    def may_connect(self, now: float) -> bool:
        return self.state == IDLE or (self.state == TRANSIENT_FAILURE and now >= self.retry_at)

    def connected(self, connection: Connection) -> None:
        self.state = READY
        self.connection = connection
        self.error = None

    def failed(self, error: RpcError, now: float, backoff: Backoff) -> None:
        """Connecting came to nothing."""
        self.failures += 1
        self.state = TRANSIENT_FAILURE
        self.error = error
        self.retry_at = now + backoff.delay(self.failures)

    def lost(self, now: float, backoff: Backoff, error: RpcError | None = None) -> None:
        """The connection takes no more calls. One that was lost at once counts as a failed attempt."""
        assert self.connection is not None
        if now - self.connection.since < backoff.initial:
            ended = f"{self.address}: a new connection takes no calls; the server may be shutting down"
            self.failed(Unavailable(ended) if error is None else error, now, backoff)
        else:
            self.failures = 0
            self.state = IDLE

    def usable(self) -> bool:
        return self.connection is not None and self.connection.usable()

    def info(self) -> dict[str, Any]:
        why_not = "" if self.error is None else self.error.message
        return {
            "address": self.address,
            "state": self.state,
            "failures": self.failures,
            "why_not": why_not,
        }


def failure(subchannels: Sequence[Subchannel], now: float) -> RpcError:
    """Why no call can be made now."""
    errors = [subchannel.error for subchannel in subchannels if subchannel.error is not None]
    if len(errors) == 1:
        error = errors[0]
        kind = Unavailable if isinstance(error, DeadlineExceeded) else type(error)
        return unsent(kind(error.message))
    reasons = "; ".join(dict.fromkeys(error.message for error in errors))
    return unsent(Unavailable(f"none of the {len(subchannels)} addresses can be had: {reasons}"))


def split(target: str) -> list[str]:
    """``rrpc://a:1,b:2`` as two addresses."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme == "shm":
        return [target]
    return [one if "://" in one else f"{scheme}://{one}" for one in rest.split(",")]
