"""Locks of the whole process that a forked child finds free, whoever held them in its parent."""

from __future__ import annotations

import os
import threading

__all__: list[str] = []


def process_lock() -> threading.RLock:
    """Makes a lock for good, of a module. Re-entrant: a finalizer that takes it may run wherever it is held."""
    lock = threading.RLock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # of CPython since 3.9
    return lock
