"""The attempts at a call with streams, driven with random events and held to a model of what may follow what."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from machine_parts import FAILURES, TIMEOUT, Channel, Clock, Connection, Ends, clock, failure
from made import examples

import rrpc
from rrpc._call import stream_attempts
from rrpc._call.chain import drive, follow
from rrpc._call.outgoing import CallOptions
from rrpc._call.steps import Sleep, Waiting
from rrpc._call.stream_attempts import Another, Attempts, Deliver, Event, Receive, Send, State
from rrpc._client.outgoing_stream import begun_course
from rrpc.errors import unsent

ATTEMPTS = 3
ACTIONS = (
    "send",
    "send",
    "send",
    "first",
    "result",
    "flush",
    "finish",
    "done",
    "cancel",
    "close",
    "break",
    "greet",
)
OUTCOMES = ("ok", "ok", "full", *FAILURES)


class Core:
    """The core's stream of one attempt."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.error: BaseException | None = None
        self.reply: tuple[bytes, None] | None = None
        self.seen = self.finished = self.greeted = False
        self.full = False

    def has_answered(self) -> bool:
        return self.seen or self.greeted

    def done(self) -> bool:
        return self.error is not None or self.reply is not None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.reply

    def initial_metadata(self) -> bytes | None:
        return b"" if self.greeted else None

    def try_send(self, payload: bytes, buffers: Any) -> bool:
        self.result()
        if self.full:
            return False
        self.sent.append(payload)
        return True

    def finish(self) -> None:
        self.finished = True

    def cancel(self) -> None:
        if not self.done():
            self.error = rrpc.Cancelled("by its caller")

    def land_in(self, allocate: Any) -> None: ...


@dataclass
class Opened:
    attempts: Attempts
    on_end: Any = None


class World:
    """The server, the channel and the caller of one call."""

    method, out = "Lab.do", None

    def __init__(self, idempotent: bool, clock: Clock, outcomes: list[str]) -> None:
        self.idempotent = idempotent
        self.clock = clock
        self.cores: list[Core] = []
        self.items: list[bytes] = []
        """Those that send() has taken."""
        self.over = False
        """Whether the caller has cancelled or closed the call, or knows how it ended."""
        self._outcomes = outcomes
        policy = rrpc.RetryPolicy(max_attempts=ATTEMPTS, initial_backoff=0.5, budget=None)
        self.call = begun_course(Channel([]), self, CallOptions(retry=policy), TIMEOUT, None)  # type: ignore[arg-type]
        with suppress(Ends):
            self.attempts: Any = drive(self.call.chain, self.carry_out).attempts

    def named(self) -> Mapping[str, Any]:
        return {}

    def opened(self, attempts: Attempts) -> Any:
        return Opened(attempts)

    def open(self, connection: Connection, timeout: float, metadata: Any) -> Core:
        """Begins an attempt, which must be allowed."""
        assert timeout > 0, "none begins after the deadline"
        assert not self.over
        assert not self.call.cancelled
        for core in self.cores:
            assert not core.has_answered(), "a handler that has answered is the last one"
            assert isinstance(core.error, rrpc.Unavailable)
            assert core.error.not_executed or self.idempotent, "a handler may have run"
        assert sum(not getattr(core.error, "not_executed", False) for core in self.cores) < ATTEMPTS
        self.cores.append(Core())
        if len(self.cores) > 1 and self.outcome() == "cancel":  # just when it begins
            self.attempts.close()
            self.over = True
        return self.cores[-1]

    def outcome(self) -> str:
        return self._outcomes.pop() if self._outcomes else "ok"

    def carry_out(self, asked: Any) -> Any:
        """Does what the course of an attempt asks for."""
        outcome = self.outcome()
        if outcome == "cancel":
            self.call.cancel()
        if outcome == "interrupt" and self.cores:
            raise Ends
        if type(asked) is Sleep:
            assert asked.seconds < TIMEOUT
            self.clock.now += TIMEOUT if outcome == "late" else asked.seconds
            self.call.check()
            return None
        assert type(asked) is Waiting
        return Connection()

    def do(self, asked: Any) -> Any:
        """Does what the attempts ask for."""
        core = asked.core
        if type(asked) is Another:
            if core is self.attempts.core:
                follow(self.attempts.another(asked), lambda chain: drive(chain, self.carry_out))
            return None
        core.result()  # raises what it has failed with
        outcome = self.outcome()
        if outcome == "late":
            self.clock.now += TIMEOUT
        if outcome == "cancel":
            self.attempts.cancel()
            self.over = True
            core.result()
        elif outcome == "interrupt":
            raise Ends
        elif outcome not in ("ok", "full"):
            core.error = failure(outcome)
            raise core.error
        return self.succeed(core, asked)

    def succeed(self, core: Core, asked: Any) -> Any:
        if type(asked) is Deliver:
            return None
        core.seen = True
        if type(asked) is Send:
            core.full = False
            core.sent.append(asked.argument[0])
            return None
        if type(asked) is Receive:
            return [(b"item", None)]
        core.reply = (b"reply", None)
        return core.reply

    def act(self, action: str) -> None:
        attempts = self.attempts
        if action == "send":
            attempts.core.full = self.outcome() == "full"
            item = b"%d" % len(self.items)
            if not attempts.send_now(item, None):
                follow(attempts.send(item, None), self.do)
            self.items.append(item)
        elif action == "first":
            assert follow(attempts.first_items(1), self.do)
        elif action == "result":
            assert attempts.last_reply(False) or follow(attempts.result(), self.do) == (b"reply", None)
            self.over = True
        elif action == "flush":
            follow(attempts.flush(None), self.do)
        else:
            self.act_at_once(action, attempts)

    def act_at_once(self, action: str, attempts: Any) -> None:
        if action == "finish":
            attempts.finish()
        elif action == "done":
            core = attempts.core
            if attempts.ended() is None:
                follow(attempts.another(Another(attempts, core, rrpc.RpcError())), self._make)
        elif action == "cancel" and attempts.cancel():
            self.over = True
            with pytest.raises(rrpc.Cancelled):
                follow(attempts.result(), self.do)
        elif action == "greet" and not attempts.core.done():
            attempts.core.greeted = True
        elif action == "close":
            attempts.close()
            self.over = True
        elif action == "break" and not attempts.core.done():
            outcome = self.outcome()
            error = failure(outcome if outcome in ("unsent", "internal") else "unavailable")
            self.clock.now += TIMEOUT if outcome == "late" else 0
            attempts.core.error = error

    def _make(self, chain: Any) -> Any:
        return drive(chain, self.carry_out)

    def check(self) -> None:
        """Checks what is true whenever nothing runs."""
        attempts = self.attempts
        assert not attempts.under_way
        assert attempts.core is self.cores[-1]
        assert (attempts.kept is not None) == (attempts.state is State.OPEN)
        for core in self.cores[:-1]:
            assert core.done()
        last = self.cores[-1]
        if attempts.kept is not None:
            assert last.sent == [payload for payload, _ in attempts.kept]
            assert not last.seen or last.error is not None
        assert not self.over or last.done()
        if attempts.ended() is None:  # another one is due
            assert isinstance(last.error, rrpc.Unavailable)
            assert not any((last.has_answered(), self.over, self.call.cancelled, self.clock.late))
            assert last.error.not_executed or self.idempotent


