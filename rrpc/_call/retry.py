"""Calling again where that is safe: after failures (``RetryPolicy``), or before them (``HedgingPolicy``).

Safe is a call that no handler has seen (``call.may_have_run``; an error may be of another call, which an interceptor
made), and any call of a method that the interface calls idempotent. Rules and names are those of gRPC's retry design
(its proposal A6), with full jitter.
"""

# Any thread uses policies and budgets, and clients share them; the generators of `link` belong to one call each. A
# server may send anything as PUSH_BACK.

from __future__ import annotations

import os
import random
import re
import threading
import weakref
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rrpc._options import grown
from rrpc.errors import RpcError, StatusCode, Unavailable, goes_elsewhere

from .chain import CALLS_MAX
from .outgoing import OutgoingCall
from .steps import Sleep

if TYPE_CHECKING:
    from rrpc._channel import Connection

PUSH_BACK = "retry-after-ms"
"""What a server may send with an error: call again after so many milliseconds, or not at all.

Anything but a decimal number of milliseconds up to ``PUSH_BACK_SECONDS_MAX`` means not at all, as in gRPC.
"""

PUSH_BACK_SECONDS_MAX = 3600.0
"""The longest wait that a server may ask for: it holds up calls that have no deadline."""

CODES = frozenset({StatusCode.UNAVAILABLE})
_MILLISECONDS = re.compile("[0-9]{1,10}")
# For `_anew` alone, and weak: it keeps no budget alive.
_budgets: weakref.WeakSet[RetryBudget] = weakref.WeakSet()


class RetryBudget:
    """Keeps retries from making an overload worse: a bucket of tokens, as gRPC's retry throttling has it.

    A failure takes one out, a success puts a part of one back. Calls are made again only while it is more than half
    full. All calls that fail because one connection is lost count as one failure. A failure of a call that reached no
    server doesn't count. Clients may share one.

    Args:
        tokens: Number of tokens in a full bucket.
        ratio: Part of a token that a success puts back.

    Raises:
        ValueError: One of them isn't above 0.
    """

    def __init__(self, tokens: float = 10.0, ratio: float = 0.1) -> None:
        if not (tokens > 0 and ratio > 0):
            raise ValueError(f"tokens and ratio must be above 0, not {tokens!r} and {ratio!r}")
        self._full = float(tokens)
        self._ratio = ratio
        self._left = float(tokens)
        # Connections whose loss has been counted. The budget doesn't keep them.
        self._lost: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._lock = threading.RLock()  # a finalizer that ends a call may run wherever it is held
        _budgets.add(self)

    @property
    def left(self) -> float:
        """The tokens in it."""
        return self._left

    def failed(self, call: OutgoingCall, error: RpcError) -> bool:
        """Counts the failure of a call, or of one attempt; returns whether the call may be made again."""
        if goes_elsewhere(error):
            return True
        connection = _lost_connection(call, error)
        with self._lock:
            if connection is None or connection not in self._lost:
                self._left = max(0.0, self._left - 1.0)
            if connection is not None:
                self._lost.add(connection)
            return self.allows()

    def name_in(self, error: RpcError) -> None:
        """Says in the error of a call that isn't made again that this budget is the reason."""
        error.message += (
            f"; the call isn't retried: {self._left:g} of the {self._full:g} tokens of its retry budget are left, "
            "and a retry takes more than half"
        )

    def succeeded(self) -> None:
        """A call succeeded."""
        # Read without the lock, so that calls take none while the bucket is full.
        if self._left < self._full:
            with self._lock:
                self._left = min(self._full, self._left + self._ratio)

    def allows(self) -> bool:
        """Returns whether calls may be made again."""
        return self._left > self._full / 2


