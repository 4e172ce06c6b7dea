"""A server that calls another like itself, as far as there is one; served by rrpc-serve."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import rrpc

_began: dict[str, threading.Event] = {}
_ended: dict[str, threading.Event] = {}
_outcomes: dict[str, Any] = {}


def _event(events: dict[str, threading.Event], name: str) -> threading.Event:
    return events.setdefault(name, threading.Event())


@contextlib.contextmanager
def _noted(name: str) -> Iterator[None]:
    """That a `hold` of this name has begun, and how it ended."""
    _event(_began, name).set()
    try:
        yield
        _outcomes[name] = "returned"
    except BaseException as error:
        _outcomes[name] = type(error).__name__
        raise
    finally:
        _event(_ended, name).set()


@rrpc.service
class Hop:
    """One of several in a row."""

    def __init__(self, after: str = "") -> None:
        self.after = rrpc.connect(after, timeout=100.0) if after else None
        self.after_later = rrpc.aio.connect(after, timeout=100.0) if after else None

    @rrpc.method
    def times_left(self, own: float | None = None, detached: bool = False) -> list[float | None]:
        """What each hop has left, this one first; ``own`` is the timeout of the calls on the way."""
        left = [rrpc.context().time_left()]
        if self.after is not None:
            with rrpc.detached() if detached else contextlib.nullcontext():
                left += self.after.call("Hop.times_left", own, timeout=own)
        return left

    @rrpc.method
    def hold(self, name: str, how: str = "call") -> None:
        """Lasts until it is cancelled, in the last one."""
        with _noted(name):
            self._hold(name, how)

    def _hold(self, name: str, how: str) -> None:
        if self.after is None:
            if not rrpc.context().wait_cancelled(60):
                raise rrpc.Internal("nobody cancelled it")
        elif how == "call":
            self.after.call("Hop.hold", name, how)
        elif how == "futures":
            futures = [self.after.start("Hop.hold", f"{name} {i}" if i else name, how) for i in range(2)]
            for future in futures:
                future.result()
        else:
            with rrpc.detached():
                self.after.call("Hop.hold", name, how)

    @rrpc.method
    def times_given(self, own: float | None = None, detached: bool = False) -> Iterator[float | None]:
        """As times_left, one by one."""
        yield rrpc.context().time_left()
        if self.after is not None:
            with rrpc.detached() if detached else contextlib.nullcontext():
                stream = rrpc.open_stream(self.after, "Hop.times_given", own, timeout=own)
            yield from stream

    @rrpc.method
    async def times_given_later(
        self, own: float | None = None, detached: bool = False
    ) -> AsyncIterator[float | None]:
        yield rrpc.context().time_left()
        if self.after_later is not None:
            with rrpc.detached() if detached else contextlib.nullcontext():
                stream = rrpc.aio.open_stream(self.after_later, "Hop.times_given_later", own, timeout=own)
            async for left in stream:
                yield left

    @rrpc.method
    def hold_given(self, name: str) -> Iterator[int]:
        """One item, of the last one, which then waits for the cancellation."""
        with _noted(name):
            if self.after is not None:
                yield from rrpc.open_stream(self.after, "Hop.hold_given", name)
                return
            yield 0
            if not rrpc.context().wait_cancelled(60):
                raise rrpc.Internal("nobody cancelled it")

    @rrpc.method
    async def hold_given_later(self, name: str) -> AsyncIterator[int]:
        with _noted(name):
            if self.after_later is None:
                yield 0
                await asyncio.sleep(60)
                raise rrpc.Internal("nobody cancelled it")
            async for value in rrpc.aio.open_stream(self.after_later, "Hop.hold_given_later", name):
                yield value

    @rrpc.method
    def hold_taken(self, names: Iterator[str]) -> int:
        """The first item is its name; all go on to the next."""
        name = next(names)
        with _noted(name):
            if self.after is None:
                return len(list(names))
            with rrpc.open_stream(self.after, "Hop.hold_taken", sends=True, receives=False) as stream:
                stream.send(name)
                for more in names:
                    stream.send(more)
                count: int = stream.finish()
                return count

    @rrpc.method
    async def hold_taken_later(self, names: AsyncIterator[str]) -> int:
        name = await anext(names)
        with _noted(name):
            if self.after_later is None:
                return len([more async for more in names])
            async with rrpc.aio.open_stream(
                self.after_later, "Hop.hold_taken_later", sends=True, receives=False
            ) as stream:
                await stream.send(name)
                async for more in names:
                    await stream.send(more)
                count: int = await stream.finish()
                return count

    @rrpc.method
    def began(self, name: str) -> bool:
        return _event(_began, name).wait(30)

    @rrpc.method
    def outcome(self, name: str) -> str:
        """Of a `hold`, once it has ended; nothing if it hasn't for long."""
        return _outcomes[name] if _event(_ended, name).wait(30) else ""

    @rrpc.method
    def has_ended(self, name: str) -> bool:
        return _event(_ended, name).is_set()

    @rrpc.method
    def counts(self) -> dict[str, int]:
        return rrpc.stats()
