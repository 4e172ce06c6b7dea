"""Channels: the way to a service, wherever it is and however often it restarts."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc.errors import FailedPrecondition, RpcError, Unavailable, unsent
from rrpc.options import merged

from .connecting import Attempt
from .connection import Connection, Contract
from .picking import policy_named
from .subchannel import (
    CONNECTING,
    IDLE,
    READY,
    SHUTDOWN,
    TRANSIENT_FAILURE,
    Backoff,
    Subchannel,
    failure,
    split,
)
from .timers import Timer, after

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Channel"]

_Choice = tuple[Connection | None, RpcError | None]
_C = TypeVar("_C", bound="Channel")


class Channel:
    """The way to a service: addresses, and the connections to them.

    ``target`` is an address or several (a list, or ``rrpc://a:7471,b:7471``), of which ``policy`` takes one for each
    call: "pick_first", "round_robin" or "least_outstanding". It connects when a call needs it, within
    ``connect_timeout`` seconds, and again after a connection was lost. Between attempts that fail it waits as
    ``backoff`` says; calls meanwhile fail with Unavailable, or wait if they are told to. Other ``options`` are the
    transport's, as for :class:`Client`.

    Many clients and threads may use it. After a fork the child needs a channel of its own.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        policy: str = "pick_first",
        connect_timeout: float | None = 10.0,
        poll: str = "adaptive",
        backoff: Backoff | None = None,
        **options: Any,
    ) -> None:
        self.ready: Connection | None = None
        """The one connection that every call takes, where there is no choice; what stubs look at first."""
        self._target = target if isinstance(target, str) else ",".join(target)
        self._subchannels = [Subchannel(address) for address in _addresses(target)]
        self._policy = policy_named(policy)
        self._connect_timeout = connect_timeout
        self._backoff = Backoff() if backoff is None else backoff
        self._options = merged({"poll": poll, **options})
        self._contracts: list[Contract] = []
        self._lock = threading.Lock()
        self._due: list[Subchannel] = []
        self._waiters: list[tuple[Future[Connection], bool]] = []
        self._timer: Timer | None = None
        self._closed = False
        self._pid = os.getpid()

    @property
    def target(self) -> str:
        """The address, or the addresses, given to the constructor."""
        return self._target

    @property
    def state(self) -> str:
        """ "idle", "connecting", "ready", "transient_failure" or "shutdown", as gRPC's channels have it."""
        with self._lock:
            return self._state()

    def _state(self) -> str:
        if self._closed:
            return SHUTDOWN
        states = {subchannel.state for subchannel in self._subchannels}
        return next((state for state in (READY, CONNECTING, IDLE) if state in states), TRANSIENT_FAILURE)

    # For calls

    def pick_nowait(self, wait_for_ready: bool = False) -> Connection | None:
        """A connection for a call; None: there is none yet, but one is being made.

        Raises Unavailable, or what else keeps it from connecting, unless ``wait_for_ready``.
        """
        self.check_process()
        ready = self.ready
        if ready is not None and ready.usable():
            return ready
        found, error = self._changed(lambda: self._choose(wait_for_ready))
        if error is not None:
            raise error
        return found

    def pick_soon(self, wait_for_ready: bool = False) -> Future[Connection]:
        """As :meth:`pick_nowait`, with a future for what comes of it; to be cancelled by who waits no longer."""
        from concurrent.futures import Future

        future: Future[Connection] = Future()

        def choose() -> _Choice:
            found, error = self._choose(wait_for_ready)
            if found is None and error is None:
                self._waiters.append((future, wait_for_ready))
            return found, error

        _resolve(future, *self._changed(choose))
        return future

    def failed(self, connection: Connection, error: RpcError) -> None:
        """A call over the connection ended so."""
        if error.not_executed or not connection.usable():
            self._lost(connection, error)

    def succeeded(self, connection: Connection) -> None:
        """A call over the connection had its reply."""

    @property
    def of_this_process(self) -> bool:
        """False in a child that was forked."""
        return self._pid == os.getpid()

    def check_process(self) -> None:
        """FailedPrecondition in a child that was forked."""
        if not self.of_this_process:
            raise FailedPrecondition("this channel belongs to the parent process; make a new one after fork")

    def admit(self, contract: Contract) -> None:
        """Have connections agree on the services of the contract; those that are there do it now."""
        end = self._connect_end()
        self._contracts.append(contract)
        for connection in self.connections():
            if connection.usable():
                connection.agreement(contract, end)

    def connect(self) -> None:
        """Connect now, in this thread, to the first address that can be had; raises what the last attempt does."""
        end = self._connect_end()
        for place, subchannel in enumerate(self._subchannels, 1):
            with self._lock:
                subchannel.state = CONNECTING
            attempt = self._attempt(subchannel, end)
            try:
                attempt.run()
            finally:
                self._ended(subchannel, attempt)
            if attempt.error is None:
                return
            if place == len(self._subchannels):
                raise attempt.error

    # What is known of it

    def connections(self) -> list[Connection]:
        """One for each address that there was a connection to: the last."""
        with self._lock:
            return [s.connection for s in self._subchannels if s.connection is not None]

    def info(self) -> dict[str, Any]:
        """``target``, ``state``, and ``addresses``: of each its address, state, failures in a row, and why_not."""
        with self._lock:
            addresses = [subchannel.info() for subchannel in self._subchannels]
            return {"target": self._target, "state": self._state(), "addresses": addresses}

    def why_not(self) -> str:
        """For errors: ": " and why there is no connection, or nothing."""
        with self._lock:
            errors = [s.error.message for s in self._subchannels if s.error is not None]
        return f": {errors[0]}" if errors else ""

    def close(self) -> None:
        """End all connections; calls in flight fail with Unavailable. Closing twice does nothing."""
        if not self.of_this_process:
            return
        with self._lock:
            self._closed = True
            self.ready = None
            for subchannel in self._subchannels:
                subchannel.state = SHUTDOWN
            if self._timer is not None:
                self._timer.cancel()
        for connection in self.connections():
            connection.close()
        self._go_on()

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target!r})"

    # Inside. Under the lock nothing is called that may run code of others: futures are resolved, and the core is
    # called (but for what Connection says is cheap), without it.

    def _changed(self, choose: Callable[[], _Choice]) -> _Choice:
        """What ``choose`` gives under the lock; the connecting that it found to be due is begun."""
        self.check_process()
        with self._lock:
            found = choose()
            due, self._due = self._due, []
        for subchannel in due:
            ended = functools.partial(_ended, weakref.ref(self), subchannel)
            self._attempt(subchannel, self._connect_end()).start(ended)
        return found

    def _choose(self, wait_for_ready: bool) -> _Choice:
        if self._closed:
            return None, unsent(Unavailable("the client is closed"))
        now = monotonic()
        for subchannel in self._subchannels:
            if subchannel.state == READY and not subchannel.usable():
                subchannel.lost(now, self._backoff)
        ready = self._publish()
        if not ready or self._policy.keeps_all:
            self._demand(now)
        if ready:
            return self._policy.choose(ready).connection, None
        if any(subchannel.state == CONNECTING for subchannel in self._subchannels):
            return None, None
        if wait_for_ready:
            self._set_timer(now)
            return None, None
        return None, failure(self._subchannels, now)

    def _demand(self, now: float) -> None:
        """Have those connect that should: all, or one after the other."""
        able = [subchannel for subchannel in self._subchannels if subchannel.may_connect(now)]
        if not self._policy.keeps_all:
            connecting = any(subchannel.state == CONNECTING for subchannel in self._subchannels)
            able = [] if connecting else sorted(able, key=lambda s: s.state != IDLE)[:1]
        for subchannel in able:
            subchannel.state = CONNECTING
        self._due += able

    def _set_timer(self, now: float) -> None:
        """For the next attempt that isn't asked for by a call which comes in time."""
        later = [s.retry_at for s in self._subchannels if s.state == TRANSIENT_FAILURE]
        if later and (self._timer is None or self._timer.done):
            wake = functools.partial(_wake, weakref.ref(self))
            self._timer = after(max(0.0, min(later) - now), wake)

    def _publish(self) -> list[Subchannel]:
        """Those that are ready; and the one for the fast path."""
        ready = [subchannel for subchannel in self._subchannels if subchannel.state == READY]
        alone = not self._policy.keeps_all or len(self._subchannels) == 1
        self.ready = ready[0].connection if ready and alone else None
        return ready

    def _attempt(self, subchannel: Subchannel, end: float | None) -> Attempt:
        return Attempt(subchannel.address, self._options, end, self._contracts)

    def _connect_end(self) -> float | None:
        return None if self._connect_timeout is None else monotonic() + self._connect_timeout

    def _ended(self, subchannel: Subchannel, attempt: Attempt) -> None:
        """An attempt came to an end."""
        connection, error = attempt.connection, attempt.error
        with self._lock:
            closed = self._closed
            if not closed and connection is not None:
                subchannel.connected(connection)
            elif not closed:
                why = Unavailable("interrupted") if error is None else error
                subchannel.failed(why, monotonic(), self._backoff)
            self._publish()
        if connection is not None:
            if closed:
                connection.close()
            else:
                connection.on_unusable(functools.partial(_lost, weakref.ref(self), weakref.ref(connection)))
        self._go_on()

    def _lost(self, connection: Connection, error: RpcError | None = None) -> None:
        """No more calls over this one, where the last ended so."""
        now = monotonic()
        with self._lock:
            for subchannel in self._subchannels:
                if subchannel.connection is connection and subchannel.state == READY:
                    subchannel.lost(now, self._backoff, error)
            self._publish()
        self._go_on()

    def _go_on(self) -> None:
        """Something has changed: see to what is due, and to who waits."""

        def keep_all() -> _Choice:
            if self._policy.keeps_all and not self._closed:
                self._demand(monotonic())
                self._set_timer(monotonic())
            return None, None

        self._changed(keep_all)
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for future, wait_for_ready in waiters:
            if future.cancelled():
                continue

            def choose(future: Any = future, wait_for_ready: bool = wait_for_ready) -> _Choice:
                found, error = self._choose(wait_for_ready)
                if found is None and error is None:
                    self._waiters.append((future, wait_for_ready))
                return found, error

            _resolve(future, *self._changed(choose))


