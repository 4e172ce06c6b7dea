"""Calls that are made a second time before the first attempt has ended (``HedgingPolicy``)."""

# Attempts end, and timers fire, on threads of rrpc's own or on one that waits for a call. The lock of a `_Hedge`
# guards its state; attempts begin, end and are cancelled without it.

from __future__ import annotations

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any

from rrpc._call.chain import Chain
from rrpc._call.outgoing import OutgoingCall, over
from rrpc._call.retry import CODES, PUSH_BACK, RetryBudget, check_attempts, codes_of, pushed_back
from rrpc._call.steps import Waiting
from rrpc._channel.timers import Timer, after
from rrpc.errors import RpcError, StatusCode

from .blocking_driver import CallbackCall


@dataclass(frozen=True)
class HedgingPolicy:
    """Rules by which a call of an idempotent method is made again while its first attempt is still unanswered.

    Another attempt begins when there is no answer after ``delay`` seconds, up to ``max_attempts`` attempts in all. The
    first success is the result, and the other attempts are cancelled. A failure with one of the ``codes`` has the next
    attempt made at once, any other one ends the call. Calls of methods that aren't idempotent, calls with ``out=`` and
    calls with streams are made once.

    Args:
        delay: Seconds without an answer after which the next attempt begins; at least 0.
        max_attempts: The most attempts of one call, the first one included; from 1 to 1000.
        codes: Status codes of failures that may pass.
        budget: The budget for all calls with this policy; None: no limit. By default it is one of the policy's own.

    Raises:
        ValueError: A number is out of its range, or ``codes`` has one that is no ``StatusCode``.
    """

    delay: float
    max_attempts: int = 2
    codes: Collection[StatusCode] = CODES
    budget: RetryBudget | None = field(default_factory=RetryBudget)

    def __post_init__(self) -> None:
        check_attempts(self.max_attempts)
        if not self.delay >= 0:
            raise ValueError(f"delay must be 0 or more, not {self.delay!r}")
        object.__setattr__(self, "codes", codes_of(self.codes))

    def over(self, call: OutgoingCall) -> Generator[Any, Any, Any]:
        """Makes the call with hedged attempts, like ``rrpc._call.outgoing.over`` makes it with one."""
        if not call.idempotent or call.request.out is not None:  # attempts would all write there
            return (yield from over(call))
        hedge = _Hedge(self, call)
        try:
            return (yield Waiting(hedge.go(), call.late, hedge.drive))
        finally:  # Ctrl-C, too
            hedge.stop()


class _Hedge:
    """The attempts of one call."""

    def __init__(self, policy: HedgingPolicy, call: OutgoingCall) -> None:
        self._policy = policy
        self._call = call
        # Reentrant: a finalizer that ends a call may run wherever it is held.
        self._lock = threading.RLock()
        self._attempts: list[CallbackCall] = []
        # The server may lower it by PUSH_BACK.
        self._most = policy.max_attempts
        self._ended = 0
        self._error: RpcError | None = None
        self._settled = False
        self._timer: Timer | None = None
        # Resolved once. Cancelling it, as drivers do at the deadline, stops all attempts.
        self._result: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def go(self) -> concurrent.futures.Future[Any]:
        self._begin(0)
        # Also where a driver cancels the future.
        self._result.add_done_callback(lambda _: self.stop())
        return self._result

    def drive(self, timeout: float | None) -> None:
        """Mostly there is one attempt, and its reply comes before the next: so long its connection is polled."""
        delay = self._policy.delay
        self._attempts[0].wait(delay if timeout is None else min(delay, timeout))

    def _begin(self, count: int) -> None:
        """Begins one more attempt than ``count``, unless somebody has begun it.

        If there may be none, and none is under way, the last error is the result.
        """
        # A branch has its own connection and metadata; it takes the deadline of the call.
        branch = self._call.branch()
        attempt = CallbackCall(Chain((), branch, innermost=over))
        with self._lock:
            # The timer and a failure may both ask for the same attempt: `count` tells which request came late.
            if self._settled or self._result.done() or count != len(self._attempts):
                return
            allowed = self._may_begin(count)
            if allowed:
                self._attempts.append(attempt)
                self._call.attempt = count + 1
                self._set_timer(self._policy.delay)
            elif self._ended < count:
                return
        if allowed:
            attempt.on_done(functools.partial(self._guarded, self._answered, attempt, branch))
            attempt.go_on()
        else:
            if count < self._most and self._policy.budget is not None and self._error is not None:
                self._policy.budget.name_in(self._error)
            self._resolve(None, self._error)

    def _may_begin(self, count: int) -> bool:
        budget = self._policy.budget
        return count < self._most and (not count or budget is None or budget.allows())

    def _set_timer(self, delay: float) -> None:
        """Sets the timer of the next attempt in place of the old one; sets none if no attempt is left."""
        if self._timer is not None:
            self._timer.cancel()
        count = len(self._attempts)
        again = functools.partial(self._guarded, self._begin, count)
        self._timer = after(delay, again) if count < self._most else None

    def _guarded(self, do: Callable[..., object], *arguments: Any) -> None:
        """Runs a callback of a timer or an attempt. What it raises ends the call, which may have no other end."""
        try:
            do(*arguments)
        except BaseException as error:
            self._resolve(None, error)

    def _answered(self, attempt: CallbackCall, branch: OutgoingCall) -> None:
        with self._lock:
            # Also set by attempts that lose: making the call again would repeat what they did.
            self._call.may_have_run |= branch.may_have_run
        budget = self._policy.budget
        try:
            (value,) = attempt.result(0)
        except RpcError as error:
            self._failed(error, branch)
        except BaseException as error:
            self._resolve(None, error)
        else:
            if budget is not None:
                budget.succeeded()
            self._resolve(value, None, branch)

    def _failed(self, error: RpcError, branch: OutgoingCall) -> None:
        may_pass = error.code in self._policy.codes
        if may_pass and self._policy.budget is not None:
            self._policy.budget.failed(branch, error)
        left = self._call.time_left()
        delay = pushed_back(error.metadata.get(PUSH_BACK, "0"))
        with self._lock:
            self._ended += 1
            self._error = error
            count = len(self._attempts)
            # The server forbids more attempts, or asks for more time than the call has.
            if delay is None or (left is not None and delay >= left):
                self._most = count
            waits = bool(delay) and count < self._most
            if waits and may_pass and not self._settled:
                self._set_timer(delay or 0.0)
        if not may_pass:
            self._resolve(None, error)
        elif not waits:
            self._begin(count)

    def _resolve(self, value: Any, error: BaseException | None, branch: OutgoingCall | None = None) -> None:
        with self._lock:
            first, self._settled = not self._settled, True
            if first and branch is not None:
                self._call.take_from(branch)
        # A driver that cancelled the future has told the caller already.
        if not first or not self._result.set_running_or_notify_cancel():
            return
        if error is None:
            self._result.set_result(value)
        else:
            self._result.set_exception(error)

    def stop(self) -> None:
        """End what is still under way."""
        with self._lock:
            self._settled = True
            if self._timer is not None:
                self._timer.cancel()
            attempts = list(self._attempts)
        # Without the lock, which their callbacks take.
        for attempt in attempts:
            attempt.cancel()
