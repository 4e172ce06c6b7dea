"""One address of a channel: its connection, or when to try again."""

# The channel's lock guards all of this. Nothing here waits, or calls the core but for what is cheap.

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rrpc._options import grown
from rrpc.errors import DeadlineExceeded, RpcError, Unavailable, unsent

from .connection import Connection
from .ejection import Record

IDLE = "idle"
CONNECTING = "connecting"
READY = "ready"
TRANSIENT_FAILURE = "transient_failure"
SHUTDOWN = "shutdown"


@dataclass(frozen=True)
class Backoff:
    """Delay before the next attempt to connect, in seconds. It grows with each failure in a row.

    The rule is gRPC's (its doc/connection-backoff.md); the times are shorter.

    Attributes:
        initial: Seconds after the first failure.
        maximum: Most seconds, before the jitter.
        multiplier: How much longer each delay is than the one before.
        jitter: Part of the delay by which it is shortened or lengthened at most, at random.
    """

    initial: float = 0.1
    maximum: float = 15.0
    multiplier: float = 1.6
    jitter: float = 0.2

    def delay(self, failures: int) -> float:
        """Seconds, after 1 failure or more."""
        wait = grown(self.initial, self.multiplier, failures - 1, self.maximum)
        return wait * random.uniform(1 - self.jitter, 1 + self.jitter)


class Subchannel:
    """One address. The channel's lock guards it."""

    __slots__ = (
        "address",
        "connection",
        "ended",
        "error",
        "failed_at",
        "failures",
        "record",
        "retry_at",
        "state",
        "unresolved",
    )

    def __init__(self, address: str, unresolved: bool = False) -> None:
        self.address = address
        self.unresolved = unresolved
        """It stands for addresses that aren't known yet."""
        self.state = IDLE
        self.connection: Connection | None = None
        """The last one, which is good where the state is ready."""
        self.error: RpcError | None = None
        """Why the last attempt failed."""
        self.ended = ""
        """Message of the error that calls over the last connection got at its end."""
        self.failures = 0
        self.failed_at = 0.0
        self.retry_at = 0.0
        self.record = Record()

    def usable(self) -> bool:
        return self.connection is not None and self.connection.usable()

    def may_connect(self, now: float) -> bool:
        return self.state == IDLE or (self.state == TRANSIENT_FAILURE and now >= self.retry_at)

    def connected(self, connection: Connection) -> None:
        self.state = READY
        self.connection = connection
        self.error = None
        self.ended = ""
        connection.record = self.record

    def failed(self, error: RpcError, now: float, backoff: Backoff) -> None:
        """Connecting came to nothing."""
        self.failures += 1
        self.state = TRANSIENT_FAILURE
        why = error.message
        if self.ended and self.ended != why:
            why = f"{why}; and the last connection ended: {self.ended}"
        self.error = type(error)(why)  # a new one: what was raised keeps the frames that it went through
        self.failed_at = now
        self.retry_at = now + backoff.delay(self.failures)

    def lost(self, now: float, backoff: Backoff, error: RpcError | None = None) -> None:
        """The connection takes no more calls. One that was lost at once counts as a failed attempt."""
        assert self.connection is not None
        self.ended = "" if error is None else error.message
        # Without this, a server that accepts connections and closes them would be connected to without a pause.
        if now - self.connection.since < backoff.initial:
            ended = f"{self.address}: a new connection takes no calls; the server may be shutting down"
            self.failed(Unavailable(ended) if error is None else error, now, backoff)
        else:
            self.failures = 0
            self.state = IDLE

    def info(self, now: float) -> dict[str, Any]:
        return {
            "address": self.address,
            "state": self.state,
            "failures": self.failures,
            "why_not": "" if self.error is None else self.error.message,
            "ejected": now < self.record.ejected_until,
        }


def failure(subchannels: Sequence[Subchannel]) -> RpcError:
    """Why no call can be made now."""
    errors = [subchannel.error for subchannel in subchannels if subchannel.error is not None]
    if len(errors) == 1:
        error = errors[0]
        # The time that has passed is connect_timeout, which isn't the call's deadline.
        kind = Unavailable if isinstance(error, DeadlineExceeded) else type(error)
        return unsent(kind(error.message))
    reasons = "; ".join(dict.fromkeys(error.message for error in errors))
    return unsent(Unavailable(f"none of the {len(subchannels)} addresses can be had: {reasons}"))
