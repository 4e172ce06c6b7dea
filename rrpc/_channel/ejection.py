"""Ejection of addresses at which calls fail one after the other."""

# The channel's lock guards the records.

from __future__ import annotations

from dataclasses import dataclass

from rrpc._options import grown
from rrpc.errors import RpcError, StatusCode

_STRIKES = frozenset({StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True)
class Ejection:
    """Rule by which an address is left out for a while, though it can be connected to.

    Attributes:
        failures: Number of calls that fail in a row (Unavailable and DeadlineExceeded) until it is left out.
        initial: Seconds for which it is left out then.
        maximum: Longest time for which it is left out, in seconds.
        multiplier: How much longer it is left out each time that the first call afterwards fails again.
    """

    failures: int = 5
    initial: float = 1.0
    maximum: float = 60.0
    multiplier: float = 2.0


class Record:
    """Outcome of the last calls to an address: failures in a row and ejections."""

    __slots__ = ("ejected_until", "ejections", "strikes")

    def __init__(self) -> None:
        self.strikes = 0
        """Failures in a row."""
        self.ejections = 0
        self.ejected_until = 0.0

    def failed(self, error: RpcError, now: float, ejection: Ejection) -> None:
        # Calls that were under way when the address was left out don't count again.
        if error.code not in _STRIKES or now < self.ejected_until:
            return
        self.strikes += 1
        if self.strikes >= ejection.failures:
            self.ejected_until = now + grown(
                ejection.initial, ejection.multiplier, self.ejections, ejection.maximum
            )
            self.ejections += 1
            self.strikes = ejection.failures - 1  # let in again, it has one try

    def succeeded(self, now: float) -> None:
        self.strikes = 0
        # Until then a success is that of an older call.
        if now >= self.ejected_until:
            self.ejections = 0