def _addresses(target: str | Sequence[str]) -> list[str]:
    targets = [target] if isinstance(target, str) else list(target)
    for one in targets:
        if not isinstance(one, str):
            raise TypeError(f"address must be a str such as rrpc://host:port, not {type(one).__name__}")
    if not targets:
        raise ValueError("a channel needs an address")
    return list(dict.fromkeys(address for one in targets for address in split(one)))


def _resolve(future: Future[Connection], found: Connection | None, error: RpcError | None) -> None:
    if found is None and error is None:
        return
    if not future.set_running_or_notify_cancel():
        return
    if found is not None:
        future.set_result(found)
    else:
        future.set_exception(error)


# Threads and the core have no channel in their hands: one that is dropped goes, with its connections.


def _ended(channel: weakref.ref[Channel], subchannel: Subchannel, attempt: Attempt) -> None:
    there = channel()
    if there is not None:
        there._ended(subchannel, attempt)
    elif attempt.connection is not None:
        attempt.connection.close()


def _lost(channel: weakref.ref[Channel], connection: weakref.ref[Connection]) -> None:
    there, which = channel(), connection()
    if there is not None and which is not None:
        there._lost(which)


def _wake(channel: weakref.ref[Channel]) -> None:
    there = channel()
    if there is not None:
        there._go_on()
