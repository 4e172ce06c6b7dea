"""A call with streams that is under way, beneath the objects that its caller has."""

# One thread may send while another one receives; any thread may cancel. The attempts have a lock for what they share.

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from rrpc._call.received_items import received
from rrpc.errors import Cancelled, RpcError

from .blocking_driver import has_ended, run_attempts

if TYPE_CHECKING:
    from rrpc import _core
    from rrpc._call.stream_attempts import Attempts
    from rrpc.codec import CompiledPlan


class StreamCall:
    """A call with streams that has a connection: its attempts, and how items and the result are packed and read.

    Interceptors put themselves around ``encode`` and ``decode`` and set ``on_end`` before anything is sent or received.
    """

    __slots__ = (
        "attempts",
        "decode",
        "decode_plan",
        "decode_result",
        "encode",
        "encode_plan",
        "failures",
        "name",
        "on_end",
        "typed",
    )

    def __init__(
        self,
        attempts: Attempts,
        name: str,
        encode: Callable[[Any], tuple[bytes, Any]],
        decode: Callable[[bytes, Any], Any],
        decode_result: Callable[[bytes, Any], Any],
        typed: Callable[[RpcError], BaseException] | None = None,
    ) -> None:
        self.attempts = attempts
        self.name = name
        self.encode = encode
        self.decode = decode
        self.decode_result = decode_result
        self.encode_plan: CompiledPlan | None = None
        """Does what ``encode`` does, in the core."""
        self.decode_plan: CompiledPlan | None = None
        """Does what ``decode`` does, in the core."""
        self.typed = typed
        """Gives a declared error as its own class."""
        self.on_end: Callable[[BaseException | None], object] | None = None
        """Called once, when the outcome is known or the caller has let go of the call."""
        self.failures: list[BaseException] = []
        """Errors that the caller's own iterable of items raised."""

    @property
    def opened(self) -> StreamCall:
        """Itself: it has a connection."""
        return self

    def done(self) -> bool:
        """Returns whether the call has ended."""
        return has_ended(self.attempts)

    @property
    def core(self) -> _core.Stream:
        """The core's, of the last attempt."""
        return self.attempts.core

    def send(self, item: Any) -> None:
        """Wait until there is room, and send it."""
        encoded, attempts = self.encode(item), self.attempts
        try:
            # An attempt that is settled keeps no items: the core's own send() waits for room without any steps here.
            if attempts.kept is None:
                attempts.core.send(*encoded)
            elif not attempts.send_now(*encoded):
                run_attempts(attempts.send(*encoded))
        except RpcError as error:
            raise self.unsent(error) from None

    def flush(self, deadline: float | None) -> None:
        """Waits until the server's process has all items sent so far."""
        try:
            run_attempts(self.attempts.flush(deadline))
        except RpcError as error:
            raise self.unsent(error) from None

    def result(self) -> Any:
        """Wait for the reply; raises what the call failed with."""
        attempts = self.attempts
        try:
            reply = attempts.last_reply(True) or run_attempts(attempts.result())
        except BaseException as error:
            raise self.outcome(error) from None
        return self.replied(reply)

    def replied(self, reply: tuple[bytes, Any]) -> Any:
        """Ends the call with its reply, and returns the result."""
        try:
            result = self.decode_result(*reply)
        except BaseException as error:
            raise self.outcome(error) from None
        self.ended(None)
        return result

    def items(self) -> Generator[Any, None, None]:
        """Yields the items that the server sends; raises the call's error if the call failed."""
        try:
            first = run_attempts(self.attempts.first_items(1))
            # Settled now: this is the last attempt, and `core` isn't replaced any more.
            core, plan = self.attempts.core, self.decode_plan
            values = None if plan is None else partial(core.receive_values, plan)
            yield from received(core.receive, self.decode, first=first, receive_values=values)
        except BaseException as error:  # GeneratorExit: whoever iterated let go of it
            raise self.outcome(error) from None
        self.result()

    def send_all(self, items: Iterable[Any]) -> None:
        """Send them, to the last or until the server has ended the call without waiting for that."""
        _send_all(self.attempts, self.encode, self.encode_plan, items, [])

    def feed(self, items: Iterable[Any]) -> None:
        """``send_all`` in a thread of its own; what ``items`` raise ends the call."""
        # The thread may wait for an item long after the stream was dropped: it doesn't keep it.
        attempts, encode, plan, failures = self.attempts, self.encode, self.encode_plan, self.failures

        def run() -> None:
            with suppress(BaseException):
                _send_all(attempts, encode, plan, items, failures)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), name="rrpc-feeder", daemon=True).start()

    def cancel(self) -> bool:
        """End the call; False if it has ended."""
        if not self.attempts.cancel():
            return False
        self.ended(Cancelled(f"{self.name}(): the stream was cancelled"))
        return True

    def let_go(self) -> None:
        """Nobody takes more of it: it ends, or has ended in its own way."""
        # At the interpreter's end a stream may outlive this module's names, without the GIL even one that the main
        # module holds. Its connection ends with the process, and nobody is told.
        if RpcError is None:
            return
        if self.cancel() or self.on_end is None:
            return
        failed: BaseException | None = None
        try:
            # The call has ended, so this doesn't wait.
            self.core.result(0)
        except RpcError as error:
            failed = self._typed(self.attempts.outcome(error))
        self.ended(failed)

    def unsent(self, error: RpcError) -> BaseException:
        """Returns the exception to raise when an item couldn't be sent.

        If the call has ended, this also reports its end to ``on_end``.
        """
        error = self.attempts.outcome(error)
        if self.core.done():
            self.let_go()
        return self._typed(error)

    def outcome(self, error: BaseException) -> BaseException:
        """End the call for this; gives what is to be raised."""
        # The caller has left its loop, which is no failure.
        if isinstance(error, GeneratorExit):
            self.let_go()
            return error
        self.attempts.close()
        if self.failures:
            error = self.failures[0]
        elif isinstance(error, RpcError):
            error = self._typed(error)
        self.ended(error)
        return error

    def _typed(self, error: RpcError) -> BaseException:
        return error if self.typed is None else self.typed(error)

    def ended(self, error: BaseException | None) -> None:
        # Swapped first: a callback that lets go of the call comes here again and finds nothing to do.
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(error)

    def __del__(self) -> None:
        self.let_go()


