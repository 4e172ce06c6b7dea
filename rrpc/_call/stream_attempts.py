"""Makes the attempts at one call with streams, as a machine without I/O.

A call is made again, over another connection, while nothing has come of it. The machine is in one of five states, and
an event takes it to the next; an event that has no cell can't happen in that state.

| state | means | SEEN | REFUSED | BEGUN | FAILED | DROPPED | CLOSED |
|---|---|---|---|---|---|---|---|
| OPEN | An attempt is under way, and all that was sent is kept. | SETTLED | MOVING | | | | ENDED |
| MOVING | It failed, and another one is being made. | | | OPEN | ENDED | OPEN | CLOSING |
| CLOSING | The caller has let go of the call meanwhile. | | | ENDED | ENDED | ENDED | CLOSING |
| SETTLED | The attempt is the last one; nothing is kept. | SETTLED | | | | | ENDED |
| ENDED | No attempt follows: the call has ended, or will at once. | ENDED | | | | | ENDED |

| event | means |
|---|---|
| SEEN | A handler has seen the attempt (an item, a reply, room in a full window), or more was sent than is kept. |
| REFUSED | The attempt failed before that, and the call's policy allows another one. |
| BEGUN | The other attempt has begun, and has been sent all that was kept. |
| FAILED | There is no other attempt: making it failed. |
| DROPPED | Making it was interrupted, by Ctrl-C for example. |
| CLOSED | The caller has cancelled the call, or uses it no more. |

A method that may take time is a generator of steps. It yields an ``Operation`` on the core's stream, or ``Another`` for
another attempt. A driver does that: ``rrpc/_client/blocking_driver.py`` in the calling thread,
``rrpc/aio/asyncio_driver.py`` in a loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from rrpc import _core
from rrpc.errors import Cancelled, RpcError, Unavailable, goes_elsewhere

if TYPE_CHECKING:
    from .chain import Chain, Steps

_KEPT_ITEMS_MAX = 1024
_KEPT_BYTES_MAX = 8 << 20  # and one item more: the windows that servers have unless they are told otherwise


class State(Enum):
    """State of the attempts at a call; see the table above."""

    __hash__ = object.__hash__  # members are single; that of Enum runs Python

    OPEN = "open"
    MOVING = "moving"
    CLOSING = "closing"
    SETTLED = "settled"
    ENDED = "ended"


class Event(Enum):
    """Event that changes the state; see the table above."""

    __hash__ = object.__hash__

    SEEN = "seen"
    REFUSED = "refused"
    BEGUN = "begun"
    FAILED = "failed"
    DROPPED = "dropped"
    CLOSED = "closed"


OPEN, MOVING, CLOSING, SETTLED, ENDED = State
SEEN, REFUSED, BEGUN, FAILED, DROPPED, CLOSED = Event
_NEXT: dict[State, dict[Event, State]] = {
    OPEN: {SEEN: SETTLED, REFUSED: MOVING, CLOSED: ENDED},
    MOVING: {
        BEGUN: OPEN,
        FAILED: ENDED,
        DROPPED: OPEN,
        CLOSED: CLOSING,
    },
    CLOSING: {
        BEGUN: ENDED,
        FAILED: ENDED,
        DROPPED: ENDED,
        CLOSED: CLOSING,
    },
    SETTLED: {SEEN: SETTLED, CLOSED: ENDED},
    ENDED: {SEEN: ENDED, CLOSED: ENDED},
}
_KEEPING = (OPEN, MOVING)


class Call(Protocol):
    """Interface of an outgoing call that its attempts use."""

    def goes_on_after(self, error: RpcError) -> bool:
        """Returns whether it may be made again, when it has failed so before anything came of it."""

    def again(self, attempts: Attempts, error: RpcError) -> Chain:
        """Returns the course of another attempt, which ends with ``attempts.move_to``."""

    def cancel(self) -> None:
        """Ends it, whatever it waits for."""

    @property
    def cancelled(self) -> bool:
        """Whether it was ended so."""


class Operation:
    """Asks a driver to do something with the core's stream of an attempt, and to wait until it is done."""

    __slots__ = ("argument", "core")

    def __init__(self, core: _core.Stream, argument: Any = None) -> None:
        self.core = core
        self.argument = argument


class Send(Operation):
    """Sends an item, (payload, buffers), and waits for room."""


class Receive(Operation):
    """Receives some items, up to so many, and gives them; [] at the end."""


class Reply(Operation):
    """Gives the reply."""


class Deliver(Operation):
    """Waits until the peer has what was sent, up to a deadline or None."""


