"""The attempts at one call with streams: it is made again, over another connection, while nothing has come of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import monotonic, sleep
from typing import Any, Protocol

from rrpc import _core
from rrpc.errors import Cancelled, RpcError, Unavailable, goes_elsewhere

__all__ = ["Attempts"]

_FOLLOW_S = 0.01
_KEPT_ITEMS_MAX = 1024
_KEPT_BYTES_MAX = 8 << 20  # and one item more: the windows that servers have unless they are told otherwise


class Call(Protocol):
    """Interface of an outgoing call that its attempts use."""

    def goes_on_after(self, error: RpcError) -> bool:
        """Whether it may be made again, when it has failed so before anything came of it."""

    def cancel(self) -> None:
        """End it, whatever it waits for."""

    @property
    def cancelled(self) -> bool:
        """Whether it was ended so."""


class Attempts:
    """The core's stream of the last attempt at a call, and what was sent, for the next.

    What the caller has sent is kept until there is a sign that a handler has seen the call: an item, a reply, or room
    in a window that was full. From then on ``kept`` is None, and the call is not made again.
    """

    __slots__ = (
        "_again",
        "_allocate",
        "_call",
        "_error",
        "_finished",
        "_lock",
        "_room",
        "core",
        "kept",
        "under_way",
    )

    def __init__(
        self, core: _core.Stream, call: Any, again: Callable[[Attempts, Any, RpcError], object]
    ) -> None:
        """``again``: makes another attempt, which comes in by ``move_to``; it may wait."""
        self.core = core
        self.kept: list[tuple[bytes, Any]] | None = []
        self.under_way = False
        """Whether another attempt is being made."""
        self._call: Call = call
        self._again = again
        self._lock = threading.RLock()  # what runs while another attempt is made may use the stream, too
        self._finished = False
        self._allocate: Callable[[int], Any] | None = None
        self._room = _KEPT_BYTES_MAX
        self._error: RpcError | None = None

    def send(self, payload: bytes, buffers: Any) -> None:
        """Wait until there is room, and send an item."""
        while True:
            core = self.core
            try:
                if not self.try_send(payload, buffers):
                    core.send(payload, buffers)
                    self.settle(core)
            except RpcError as error:
                self.go_on(core, error)
            else:
                return

    def try_send(self, payload: bytes, buffers: Any) -> bool:
        """False: there is no room now."""
        with self._lock:
            sent = self.core.try_send(payload, buffers)
            kept = self.kept  # which other threads may drop meanwhile
            if sent and kept is not None:
                self._keep(kept, payload, buffers)
        return sent

    def finish(self) -> None:
        """There are no more items to send."""
        with self._lock:
            self._finished = True
            self.core.finish()

    def land_in(self, allocate: Callable[[int], Any]) -> None:
        """Has buffers of items land in what ``allocate`` gives, those of other attempts too."""
        with self._lock:
            self._allocate = allocate
            self.core.land_in(allocate)

    def flush(self, timeout: float | None) -> None:
        """Waits until the server's process has all items sent so far."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            core = self.core
            try:
                core.wait_delivered(None if end is None else max(0.0, end - monotonic()))
            except RpcError as error:
                if self.kept is None:
                    raise
                self.go_on(core, error)
            else:
                if core is self.core:
                    return

    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` once the last attempt has ended."""
        self.core.on_end(partial(self._tell_end, callback))

    def _tell_end(self, callback: Callable[[], object]) -> None:
        if not self.goes_on():
            callback()
            return
        # Another attempt is made by whoever waits for the call. Nobody may: this thread mustn't.
        threading.Thread(target=self._follow, args=(callback,), name="rrpc-attempt", daemon=True).start()

    def _follow(self, callback: Callable[[], object]) -> None:
        while self.under_way:
            sleep(_FOLLOW_S)
        if self.done():
            callback()
        else:
            self.on_end(callback)

    def first_items(self, count: int) -> list[Any]:
        """Wait for what the server sends first; there may be no such items."""
        while True:
            core = self.core
            try:
                batch: list[Any] = core.receive(count, None)
            except RpcError as error:
                self.go_on(core, error)
            else:
                if self.settle(core):
                    return batch

    def result(self) -> tuple[bytes, Any]:
        """Wait for the reply."""
        while True:
            core = self.core
            try:
                reply: tuple[bytes, Any] = core.result()
            except RpcError as error:
                self.go_on(core, error)
            else:
                self.kept = None
                return reply

    def settle(self, core: _core.Stream) -> bool:
        """A handler has seen the attempt: it was the last. False: there is another, made by another thread."""
        if self.kept is None:
            return core is self.core
        with self._lock:
            if core is not self.core:
                return False
            self.kept = None
            return True

    def go_on(self, core: _core.Stream, error: RpcError) -> None:
        """Make another attempt, after one that failed; raises the call's error where there is to be none."""
        with self._lock:
            if core is not self.core:
                return  # another thread has made it
            if self.under_way:
                raise error  # in a callback, which runs while this thread makes it
            cause = self.cause(core, error)
            self.under_way = True
            try:
                if self.kept is None:
                    raise cause  # closed meanwhile
                self._again(self, self._call, cause)
            except RpcError as failed:
                self.fail(failed, cause)
                raise
            finally:
                self.under_way = False

    def cause(self, core: _core.Stream, error: RpcError) -> RpcError:
        """Returns the attempt's error, if no metadata had arrived and the call may be attempted again.

        Raises the error for the caller otherwise.
        """
        if (told := self._error) is not None:
            raise told
        own = self._failure(core) if self.kept is not None else None
        if own is None:
            raise self.outcome(error)
        return own

    def move_to(self, core: _core.Stream) -> None:
        """The next attempt was begun: it gets what the others got."""
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
        if self.kept is None:  # closed meanwhile
            core.cancel()

    def goes_on(self) -> bool:
        """Whether the attempt has failed, and another is being made, or will be by who waits for the call."""
        if self.under_way:
            return True
        own = self._failure(self.core) if self.kept is not None and self._error is None else None
        return own is not None and self._call.goes_on_after(own)

    def done(self) -> bool:
        """Whether the call has ended; where another attempt is due, it is made."""
        core = self.core
        if not core.done():
            return False
        if self.under_way:
            return False
        if not self.goes_on():
            return core is self.core  # else another thread has made it
        try:
            self.go_on(core, RpcError())
        except RpcError:
            return True
        return False

    def cancel(self) -> bool:
        """End the call; False if it has ended."""
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
        """There are to be no more attempts, and this one ends."""
        self.kept = self._error = None
        if self.under_way:  # which begins, and then looks whether this is closed
            self._call.cancel()
        self.core.cancel()

    def fail(self, error: RpcError, cause: RpcError) -> None:
        """There is to be no attempt after the one that failed so."""
        if self.kept is not None and error is not cause:
            self._error = error
        self.kept = None

    def outcome(self, error: RpcError) -> RpcError:
        """Returns the error of the call, given the ``error`` of its last attempt."""
        told = self._error
        if told is not None:
            return told
        if self._call.cancelled and goes_elsewhere(error):  # by a thread that doesn't see the attempts end
            return Cancelled("the call was cancelled by its caller")
        return error

    def _keep(self, kept: list[tuple[bytes, Any]], payload: bytes, buffers: Any) -> None:
        if len(kept) == _KEPT_ITEMS_MAX or self._room < 0:
            self.kept = None  # more than is kept: the call isn't made again
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
