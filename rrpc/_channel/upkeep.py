"""Upkeep of a channel: which addresses it connects to and when, and which calls wait for a connection.

No code of others may run under the lock. So the channel releases the lock before it resolves futures or calls
the core (except for the operations that ``Connection`` documents as cheap). Only finalizers may run anywhere,
also in the thread that holds the lock, and they may end or begin calls. Therefore the lock is reentrant, and
the handling of ended calls is put off while the thread holds the lock.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from rrpc._options import deadline_after, seconds
from rrpc.errors import FailedPrecondition, ResourceExhausted, RpcError, Unavailable, unsent

from .connecting import Attempt, Resolution, Task
from .connection import Connection, Contract
from .ejection import Ejection
from .name_resolver import Names
from .pick_policy import Policy
from .subchannel import CONNECTING, IDLE, READY, SHUTDOWN, TRANSIENT_FAILURE, Backoff, Subchannel, failure
from .timers import Timer, after

if TYPE_CHECKING:
    from concurrent.futures import Future

Choice = tuple[Connection | None, RpcError | None]
_RESOLVE_PAUSE_SECONDS = 1.0
_SWEEP_MIN = 64
# Addresses that a channel connects to at once: each takes a thread.
_CONNECTING_MAX = 64
NEXT_ADDRESS_SECONDS = 0.5
"""After so long without an answer the next address is tried beside the first, where one connection is wanted."""


class Upkeep:
    """The inner half of a ``Channel``."""

    def __init__(
        self,
        names: Names,
        policy: Policy,
        options: dict[str, Any],
        connect_timeout: float | None,
        backoff: Backoff,
        ejection: Ejection | None,
    ) -> None:
        self.ready: Connection | None = None
        """The one connection that every call takes, where there is no choice; what stubs look at first."""
        self._names = names
        fixed = names.fixed
        self._subchannels = (
            [Subchannel(address) for address in fixed] if fixed else [Subchannel(names.text, True)]
        )
        self._policy = policy
        self._options = options
        self.metadata_bytes_max: int = options["metadata_bytes_max"]
        self._connect_timeout = (
            None if connect_timeout is None else seconds(connect_timeout, "connect_timeout")
        )
        self._backoff = backoff
        self._ejection = ejection
        self._contracts: list[Contract] = []
        self._live: weakref.WeakSet[Connection] = weakref.WeakSet()
        """All that there are, also those that take no more calls but still have some."""
        self._lock = threading.RLock()
        # Tasks that are started once the lock is released.
        self._due: list[tuple[Task, Subchannel]] = []
        # Calls that wait for a connection: the future, whether they wait for ready, and since when (`time.monotonic`).
        self._waiters: list[tuple[Future[Connection], bool, float]] = []
        self._sweep_at = _SWEEP_MIN
        self._retry_timer: Timer | None = None
        self._retry_timer_at = 0.0
        self._next_timer: Timer | None = None
        self._next_at = 0.0
        self._resolve_timer: Timer | None = None
        self._resolving = False
        self._resolved_at = 0.0
        self._closed = False
        self._pid = os.getpid()

    @property
    def of_this_process(self, _getpid: Callable[[], int] = os.getpid) -> bool:
        """False in a child that was forked."""
        # A default, as finalizers may run when the interpreter has dropped `os`.
        return self._pid == _getpid()

    def check_process(self) -> None:
        """FailedPrecondition in a child that was forked."""
        if not self.of_this_process:
            raise FailedPrecondition("this channel belongs to the parent process; make a new one after fork")

    def _state(self) -> str:
        if self._closed:
            return SHUTDOWN
        states = {subchannel.state for subchannel in self._subchannels}
        return next((state for state in (READY, CONNECTING, IDLE) if state in states), TRANSIENT_FAILURE)

    def _connect_end(self) -> float | None:
        return deadline_after(self._connect_timeout)

    def _changed(self, choose: Callable[[], Choice]) -> Choice:
        """Calls ``choose`` under the lock, starts the tasks that became due, and returns the choice."""
        self.check_process()
        # Made before: making a list may run finalizers, which must not come here between the two assignments below.
        next_due: list[tuple[Task, Subchannel]] = []
        with self._lock:
            found = choose()
            due, self._due = self._due, next_due
        for task, subchannel in due:
            try:
                task.start(functools.partial(_ended, weakref.ref(self), subchannel))
            except RuntimeError as error:  # noqa: PERF203
                task.error = ResourceExhausted(f"no thread for connecting: {error}")
                self._ended(subchannel, task)
        return found

    def _choose(self, wait_for_ready: bool, since: float) -> Choice:
        """Chooses a connection, or an error, for a call that has waited since ``since``.

        Returns (None, None) if the call has to wait. The lock is held.
        """
        if self._closed:
            return None, unsent(Unavailable("the client is closed"))
        now = monotonic()
        # A connection may have ended without its callback having come yet.
        for subchannel in self._subchannels:
            if subchannel.state == READY and not subchannel.usable():
                assert subchannel.connection is not None
                subchannel.lost(now, self._backoff, subchannel.connection.why_unusable())
        ready = self._publish()
        if ready:
            if self._policy.keeps_all:
                self._demand(now)
            # If every address is left out, all are used: a doubtful one is better than none.
            admitted = [s for s in ready if s.record.ejected_until <= now]
            return self._policy.choose(admitted or ready).connection, None
        # Each address has failed since the call began to wait.
        if not wait_for_ready and all(subchannel.failed_at >= since for subchannel in self._subchannels):
            return None, failure(self._subchannels)
        self._demand(now)
        if any(subchannel.state == CONNECTING for subchannel in self._subchannels):
            return None, None
        if wait_for_ready and self._set_timer(now):
            return None, None
        return None, failure(self._subchannels)

    def _publish(self) -> list[Subchannel]:
        """Sets ``ready``, the connection of the fast path, and returns the subchannels that are ready."""
        ready = [subchannel for subchannel in self._subchannels if subchannel.state == READY]
        alone = not self._policy.keeps_all or len(self._subchannels) == 1
        self.ready = ready[0].connection if ready and alone else None
        return ready

    def _has_one(self) -> bool:
        """Returns whether it wants one connection and has it."""
        return not self._policy.keeps_all and any(s.usable() for s in self._publish())

    def _demand(self, now: float) -> None:
        """Starts to connect to the addresses that are due: all of them, or one after the other."""
        able = [subchannel for subchannel in self._subchannels if subchannel.may_connect(now)]
        if not able:
            return  # as for nearly every call
        connecting = sum(subchannel.state == CONNECTING for subchannel in self._subchannels)
        # Addresses that haven't failed come first.
        able.sort(key=lambda s: s.state != IDLE)
        if self._policy.keeps_all:
            del able[max(0, _CONNECTING_MAX - connecting) :]  # the others as these come to an end
        else:
            if connecting and now < self._next_at:
                able.clear()
            elif len(able) > 1 or connecting:
                self._next_at = now + NEXT_ADDRESS_SECONDS
                if len(able) > 1:
                    self._next_timer = _after(
                        NEXT_ADDRESS_SECONDS, functools.partial(_weakly, weakref.ref(self), Upkeep._go_on)
                    )
            del able[1:]
        for subchannel in able:
            if subchannel.state != CONNECTING:
                subchannel.state = CONNECTING
                self._due.append((self._task(subchannel, self._connect_end()), subchannel))

    def _task(self, subchannel: Subchannel, end: float | None) -> Attempt | Resolution:
        if subchannel.unresolved:
            self._resolving = True
            return Resolution(self._names)
        return self._attempt(subchannel, end)

    def _attempt(self, subchannel: Subchannel, end: float | None) -> Attempt:
        options = self._names.options_for(subchannel.address, self._options)
        return Attempt(subchannel.address, options, end, self._contracts)

    def _set_timer(self, now: float) -> bool:
        """Sets a timer for the next attempt to connect, in case no call asks for it earlier.

        Returns False if no thread can be had for the timer.
        """
        # Those that are due by now wait for the end of another attempt.
        later = [s.retry_at for s in self._subchannels if s.state == TRANSIENT_FAILURE and s.retry_at > now]
        if not later:
            return True
        at = min(later)
        if self._retry_timer is not None and not self._retry_timer.done:
            if self._retry_timer_at <= at:
                return True
            self._retry_timer.cancel()
        self._retry_timer = _after(
            max(0.0, at - now), functools.partial(_weakly, weakref.ref(self), Upkeep._go_on)
        )
        self._retry_timer_at = at
        return self._retry_timer is not None

    def _ended(self, subchannel: Subchannel, task: Task) -> None:
        """A task came to an end."""
        if isinstance(task, Resolution):
            self._resolved(subchannel, task)
            return
        assert isinstance(task, Attempt)
        connection = task.connection
        with self._lock:
            wanted = not self._closed and subchannel in self._subchannels
            if wanted and connection is not None and self._has_one():
                wanted = False  # another address was quicker
                subchannel.state = IDLE
            elif wanted and connection is not None:
                subchannel.connected(connection)
                self._live.add(connection)
            elif wanted:
                why = Unavailable("interrupted") if task.error is None else task.error
                subchannel.failed(why, monotonic(), self._backoff)
                # The service may have other addresses by now.
                self._resolve_in(0.0)
            self._publish()
        if connection is not None:
            if wanted:
                connection.on_unusable(functools.partial(_lost, weakref.ref(self), weakref.ref(connection)))
            else:
                connection.close()
        self._go_on()

    def _resolved(self, subchannel: Subchannel, task: Resolution) -> None:
        """Addresses that are there already keep what they have; connections to others end with their calls."""
        with self._lock:
            self._resolving = False
            self._resolved_at = monotonic()
            if task.error is None:
                known = {s.address: s for s in self._subchannels if not s.unresolved}
                self._subchannels = [known.get(address) or Subchannel(address) for address in task.addresses]
                self._publish()
            elif subchannel.unresolved:
                subchannel.failed(task.error, self._resolved_at, self._backoff)
            if self._names.period is not None:
                self._resolve_in(self._names.period)
        self._go_on()

    def _resolve_in(self, seconds: float) -> None:
        """Resolves names again after so many seconds or somewhat later."""
        if self._names.fixed is not None or self._closed or any(s.unresolved for s in self._subchannels):
            return
        if self._resolve_timer is not None:
            self._resolve_timer.cancel()
        wait = max(seconds, self._resolved_at + _RESOLVE_PAUSE_SECONDS - monotonic())
        self._resolve_timer = _after(wait, functools.partial(_weakly, weakref.ref(self), Upkeep._resolve))

    def _resolve(self) -> None:
        def resolve() -> Choice:
            if not self._closed and not self._resolving and self._subchannels:
                self._resolving = True
                self._due.append((Resolution(self._names), self._subchannels[0]))
            return None, None

        self._changed(resolve)

    def _lost(self, connection: Connection, error: RpcError | None = None) -> None:
        """No more calls over this one, where the last ended so."""
        # A finalizer runs within the lock: see the head of this module.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            after(0.0, functools.partial(_lost, weakref.ref(self), weakref.ref(connection), error))
            return
        now = monotonic()
        with self._lock:
            for subchannel in self._subchannels:
                if subchannel.connection is connection and subchannel.state == READY:
                    subchannel.lost(now, self._backoff, error)
                    self._resolve_in(0.0)
            self._publish()
        self._go_on()

    def _go_on(self) -> None:
        """Does what is due after a change, and serves the calls that wait."""

        def keep_all() -> Choice:
            if self._policy.keeps_all and not self._closed:
                now = monotonic()
                self._demand(now)
                self._set_timer(now)
            return None, None

        self._changed(keep_all)
        # Made before the lock is taken, as in `_changed`.
        next_waiters: list[tuple[Future[Connection], bool, float]] = []
        with self._lock:
            waiters, self._waiters = self._waiters, next_waiters
        for future, wait_for_ready, since in waiters:
            if not future.cancelled():
                self._serve(future, wait_for_ready, since)

    def _serve(self, future: Future[Connection], wait_for_ready: bool, since: float) -> None:
        """Give the future its connection, or have it wait for one."""

        def choose() -> Choice:
            found, error = self._choose(wait_for_ready, since)
            if found is None and error is None:
                self._wait_in_list(future, wait_for_ready, since)
            return found, error

        found, error = self._changed(choose)
        if (found is None and error is None) or not future.set_running_or_notify_cancel():
            return
        if error is not None:
            future.set_exception(error)
        elif found is not None:
            future.set_result(found)

    def _wait_in_list(self, future: Future[Connection], wait_for_ready: bool, since: float) -> None:
        """Adds one who waits. The lock is held."""
        # Connecting may take for ever (`connect_timeout=None`): who waits no longer goes when the list has doubled.
        if len(self._waiters) >= self._sweep_at:
            kept: list[tuple[Future[Connection], bool, float]] = []
            # Swapped first, as a finalizer that runs here may add one.
            waiters, self._waiters = self._waiters, kept
            for waiter in waiters:
                if not waiter[0].cancelled():
                    kept.append(waiter)  # noqa: PERF401
            self._sweep_at = 2 * len(self._waiters) + _SWEEP_MIN
        self._waiters.append((future, wait_for_ready, since))


def _after(seconds: float, do: Callable[[], object]) -> Timer | None:
    """Starts a timer. Returns None if no thread can be started for it."""
    try:
        return after(seconds, do)
    except RuntimeError:
        return None


# Threads, timers and the core have no channel in their hands: one that is dropped goes, with its connections.


def _ended(channel: weakref.ref[Upkeep], subchannel: Subchannel, task: Task) -> None:
    there = channel()
    if there is not None:
        there._ended(subchannel, task)
    elif isinstance(task, Attempt) and task.connection is not None:
        task.connection.close()


def _lost(
    channel: weakref.ref[Upkeep], connection: weakref.ref[Connection], error: RpcError | None = None
) -> None:
    there, which = channel(), connection()
    if there is not None and which is not None:
        there._lost(which, which.why_unusable() if error is None else error)


def _weakly(channel: weakref.ref[Upkeep], do: Callable[[Upkeep], object]) -> None:
    there = channel()
    if there is not None:
        do(there)
