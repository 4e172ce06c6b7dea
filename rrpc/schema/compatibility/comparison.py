"""Collects the changes between two versions and judges types; ``changes.py`` has the rules."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rrpc.schema.idl_text import type_text
from rrpc.schema.model import Declaration, Position, Type

from .fit import Fit, Receiver


class Broken(enum.Flag):
    """The pairs that a change breaks."""

    NONE = 0
    OLD_CLIENT = 1
    """Clients of the old version with servers of the new one."""
    NEW_CLIENT = 2
    """Clients of the new version with servers of the old one."""
    BOTH = 3


class Use(enum.Flag):
    """Uses of a type: in arguments, in results or both."""

    NONE = 0
    ARGUMENT = 1
    RESULT = 2
    BOTH = 3


@dataclass(frozen=True)
class Change:
    """A change between two versions.

    ``where`` is ``lab.search.Row.vector`` or ``lab.search.Nearest.search(k)``; ``position`` is in the new version where
    the thing is still there, else in the old one.
    """

    breaks: Broken
    where: str
    text: str
    position: Position | None = None
    where_now: str = ""
    """Of what has another name in the new version: ``where`` it is there."""

    @property
    def breaking(self) -> bool:
        """Returns whether a peer of the other version notices the change."""
        return self.breaks is not Broken.NONE

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Comparison:
    """Collects the changes between two versions."""

    def __init__(self, old: Mapping[str, Declaration], new: Mapping[str, Declaration]) -> None:
        self.old, self.new = old, new
        self.new_takes = Receiver(new, old).takes
        self.old_takes = Receiver(old, new).takes
        self.changes: list[Change] = []

    def add(self, breaks: Broken, where: str, text: str, *things: Any, where_now: str = "") -> None:
        """``things``: whose position it is, the first that has one."""
        positions = [thing.position for thing in things if thing.position is not None]
        self.changes.append(Change(breaks, where, text, positions[0] if positions else None, where_now))

    def types(
        self,
        where: str,
        old: Type,
        new: Type,
        use: Use,
        *things: Any,
        what: str = "",
        written: tuple[Type, Type] | None = None,
    ) -> None:
        """A type that may have changed, shown as ``written``; ``what`` it is of if ``where`` doesn't say."""
        # kept: the new version takes what the old one sends. grown: the old one takes what the new one sends.
        kept, grown = self.new_takes(new, old), self.old_takes(old, new)
        if kept is grown is Fit.ALL:
            return
        breaks = Broken.NONE
        # Arguments go from the client to the server: the new version must take those of old clients.
        if Use.ARGUMENT in use and kept is not Fit.ALL:
            breaks |= Broken.OLD_CLIENT
            if grown is Fit.NO:
                breaks |= Broken.NEW_CLIENT
        # Results go the other way: old clients must take those of the new version.
        if Use.RESULT in use:
            breaks |= Broken.NONE if kept is Fit.ALL else Broken.NEW_CLIENT
            breaks |= Broken.OLD_CLIENT if grown is Fit.NO else Broken.NONE
        was, now = map(type_text, written or (old, new))
        text = f"{was} is now {now}" if was != now else f"{now} means something else now"
        self.add(breaks, where, what + text, *things)
