"""Slow tasks of a channel: connecting and resolving.

Each task runs in a thread of its own, or in its caller's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from rrpc._options import time_until
from rrpc.errors import DeadlineExceeded, Internal, RpcError

from .connection import Connection, Contract
from .name_resolver import Names

# Seconds that the interpreter's end waits for threads that are about to end.
_EXIT_WAIT_SECONDS = 1.0
_threads: set[threading.Thread] = set()


class Task:
    """Base of work that takes time, and that a thread may do."""

    def __init__(self) -> None:
        self.error: RpcError | None = None
        """Why it came to nothing."""

    def run(self) -> None:
        """Does the work in the calling thread."""
        try:
            self._work()
        except RpcError as error:
            self.error = error.with_traceback(None)

    def _work(self) -> None:
        raise NotImplementedError

    def run_interruptibly(self, ended: Callable[[Any], object]) -> None:
        """Runs the task and calls ``ended(self)``, like ``start``, but returns once the task has ended.

        The core doesn't check for signals while it connects, and Python delivers signals only to its main
        thread. So the main thread starts another thread for the task and waits for it. If the wait is
        interrupted, the other thread is left behind.
        """
        if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
            try:
                self.run()
            finally:
                ended(self)
            return
        over = threading.Event()

        def tell(task: Any) -> None:
            try:
                ended(task)
            finally:
                over.set()

        thread = self.start(tell)
        try:
            over.wait()
        except BaseException:
            _threads.discard(thread)  # nobody waits for it any more, the interpreter's end neither
            raise

    def start(self, ended: Callable[[Any], object]) -> threading.Thread:
        """Does the work in a new thread, which calls ``ended(self)`` at its end."""

        def run() -> None:
            try:
                self.run()
            except Exception as error:
                self.error = Internal(f"{self!r}: {error!r}")
            finally:
                ended(self)
                _threads.discard(threading.current_thread())

        # It must not keep the interpreter from ending, however long it may take.
        thread = threading.Thread(target=run, name="rrpc-connecting", daemon=True)
        _threads.add(thread)
        try:
            thread.start()
        except BaseException:
            _threads.discard(thread)
            raise
        return thread


class Attempt(Task):
    """One attempt to connect to an address, and to agree there on what clients ask for."""

    def __init__(
        self, address: str, options: Mapping[str, Any], end: float | None, contracts: Sequence[Contract]
    ) -> None:
        """``end``: when it must have come to one, by the clock."""
        super().__init__()
        self.address = address
        self.connection: Connection | None = None
        """The connection made; None if that failed: ``error`` says why."""
        self._options = options
        self._end = end
        # Copied now. The first call of a client whose contract comes later agrees on that one.
        self._contracts = list(contracts)

    def _work(self) -> None:
        left = time_until(self._end)
        if left == 0.0:
            raise DeadlineExceeded(f"connecting to {self.address}: connect_timeout left no time for it")
        connection = Connection.to(self.address, self._options, left)
        try:
            for contract in self._contracts:
                connection.agreement(contract, self._end)
            self.connection = connection
        finally:
            # Nobody else knows the connection yet.
            if self.connection is None:
                connection.close()


class Resolution(Task):
    """Finding the addresses of a channel."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._names = names

    def _work(self) -> None:
        self.addresses = self._names.resolve()


def _end_of_interpreter() -> None:
    """Lets those end that are about to: a thread that comes back from the core later finds no interpreter."""
    end = monotonic() + _EXIT_WAIT_SECONDS
    for thread in list(_threads):
        thread.join(max(0.0, end - monotonic()))


os.register_at_fork(after_in_child=_threads.clear)
threading._register_atexit(_end_of_interpreter)  # type: ignore[attr-defined]