def _send_all(
    attempts: Attempts,
    encode: Callable[[Any], tuple[bytes, Any]],
    plan: CompiledPlan | None,
    items: Iterable[Any],
    failures: list[BaseException],
) -> None:
    source = iter(items)
    try:
        # Item by item while the attempt may still be replaced: each item is kept for the next attempt.
        while attempts.kept is not None:
            for item in source:
                encoded = encode(item)
                if not attempts.send_now(*encoded):
                    run_attempts(attempts.send(*encoded))
                break
            else:
                attempts.finish()
                return
        # From here on the attempt is the last one, so the core may send all that is left by itself.
        core = attempts.core
        for item in source if plan is None else _left_over(core, plan, source):
            core.send(*encode(item))
        attempts.finish()
    except BaseException as error:
        core = attempts.core
        if isinstance(error, RpcError) and (core.done() or core.answered()):
            return  # the call's own outcome says it
        failures.append(error)  # before whoever waits for items hears of it
        attempts.close()
        raise
    finally:
        if isinstance(source, GeneratorType):  # not a file, which whoever opened it may go on with
            source.close()


def _left_over(core: _core.Stream, plan: CompiledPlan, source: Iterator[Any]) -> Iterator[Any]:
    """Sends the items of ``source`` by the plan, and yields those that it leaves to Python."""
    while (left := core.send_each(source, plan)) is not None:
        yield left[0]
