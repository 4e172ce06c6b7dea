"""Slow tasks of a channel: connecting and resolving.

Each task runs in a thread of its own, or in its caller's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from rrpc._fork import process_lock
from rrpc._options import time_until
from rrpc.errors import DeadlineExceeded, Internal, ResourceExhausted, RpcError, Unavailable, unsent

from .connection import Connection, Contract
from .name_resolver import Names

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rrpc import _core

# Seconds that the interpreter's end waits for threads that are about to end.
_EXIT_WAIT_SECONDS = 1.0
_threads: set[threading.Thread] = set()
_agreeing = process_lock()  # guards `Connection.agreeing`, and what follows
_answers: deque[Asking] = deque()
"""Answers that are to be compared; a thread does that while there are any."""


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

    def run_guarded(self) -> None:
        """Does what ``run`` does; whatever else goes wrong is an ``Internal``."""
        try:
            self.run()
        except Exception as error:
            self.error = Internal(f"{self!r}: {error!r}")

    def start(self, ended: Callable[[Any], object]) -> threading.Thread:
        """Does the work in a new thread, which calls ``ended(self)`` at its end."""

        def run() -> None:
            try:
                self.run_guarded()
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
        # Copied now. The first call of a client whose contract comes later has the two ends agree on that one.
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


class Asking(Task):
    """Has the two ends of a connection agree on a contract, for which the peer is asked.

    No thread waits for the answers, which may never come. The work is to compare the versions once they are there.
    """

    def __init__(self, connection: Connection, contract: Contract) -> None:
        super().__init__()
        self._connection = connection
        self._contract = contract
        self._calls: dict[str, _core.Call] = {}
        self._unanswered = 0

    def begin(self, end: float | None) -> None:
        """Asks, until ``end`` by the clock. The answers come on threads of rrpc's own, or here."""
        try:
            services = self._connection.to_ask(self._contract)
            self._unanswered = len(services) + 1
            for service in services:
                self._calls[service] = self._connection.ask(service, end)
            for call in self._calls.values():
                call.on_done(self._answered)
            self._answered()  # the one that stands for this method
        except RpcError as error:
            self._fail(error)
        except BaseException:  # Ctrl-C: others wait too
            self._fail(Unavailable("interrupted"))
            raise

    def _answered(self) -> None:
        with _agreeing:
            self._unanswered -= 1
            if self._unanswered:
                return
            _answers.append(self)
            first = len(_answers) == 1
        if not first:
            return  # a thread compares already
        try:
            Comparing().start(lambda _: None)
        except RuntimeError as error:
            with _agreeing:
                left = list(_answers)
                _answers.clear()
            for asking in left:
                asking._fail(ResourceExhausted(f"no thread for comparing interfaces: {error}"))

    def _work(self) -> None:
        self._connection.agree(self._contract, lambda service: self._calls[service].result(0.0))

    def is_wanted(self) -> bool:
        """Returns whether somebody waits for it. Otherwise the next one has the peer asked again."""
        agreeing = self._connection.agreeing
        with _agreeing:
            wanted = not all(future.cancelled() for future in agreeing.get(self._contract, ()))
            if not wanted:
                agreeing.pop(self._contract, None)
        return wanted

    def _fail(self, error: RpcError) -> None:
        self.error = error
        self.tell()

    def tell(self) -> None:
        """Ends the futures of those who wait for the outcome."""
        with _agreeing:
            waiting = self._connection.agreeing.pop(self._contract, [])
        for future in waiting:
            if not future.set_running_or_notify_cancel():
                continue
            if self.error is None:
                future.set_result(None)
                continue
            # The time that has passed isn't a call's. Each gets an error of its own, as what is raised changes.
            kind = Unavailable if isinstance(self.error, DeadlineExceeded) else type(self.error)
            future.set_exception(unsent(kind(self.error.message)))


class Comparing(Task):
    """Compares versions of interfaces, one after the other, while there are any.

    One thread does it for the process: a comparison may take long, and however many peers describe theirs, they take
    no more of the processors.
    """

    def _work(self) -> None:
        more = True
        while more:
            with _agreeing:
                asking = _answers[0]
            try:
                if asking.is_wanted():
                    asking.run_guarded()
                    asking.tell()
            finally:
                with _agreeing:
                    # Removed last: as long as it is there, no other thread is begun.
                    _answers.popleft()
                    more = bool(_answers)


def agree_soon(connection: Connection, contract: Contract, end: float | None) -> Future[None]:
    """Returns a future that ends when the two ends have agreed on a contract; the peer is asked for it until ``end``.

    It is asked once, however many wait. Cancel the future when you no longer wait for it.
    """
    from concurrent.futures import Future

    future: Future[None] = Future()
    with _agreeing:
        waiting = connection.agreeing.setdefault(contract, [])
        # In this order, as a finalizer that runs here may come here too.
        waiting.append(future)
        first = waiting[0] is future
    if first:
        Asking(connection, contract).begin(end)
    return future


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
os.register_at_fork(after_in_child=_answers.clear)
threading._register_atexit(_end_of_interpreter)  # type: ignore[attr-defined]