@dataclass(frozen=True)
class RetryPolicy:
    """Rules by which a call that failed is made again, and how soon; never past its deadline.

    A call is made again if no handler can have seen it, or if its method is idempotent. Before attempt n it waits for a
    random time up to ``initial_backoff * multiplier ** (n - 2)``, and up to ``max_backoff``, seconds; with less
    ``jitter`` than 1, for at least the rest of that. Calls with streams are made again while nothing has come of them
    and all that was sent is kept.

    Args:
        max_attempts: The most attempts of one call, the first one included; from 1 to 1000.
        initial_backoff: The longest wait before the second attempt, in seconds; at least 0.
        max_backoff: The longest wait before any attempt, in seconds; at least 0. A server may ask for a longer one, up
            to an hour.
        multiplier: The factor by which the longest wait grows with each attempt; at least 1.
        jitter: The part of the wait that is random, from 0 (none of it) to 1 (all of it).
        codes: Status codes of failures that may pass. A call that fails with another one isn't made again.
        budget: The budget for all calls with this policy; None: no limit. By default it is one of the policy's own.

    Raises:
        ValueError: A number is out of its range, or ``codes`` has one that is no ``StatusCode``.
    """

    max_attempts: int = 4
    initial_backoff: float = 0.05
    max_backoff: float = 2.0
    multiplier: float = 2.0
    jitter: float = 1.0
    codes: Collection[StatusCode] = CODES
    budget: RetryBudget | None = field(default_factory=RetryBudget)

    def __post_init__(self) -> None:
        check_attempts(self.max_attempts)
        # Each as what it must be, so that NaN is refused too: every comparison with it is False.
        if not (
            self.initial_backoff >= 0
            and self.max_backoff >= 0
            and self.multiplier >= 1
            and 0 <= self.jitter <= 1
        ):
            raise ValueError("backoffs must be 0 or more, multiplier 1 or more, and jitter from 0 to 1")
        object.__setattr__(self, "codes", codes_of(self.codes))

    def backoff(self, attempt: int) -> float:
        """Seconds to wait after so many attempts."""
        most = grown(self.initial_backoff, self.multiplier, attempt - 1, self.max_backoff)
        return most * random.uniform(1 - self.jitter, 1)

    def delay(
        self, call: OutgoingCall, error: RpcError, attempt: int, in_a_row: int | None = None
    ) -> float | None:
        """Returns the seconds to wait before ``call`` is made again, or None if it must not be made again.

        ``attempt`` attempts have failed, ``in_a_row`` of them since the server last asked for a delay.
        """
        if error.code not in self.codes:
            return None
        # Counted also where no retry follows: the bucket measures failures.
        allowed = self.budget is None or self.budget.failed(call, error)
        if attempt >= self.max_attempts or (call.may_have_run and not call.idempotent):
            return None
        delay = self.backoff(attempt if in_a_row is None else in_a_row)
        if PUSH_BACK in error.metadata:
            asked = pushed_back(error.metadata[PUSH_BACK])
            if asked is None:
                return None
            delay = asked
        # A retry that can't begin before the deadline would only delay the error.
        left = call.time_left()
        if left is not None and delay >= left:
            return None
        # Comes last, so that the message names the budget only where nothing else forbids the retry.
        if self.budget is not None and not allowed:
            self.budget.name_in(error)
            return None
        return delay

    def link(self, call: OutgoingCall) -> Generator[Any, Any, Any]:
        """Makes the call, several times if needed. It is a link; see ``rrpc/_call/outgoing.py``."""
        attempt = in_a_row = 0
        while True:
            attempt += 1
            in_a_row += 1
            try:
                result = yield call
            except RpcError as error:
                delay = self.delay(call, error, attempt, in_a_row)
                if delay is None:
                    raise
                # The server has set the pace, so the backoff begins anew.
                if PUSH_BACK in error.metadata:
                    in_a_row = 0
            else:
                if self.budget is not None:
                    self.budget.succeeded()
                return result
            # Outside of the `except` block: nothing keeps the error and its frames while the call sleeps.
            yield Sleep(delay)

    def stream_link(self, call: Any) -> Generator[Any, Any, Any]:
        """Opens a call with streams, several times if needed."""
        retries = call.retries = StreamRetries(self)
        return (yield from retries.link(call))


class StreamRetries:
    """A policy's part in one call with streams, until something has come of it."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._attempts = 0

    def link(self, call: OutgoingCall) -> Generator[Any, Any, Any]:
        """Begins the call, several times if needed."""
        while True:
            self._attempts += 1
            try:
                return (yield call)
            except RpcError as error:
                delay = self._policy.delay(call, error, self._attempts)
                if delay is None:
                    raise
            yield Sleep(delay)

    def link_after(self, error: RpcError, call: OutgoingCall) -> Generator[Any, Any, Any]:
        """The same, after one that had begun failed so."""
        delay = self._policy.delay(call, error, self._attempts)
        if delay is None:
            raise error
        if call.connection is not None:
            call.channel.failed(call.connection, error)
        yield Sleep(delay)
        return (yield from self.link(call))

    def may_follow(self, call: Any, error: RpcError) -> bool:
        """Returns whether another attempt may, as far as that can be told before it is asked for."""
        policy = self._policy
        left = self._attempts < policy.max_attempts and (policy.budget is None or policy.budget.allows())
        return (
            left
            and error.code in policy.codes
            and (call.idempotent or (error.not_executed and not call.ran_before))
        )

    def succeeded(self) -> None:
        """The call has."""
        if self._policy.budget is not None:
            self._policy.budget.succeeded()


def _lost_connection(call: OutgoingCall, error: RpcError) -> Connection | None:
    """Returns the connection that ended, and the call with it; None if the call failed in another way."""
    connection = call.connection
    if connection is None or connection.usable() or not isinstance(error, Unavailable) or error._answered:
        return None
    return connection


def check_attempts(count: int) -> None:
    if not isinstance(count, int) or not 1 <= count <= CALLS_MAX:
        raise ValueError(f"max_attempts must be a whole number from 1 to {CALLS_MAX}, not {count!r:.60}")


def codes_of(codes: Collection[StatusCode]) -> frozenset[StatusCode]:
    return frozenset(StatusCode(code) for code in codes)


def pushed_back(text: str | bytes) -> float | None:
    """Returns the seconds that a server's PUSH_BACK asks for, or None if the call must not be made again."""
    # The pattern comes before int(), which takes any number of digits: the quotient would raise OverflowError.
    if not isinstance(text, str) or _MILLISECONDS.fullmatch(text) is None:
        return None
    seconds = int(text) / 1000
    return seconds if seconds <= PUSH_BACK_SECONDS_MAX else None


def _anew() -> None:
    # A forked child has only the thread that forked: another one may have held a lock, and nobody would release it.
    for budget in _budgets:
        budget._lock = threading.RLock()


os.register_at_fork(after_in_child=_anew)
