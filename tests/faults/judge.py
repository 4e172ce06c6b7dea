"""Holds what came of a case against what is promised."""

import re
from collections.abc import Callable
from typing import Any

from .cases import (
    ADAPTERS,
    CONNECTION_ENDS,
    DAMAGED_READ,
    ERRORS,
    GIVEN_UP_SECONDS,
    PASSED,
    SILENT,
    STALLS,
    Case,
    stretched,
)

Wait = dict[str, Any]
AFTER_DEADLINE_SECONDS = stretched(0.1)
AFTER_DEATH_SECONDS = stretched(1.0)
FAREWELL_SECONDS = stretched(1.1)  # how long a closed connection of tcp stays for its last words
HOPS = 4  # threads that a wait passes, each of which a busy machine may keep waiting
PERHAPS_BUSY_SECONDS = (
    1.0  # what is late by less is looked at again: a sleeper's lateness isn't all that load does
)
NEVER = float("inf")


class Judge:
    """Of one case. ``lateness`` says by how much the machine kept processes waiting in an interval."""

    def __init__(self, case: Case, lateness: Callable[[float, float], float]) -> None:
        self._case = case
        self._lateness = lateness
        self.fault_at = 0.0
        self.resumed_at = 0.0
        self.problems: list[str] = []
        self.only_late = True
        """Nothing was wrong but times, and none by a second."""
        self._seen = 0

    def problem(self, text: str, late: float = NEVER) -> None:
        """``late``: by how many seconds, where that is all that is wrong."""
        self.problems.append(text)
        self.only_late = self.only_late and late < PERHAPS_BUSY_SECONDS

    def all_right(self, waits: list[Wait]) -> None:
        """Without a fault yet, or after one: each has its result."""
        for wait in self._new(waits):
            if wait["name"] == "held":  # it was amid the fault, and may be told of late
                self._outcome_fits(wait)
                self._ends_in_time(wait)
            elif not wait["right"]:
                self.problem(f"{wait['name']}: {_outcome(wait)}")

    def waits(self, waits: list[Wait]) -> None:
        """Amid which the fault came."""
        for wait in self._new(waits):
            self._outcome_fits(wait)
            self._ends_in_time(wait)

    def again(self, first: list[Wait], second: list[Wait]) -> None:
        """After the fault: the first call may be told of it, if it came after all others had their results. Of damage
        that nothing shows, a connection may suffer until it is closed."""
        self.waits(first)
        (self.waits if self._case.action == "corrupt bits" else self.all_right)(second)

    def settled(self, who: str, said: dict[str, Any]) -> None:
        if said["left"]:
            self.problem(f"the {who} is left with {said['left']}")

    def server_settled(self, said: dict[str, Any]) -> None:
        """Of a client that died or fell silent nothing is left soon."""
        self.settled("server", said)
        if not said["left"]:
            by = self._dead_by(self.fault_at) + FAREWELL_SECONDS
            self._in_time("the server's end", self.fault_at, said["at"], by)

    def _new(self, waits: list[Wait]) -> list[Wait]:
        """Those that weren't looked at: processes tell them all, until their client is closed."""
        new, self._seen = waits[self._seen :], len(waits)
        return new

    def _outcome_fits(self, wait: Wait) -> None:
        action = self._case.action
        allowed = [ERRORS[action]]
        if self._case.transport in STALLS:
            allowed.append(ERRORS["silence"])
        if self._case.transport in ADAPTERS and (self._case.step, action) == ("READ", "corrupt header"):
            allowed.append(DAMAGED_READ)
        if wait["timeout"] is not None:
            allowed.append(PASSED)
        if self._case.step == "HELLO" and action == "delay past the deadline":
            allowed.append(ERRORS["silence"])
        fits = wait["right"] or action == "corrupt bits"
        if wait["error"]:
            fits = any(each is not None and re.match(each, _outcome(wait)) for each in allowed)
        if not fits:
            self.problem(f"{wait['name']}: {_outcome(wait)}")

    def _ends_in_time(self, wait: Wait) -> None:
        begin = max(wait["began"], self.fault_at, self.resumed_at)
        bounds = []
        if wait["timeout"] is not None:
            bounds.append(max(wait["began"] + wait["timeout"], self.resumed_at) + AFTER_DEADLINE_SECONDS)
        if wait["timeout"] is None or self._case.action in CONNECTION_ENDS:
            bounds.append(self._dead_by(begin))
        self._in_time(wait["name"], wait["began"], wait["ended"], min(bounds))

    def _dead_by(self, begin: float) -> float:
        silent = self._case.action in SILENT or self._case.transport in STALLS
        silence = GIVEN_UP_SECONDS if silent and begin != self.resumed_at else 0.0
        return begin + silence + AFTER_DEATH_SECONDS

    def _in_time(self, name: str, began: float, ended: float, by: float) -> None:
        late = ended - by
        if late > 0 and late > HOPS * self._lateness(began, ended):
            self.problem(f"{name} ended {late * 1000:.0f} ms too late", late)


def _outcome(wait: Wait) -> str:
    if wait["error"]:
        return f"{wait['error']}: {wait['message']}"
    return "the result" if wait["right"] else "a wrong result"