class Another:
    """Asks a driver to make another attempt after ``core`` failed with ``error``, or to wait for the one being made.

    Drivers carry ``attempts.another(self)`` out once at a time, and only while ``core`` is the current one.
    """

    __slots__ = ("attempts", "core", "error")

    def __init__(self, attempts: Attempts, core: _core.Stream, error: RpcError) -> None:
        self.attempts = attempts
        self.core = core
        self.error = error


class Attempts:
    """Holds the core's stream of the last attempt at a call. Any thread may use it.

    The items that the caller has sent are kept while the state is OPEN or MOVING. From then on ``kept`` is None.
    """

    __slots__ = (
        "_allocate",
        "_call",
        "_error",
        "_finished",
        "_lock",
        "_room",
        "core",
        "kept",
        "making",
        "state",
    )

    def __init__(self, core: _core.Stream, call: Call) -> None:
        self.core = core
        self.kept: list[tuple[bytes, Any]] | None = []
        self.state = OPEN
        self.making: Any = None
        """Lock of the thread that makes another attempt, or the task that does. Drivers set it."""
        self._call = call
        # The lock guards the state and what goes with it. Some look at `core`, `state` and `kept` without it first;
        # whoever changes one of them looks again while holding it.
        self._lock = threading.RLock()  # a finalizer that lets go of the call may run wherever it is held
        self._finished = False
        self._allocate: Callable[[int], Any] | None = None
        self._room = _KEPT_BYTES_MAX
        self._error: RpcError | None = None

    def _on(self, event: Event) -> None:
        """Goes on to the next state. The caller holds the lock."""
        found = _NEXT[self.state].get(event)
        if found is None:
            raise RuntimeError(f"a stream's attempts can't be {event.value} while {self.state.value}")
        self.state = found
        if found not in _KEEPING:
            self.kept = None

    @property
    def under_way(self) -> bool:
        """Whether another attempt is being made."""
        return self.state is MOVING or self.state is CLOSING

    # Steps, which a driver carries out

    def send(self, payload: bytes, buffers: Any) -> Steps:
        """Sends an item, waiting for room."""
        while True:
            # Another thread may replace the attempt during any wait, so each method compares this with `self.core`
            # afterwards.
            core = self.core
            try:
                if self.try_send(payload, buffers):
                    return
                yield Send(core, (payload, buffers))
                # The server made room, so a handler has seen the attempt.
                if self.settle(core):
                    return
            except RpcError as error:
                yield from self._go_on(core, error)

    def flush(self, deadline: float | None) -> Steps:
        """Waits until the server's process has all items sent so far."""
        while True:
            core = self.core
            try:
                yield Deliver(core, deadline)
            except RpcError as error:
                if self.kept is None:
                    raise
                yield from self._go_on(core, error)
            else:
                if core is self.core:
                    return

    def first_items(self, count: int) -> Steps:
        """Waits for what the server sends first, and returns it: [] if there are no items."""
        while True:
            core = self.core
            try:
                batch = yield Receive(core, count)
            except RpcError as error:
                yield from self._go_on(core, error)
            else:
                if self.settle(core):
                    return batch

    def result(self) -> Steps:
        """Waits for the reply, and returns it."""
        while True:
            core = self.core
            try:
                reply = yield Reply(core)
            except RpcError as error:
                yield from self._go_on(core, error)
            else:
                self.settle(core)
                return reply

    def another(self, asked: Another) -> Generator[Chain, Any, None]:
        """Makes another attempt: yields its course. Raises the call's error if there is to be none."""
        cause = self._cause(asked.core, asked.error)
        with self._lock:
            if self.kept is None:
                raise cause  # closed meanwhile
            self._on(REFUSED)
        try:
            yield self._call.again(self, cause)
        except RpcError as failed:
            self._fail(failed, cause)
            raise
        finally:
            with self._lock:
                # Still under way only if it was interrupted: BEGUN or FAILED has ended it in all other cases.
                if self.under_way:
                    self._on(DROPPED)

    def _go_on(self, core: _core.Stream, error: RpcError) -> Steps:
        if core is self.core:
            yield Another(self, core, error)

    # Without waiting

    def send_now(self, payload: bytes, buffers: Any) -> bool:
        """Sends an item if that takes no waiting. Otherwise returns False: then ``send`` sees to it."""
        try:
            return self.try_send(payload, buffers)
        except RpcError:
            return False  # which send() meets again

    def last_reply(self, may_wait: bool) -> tuple[bytes, Any] | None:
        """Returns the reply of an attempt that is the last one. Otherwise returns None: then ``result`` sees to it."""
        core = self.core
        if self.kept is None and (may_wait or core.done()):
            try:
                return core.result()
            except RpcError:
                return None  # which result() meets again
        return None

    def try_send(self, payload: bytes, buffers: Any) -> bool:
        """Sends an item. Returns False if there is no room now."""
        with self._lock:
            sent = self.core.try_send(payload, buffers)
            kept = self.kept  # which a finalizer may drop meanwhile
            if sent and kept is not None:
                self._keep(kept, payload, buffers)
        return sent

    def finish(self) -> None:
        """Says that there are no more items to send."""
        with self._lock:
            self._finished = True
            self.core.finish()

    def land_in(self, allocate: Callable[[int], Any]) -> None:
        """Has buffers of items land in what ``allocate`` gives, those of other attempts too."""
        with self._lock:
            self._allocate = allocate
            self.core.land_in(allocate)

    def settle(self, core: _core.Stream) -> bool:
        """Notes that a handler has seen the attempt. Returns False if there is another, or will be."""
        # Needs no lock: in this state `core` is never replaced.
        if self.state is SETTLED:
            return core is self.core
        with self._lock:
            if core is not self.core or self.state is MOVING or self.state is CLOSING:
                return False
            self._on(SEEN)
            return True

    def move_to(self, core: _core.Stream) -> None:
        """Goes on with the next attempt, which has begun: it gets what the others got."""
        # The items go while the lock is held, so that an item which the caller sends meanwhile comes after them.
        with self._lock:
            if self._allocate is not None:
                core.land_in(self._allocate)
            for item in self.kept or ():
                try:
                    sent = core.try_send(*item)
                except RpcError:
                    if core.done():
                        break  # whoever uses it finds out how it ended
                    raise
                if not sent:
                    raise Unavailable(
                        "the call was refused, and the next server's window has no room for the items that were sent"
                    )
            if self._finished:
                core.finish()
            self.core = core
            self._on(BEGUN)
            if self.kept is None:  # closed meanwhile
                core.cancel()

    def goes_on(self) -> bool:
        """Returns whether the attempt has failed, and another is being made, or will be by who waits for the call."""
        if self.under_way:
            return True
        own = self._failure(self.core) if self.kept is not None else None
        return own is not None and self._call.goes_on_after(own)

    def ended(self) -> bool | None:
        """Returns whether the call has ended; None if another attempt is due."""
        core = self.core
        if not core.done() or self.under_way:
            return False
        return None if self.goes_on() else core is self.core  # else another thread has made it

    def cancel(self) -> bool:
        """Ends the call. Returns False if it has ended."""
        while True:
            core = self.core
            refused = core.done()
            if not refused or self.goes_on():
                break
            if core is self.core:  # else it goes on with another
                return False
        self._call.cancel()
        self.close()
        if refused:
            self._error = Cancelled("the call was cancelled by its caller")
        return True

    def close(self) -> None:
        """Ends the attempt; there are to be no more."""
        with self._lock:
            self._error = None
            self._on(CLOSED)
            closing = self.under_way
        if closing:  # another one begins, and then looks whether this is closed
            self._call.cancel()
        self.core.cancel()

    def outcome(self, error: RpcError) -> RpcError:
        """Returns the error of the call, given the ``error`` of its last attempt."""
        told = self._error
        if told is not None:
            return told
        if self._call.cancelled and goes_elsewhere(error):  # by a thread that doesn't see the attempts end
            return Cancelled("the call was cancelled by its caller")
        return error

    def _cause(self, core: _core.Stream, error: RpcError) -> RpcError:
        """Returns the attempt's error, if no metadata had arrived and the call may be attempted again.

        Raises the error for the caller otherwise.
        """
        own = self._failure(core) if self.kept is not None else None
        if own is None:
            raise self.outcome(error)
        return own

    def _fail(self, error: RpcError, cause: RpcError) -> None:
        """Notes that there is to be no attempt after the one that failed with ``cause``."""
        with self._lock:
            if not self.under_way:
                return
            if self.state is MOVING and error is not cause:
                self._error = error
            self._on(FAILED)

    def _keep(self, kept: list[tuple[bytes, Any]], payload: bytes, buffers: Any) -> None:
        if len(kept) == _KEPT_ITEMS_MAX or self._room < 0:
            self._on(SEEN)  # more than is kept: the call isn't made again
            return
        kept.append((payload, buffers))
        self._room -= len(payload) + sum(_bytes_of(buffer) for buffer in buffers or ())

    @staticmethod
    def _failure(core: _core.Stream) -> RpcError | None:
        """Returns the error that ended this stream; None if it is open, succeeded or got initial metadata."""
        if not core.done():
            return None
        try:
            core.result()
        except RpcError as error:
            return None if core.initial_metadata() is not None else error
        return None


def _bytes_of(buffer: Any) -> int:
    found = getattr(buffer, "nbytes", None)
    return len(buffer) if found is None else int(found)