@example(idempotent=True, actions=["break"], outcomes=["late"])
@settings(max_examples=examples(1500))
@given(
    idempotent=st.booleans(),
    actions=st.lists(st.sampled_from(ACTIONS), max_size=12),
    outcomes=st.lists(st.sampled_from(OUTCOMES), max_size=25),
)
def test_whatever_happens(idempotent: bool, actions: list[str], outcomes: list[str]) -> None:
    with clock() as time:
        world = World(idempotent, time, outcomes)
        for action in actions:
            before = len(world.cores)
            over = world.over
            try:
                world.act(action)
            except rrpc.RpcError:
                pass
            except Ends:
                world.check()
                continue
            else:
                if action == "send":
                    assert world.items[-1] in world.cores[-1].sent, "an item that was taken is sent"
                    assert not (world.attempts.kept is not None and world.items != world.cores[-1].sent)
            assert not over or len(world.cores) == before, "nothing follows the end"
            world.check()


def test_a_call_that_is_cancelled_before_its_next_attempt_was_cancelled() -> None:
    with clock() as time:
        world = World(True, time, [])
        world.attempts.core.error = rrpc.Unavailable("lost")
        assert world.attempts.ended() is None
        assert world.attempts.cancel()
        with pytest.raises(rrpc.Cancelled):
            follow(world.attempts.result(), world.do)
        assert len(world.cores) == 1


def test_the_table_says_what_the_machine_does() -> None:
    doc = stream_attempts.__doc__ or ""
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", doc, re.MULTILINE)
    ]
    head, _, *states = rows[: 2 + len(State)]
    events = [Event[name] for name in head[2:]]
    told = {
        State[row[0]]: {event: State[to] for event, to in zip(events, row[2:], strict=True) if to}
        for row in states
    }
    assert told == stream_attempts._NEXT
    assert {row[0] for row in rows[2 + len(State) + 2 :]} == {event.name for event in Event}


def test_an_event_that_the_table_has_no_cell_for_is_refused() -> None:
    attempts = Attempts(Core(), None)  # type: ignore[arg-type]
    attempts._on(Event.SEEN)
    with pytest.raises(RuntimeError, match="can't be refused while settled"):
        attempts._on(Event.REFUSED)


def test_an_item_is_sent_again_where_another_thread_moved_the_call() -> None:
    """Its wait for room was over when the attempt failed, before that could be noted."""
    first, second = Core(), Core()
    attempts = Attempts(first, None)  # type: ignore[arg-type]
    first.full = True
    steps = attempts.send(b"item", None)
    assert type(next(steps)) is Send
    first.error = unsent(rrpc.Unavailable("lost"))
    with attempts._lock:
        attempts._on(Event.REFUSED)
    attempts.move_to(second)  # type: ignore[arg-type]
    with pytest.raises(StopIteration):
        steps.send(None)
    assert second.sent == [b"item"]
