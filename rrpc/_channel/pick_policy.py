"""Policies that pick one of several connections for a call."""

# A channel has a policy of its own, and calls it while holding its lock.

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from .subchannel import Subchannel


class Policy(Protocol):
    """Rule by which a channel uses its addresses."""

    keeps_all: bool
    """Whether it wants a connection to every address, not only to the first that can be had."""

    def choose(self, ready: Sequence[Subchannel]) -> Subchannel:
        """Chooses one of the ready addresses, of which there is at least one, in order. The channel's lock is held."""


class _PickFirst:
    keeps_all = False

    def choose(self, ready: Sequence[Subchannel]) -> Subchannel:
        return ready[0]


class _RoundRobin:
    keeps_all = True

    def __init__(self) -> None:
        self._turn = itertools.count()

    def choose(self, ready: Sequence[Subchannel]) -> Subchannel:
        return ready[next(self._turn) % len(ready)]


class _LeastOutstanding(_RoundRobin):
    """The one with the fewest calls in flight of this process; in turn among equals."""

    def choose(self, ready: Sequence[Subchannel]) -> Subchannel:
        start = next(self._turn) % len(ready)
        return min([*ready[start:], *ready[:start]], key=_outstanding)


def _outstanding(subchannel: Subchannel) -> int:
    assert subchannel.connection is not None
    return subchannel.connection.calls_in_flight()


_POLICIES: dict[str, type[Policy]] = {
    "pick_first": _PickFirst,
    "round_robin": _RoundRobin,
    "least_outstanding": _LeastOutstanding,
}


def policy_named(name: str) -> Policy:
    """A new one; ValueError if there is none of this name."""
    if name not in _POLICIES:
        raise ValueError(f"there is no policy {name!r}; there are {', '.join(_POLICIES)}")
    return _POLICIES[name]()
