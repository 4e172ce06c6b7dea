"""Bounds on the work that a description makes: one-ofs that name each other stand for exponentially many types."""

# The description may be a stranger's, and the thread that reads it is one that connects.

from __future__ import annotations


class TooIntricate(ValueError):
    """A description whose types expand to more, or deeper, than is worked through."""


class Effort:
    """Counts the types that are worked through, each as often as it is."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        self._left = self._most = most

    def spend(self, types: int) -> None:
        """Counts work that is to be done, or raises TooIntricate."""
        self._left -= types
        if self._left < 0:
            raise TooIntricate(f"types expand to more than {self._most} types")


def check_levels(levels: int, most: int) -> None:
    """Raises TooIntricate if types are nested in more levels, through the one-ofs that they name."""
    if levels > most:
        raise TooIntricate(f"types are nested deeper than {most} levels through the one-ofs that they name")
