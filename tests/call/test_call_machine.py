"""The steps of a call, driven with random events: replies, failures, lost connections, deadlines and cancellations.

The machine is the real one (``Prepared.course`` with retries and an interceptor). Its surroundings are this test: the
channel gives a connection at once, later or never, and each exchange and wait ends as hypothesis has it, by a clock of
its own.
"""

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_parts import FAILURES, TIMEOUT, Channel, Clock, Connection, Ends, Request, clock, failure
from made import examples

import rrpc
from rrpc._call.chain import Chain
from rrpc._call.outgoing import CallOptions, OutgoingCall, prepare
from rrpc._call.steps import Exchange, Sleep, Waiting

ATTEMPTS = 3
ELSEWHERE_MAX = 5  # connections in a row that turn out to take no calls
EVENTS = ("reply", "unavailable", *FAILURES)


class Seen(rrpc.ClientInterceptor):
    """Counts how often the call went in and came out."""

    def __init__(self) -> None:
        self.entered = self.left = 0

    def unary(self, call: Any) -> Generator[Any, Any, Any]:
        self.entered += 1
        try:
            return (yield call)
        finally:
            self.left += 1


class Driver:
    """Carries out what the machine asks for, as the events have it, and holds the machine to its rules."""

    def __init__(self, call: OutgoingCall, events: list[str], clock: Clock) -> None:
        self.call = call
        self._clock = clock
        self.exchanges: list[str] = []
        """What came of each."""
        self._events = events

    def answer(self, asked: Any) -> tuple[Any, BaseException | None]:
        """Returns the value and the error of the next step."""
        event = self._events.pop(0) if self._events else "reply"
        if type(asked) is Exchange:
            assert asked.arguments[4] > 0, "nothing is sent after the deadline"
            return self._exchange(event)
        if event == "cancel":
            self.call.cancel()
        if event == "late":
            self._clock.now += TIMEOUT
        if type(asked) is Sleep:
            assert 0 <= asked.seconds < TIMEOUT
            self._clock.now += asked.seconds
            return None, Ends() if event == "interrupt" else None
        assert type(asked) is Waiting
        if event in ("cancel", "late"):
            return None, asked.late()
        return (None, Ends()) if event == "interrupt" else (Connection(), None)

    def _exchange(self, event: str) -> tuple[Any, BaseException | None]:
        assert not self.call.cancelled, "nothing is sent for a call that was given up"
        # A call that a handler may have seen is made again only if that does no harm.
        assert self.call.idempotent or all(before == "unsent" for before in self.exchanges)
        if event == "cancel":  # too late: the reply is here
            self.call.cancel()
            event = "reply"
        if event == "late":
            self._clock.now += TIMEOUT
        self.exchanges.append(event)
        return ((b"result", None, b""), None) if event == "reply" else (None, failure(event))


def carry_out(chain: Chain, driver: Driver) -> tuple[Any, BaseException | None]:
    value: Any = None
    error: BaseException | None = None
    for _ in range(100):
        try:
            asked = chain.step(value, error)
        except BaseException as raised:
            return None, raised
        if chain.done:
            return asked, None
        value, error = driver.answer(asked)
    pytest.fail("it goes on for ever")


@settings(max_examples=examples(1000))
@given(
    idempotent=st.booleans(),
    ready=st.lists(st.sampled_from([True, True, True, False]), max_size=8),
    events=st.lists(st.sampled_from(EVENTS), min_size=4, max_size=12),
)
def test_whatever_happens(idempotent: bool, ready: list[bool], events: list[str]) -> None:
    with clock() as time:
        _whatever_happens(idempotent, ready, events, time)


def _whatever_happens(idempotent: bool, ready: list[bool], events: list[str], time: Clock) -> None:
    channel, seen = Channel(ready), Seen()
    policy = rrpc.RetryPolicy(max_attempts=ATTEMPTS, initial_backoff=0.5, budget=None)
    options = CallOptions(interceptors=(seen.unary,), retry=policy)
    chain = prepare(channel, Request(idempotent), options, TIMEOUT, None).course()  # type: ignore[arg-type]
    call: OutgoingCall = chain.call
    driver = Driver(call, events, time)
    result, error = carry_out(chain, driver)
    assert chain.done
    assert seen.entered == seen.left == 1
    assert all(wait.cancelled() for wait in channel.waited), "nobody waits for a connection any more"
    told = [end for end in driver.exchanges if end != "interrupt"]
    assert channel.told == ["succeeded" if end == "reply" else "failed" for end in told]
    counted = [end for end in driver.exchanges if end != "unsent"]
    assert len(counted) <= ATTEMPTS
    assert call.attempt == len(driver.exchanges)
    if error is None:
        assert (result, driver.exchanges[-1]) == (b"result", "reply")
    elif isinstance(error, rrpc.RpcError):
        assert counted or call.cancelled or error.not_executed, "no handler saw it"
        assert not isinstance(error, rrpc.DeadlineExceeded) or time.late
    else:
        assert isinstance(error, Ends)


@given(st.lists(st.just("unsent"), max_size=ELSEWHERE_MAX))
def test_connections_that_take_no_calls_cost_no_attempt(refusals: list[str]) -> None:
    channel = Channel([])
    options = CallOptions(retry=rrpc.RetryPolicy(max_attempts=1, budget=None))
    chain = prepare(channel, Request(False), options, TIMEOUT, None).course()  # type: ignore[arg-type]
    call: OutgoingCall = chain.call
    asked = chain.step()
    for event in refusals:
        assert type(asked) is Exchange
        asked = chain.step(None, failure(event))
    assert type(asked) is Exchange
    assert chain.step((b"result", None, b"")) == b"result"
    assert chain.done
    assert not refusals or not call.may_have_run or call.attempt == len(refusals) + 1
