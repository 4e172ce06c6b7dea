"""Waiting for a condition."""

import time
from collections.abc import Callable

__all__ = ["eventually"]


def eventually(condition: Callable[[], bool], within_seconds: float) -> None:
    """Returns once the condition holds; raises AssertionError if it doesn't in time."""
    end = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < end, "it didn't happen in time"
        time.sleep(0.02)
