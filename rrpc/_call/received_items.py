"""Items out of a stream of the core, one by one."""

# Runs in the thread that iterates, and waits there for items.

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter_ns
from typing import Any

from rrpc.codec import Unread

_BATCH_MAX = 128
# Nanoseconds for each item above which a receiver counts as slow.
_FAST_NS = 50_000

Decode = Callable[..., Any]


class Pace:
    """Number of items to take from the core at a time.

    Taking an item makes room for the sender. A slow receiver therefore takes one item at a time, so that
    the sender is never ahead by more than the window. A fast receiver takes up to 128. Items with buffers
    are taken one by one, since a call into the core costs little compared with them.
    """

    __slots__ = ("_since_ns", "count")

    def __init__(self) -> None:
        self.count = 1
        self._since_ns = 0

    def begin(self) -> None:
        """Items have come."""
        self._since_ns = perf_counter_ns()

    def end(self, items: int, with_buffers: bool) -> None:
        """Notes that so many items have been handled, and adapts the size of the next batch."""
        fast = not with_buffers and perf_counter_ns() - self._since_ns < items * _FAST_NS
        self.count = min(2 * self.count, _BATCH_MAX) if fast else 1


def received(
    receive: Callable[..., list[Any]],
    decode: Decode,
    *,
    first: list[Any] | None = None,
    receive_values: Callable[..., tuple[list[Any], bool, bool]] | None = None,
) -> Generator[Any, None, None]:
    """Yields the decoded items of the core's ``receive``.

    Args:
        receive: Takes a number of items and a timeout, and returns up to so many (payload, buffers).
        decode: Makes an item of a payload and its buffers.
        first: A batch that was received before.
        receive_values: Used in place of ``receive`` after the first batch, where the core decodes the items: returns
            the items, whether some of them are left to ``decode`` (``Unread``), and whether some have buffers.
    """
    pace = Pace()
    batch = receive(pace.count, None) if first is None else first
    while batch:
        # From here on: the time that receive() waited for the sender doesn't count.
        pace.begin()
        items, with_buffers = len(batch), batch[-1][1] is not None
        # Reversed, since only pop() from the end takes constant time.
        batch.reverse()
        take = batch.pop  # so that nothing here keeps an item's memory
        while batch:
            yield decode(*take())
        pace.end(items, with_buffers)
        if receive_values is not None:
            break
        batch = receive(pace.count, None)
    else:
        return
    while True:  # here, since a generator of its own would cost something for each item
        batch, some_unread, with_buffers = receive_values(pace.count, None)
        if not batch:
            return
        pace.begin()
        items = len(batch)
        batch.reverse()
        take = batch.pop  # so that nothing here keeps an item's memory
        if some_unread:
            while batch:
                yield _read(take(), decode)
        else:
            while batch:
                yield take()
        pace.end(items, with_buffers)


def _read(value: Any, decode: Decode) -> Any:
    if type(value) is not Unread:
        return value
    if value.error is not None:
        raise value.error
    return decode(value.payload, value.buffers)
