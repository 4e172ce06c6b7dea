"""Calls that go their course in callbacks, with random events: whatever comes when, a call ends once and then rests."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from machine_parts import TIMEOUT, Channel, Clock, Connection, Ends, Request, clock, failure
from made import examples

import rrpc
from rrpc._call.callbacks import CallbackDriver, Slept, Wait, Waited
from rrpc._call.outgoing import CallOptions, prepare
from rrpc._call.steps import Exchange, Sleep, Waiting

OUTCOMES = ("reply", "unavailable", "unsent", "internal", "interrupt", "late")
EVENTS = (
    "answer",
    "answer",
    "answer",
    "late answer",
    "timer",
    "soon",
    "cancel",
    "give up",
    "connect",
    "refuse",
)


class Timer:
    def __init__(self, do: Callable[[], object], at: float) -> None:
        self.do: Callable[[], object] | None = do
        self.at = at

    def cancel(self) -> None:
        self.do = None


class Style(CallbackDriver):
    """A style of calling whose callbacks come when the test has them come."""

    def __init__(self, chain: Any, clock: Clock) -> None:
        super().__init__(chain)
        self.clock = clock
        self.timers: list[Timer] = []
        self.queue: list[Callable[[], object]] = []
        self.exchanges: list[_Exchanging] = []
        self.ends: list[tuple[Any, BaseException | None]] = []
        self.refuses = False
        """Whether the next wait fails to begin."""

    def later(self, seconds: float, do: Callable[[], object]) -> Timer:
        self.timers.append(Timer(do, self.clock.now + seconds))
        return self.timers[-1]

    def soon(self, do: Callable[..., object], *arguments: Any) -> None:
        self.queue.append(lambda: do(*arguments))

    def come_back(self, do: Callable[..., object], *arguments: Any) -> None:
        do(*arguments)

    def end(self, value: Any, error: BaseException | None) -> None:
        self.ends.append((value, error))

    def fire(self) -> None:
        if self.timers:
            timer = min(self.timers, key=lambda timer: timer.at)
            self.timers.remove(timer)
            if timer.do is not None:
                self.clock.now = max(self.clock.now, timer.at)
                timer.do()

    def waits_for(self) -> Any:
        return self._wait


class _Exchanging(Wait):
    cancelled = False

    def begin(self, driver: Style, asked: Exchange) -> None:
        assert not driver.ends, "nothing is sent for a call that has ended"
        assert asked.arguments[4] > 0, "nothing is sent after the deadline"
        if driver.refuses:
            driver.refuses = False
            raise failure("unsent")
        driver.exchanges.append(self)
        driver.call.interrupt_with(self.cancel)

    def cancel(self) -> None:
        self.cancelled = True

    def answer(self, outcome: str) -> bool:
        driver = self.take()
        if driver is None:
            return False
        if self.cancelled:
            driver.go_on(None, rrpc.Cancelled("by its caller"))
        elif outcome == "reply":
            driver.go_on((b"result", None, b""))
        else:
            driver.go_on(None, failure(outcome))
        return True


Style.waits = {Exchange: _Exchanging, Waiting: Waited, Sleep: Slept}


def happens(style: Style, channel: Channel, event: str, outcome: str) -> None:
    if event == "answer" and style.exchanges:
        style.exchanges[-1].answer(outcome)
    elif event == "late answer" and len(style.exchanges) > 1:
        assert not style.exchanges[-2].answer(outcome), "a wait that is over goes on with nothing"
    elif event == "timer":
        style.fire()
    elif event == "soon" and style.queue:
        style.queue.pop(0)()
    elif event == "cancel":
        style.call.cancel()
    elif event == "give up" and (wait := style.waits_for()) is not None and wait.give_up():
        style.go_on(None, Ends())
    elif event == "connect" and channel.waited and not channel.waited[-1].done():
        channel.waited[-1].set_result(Connection())
    elif event == "refuse":
        style.refuses = True


@settings(max_examples=examples(600))
@given(
    idempotent=st.booleans(),
    ready=st.lists(st.sampled_from([True, True, False]), max_size=6),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(OUTCOMES)), max_size=25),
    connects=st.booleans(),
)
def test_a_call_ends_once(
    idempotent: bool, ready: list[bool], events: list[tuple[str, str]], connects: bool
) -> None:
    channel = Channel(ready)
    options = CallOptions(retry=rrpc.RetryPolicy(max_attempts=3, initial_backoff=0.5, budget=None))
    with clock() as time:
        made = prepare(channel, Request(idempotent), options, TIMEOUT, None)  # type: ignore[arg-type]
        style = Style(made.course(), time)
        style.go_on()
        for event, outcome in events:
            attempts = style.call.attempt
            ended = len(style.ends)
            happens(style, channel, event, outcome)
            if ended:
                assert style.call.attempt == attempts, "nothing follows the end"
            assert len(style.ends) <= 1
        left = ("connect", "soon", "timer", "answer") if connects else ("soon", "timer", "answer")
        for event in left * 50:  # whatever is left comes
            if not style.ends:
                happens(style, channel, event, "reply")
    ((value, error),) = style.ends
    assert (value == b"result") == (error is None)
    assert not style.exchanges or style.exchanges[-1].take() is None
    assert all(timer.do is None for timer in style.timers), "no timer is left that does something"
