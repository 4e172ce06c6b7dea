"""Calls with streams, as their caller has them."""

# The methods block, and refuse to in a coroutine. One thread at a time may send, and one may receive; `close` and
# `cancel` are for any thread.

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from rrpc._options import deadline_after

from .any_stream import AnyStream
from .blocking_driver import tell_end
from .blocking_guard import refuse_blocking
from .stream_call import StreamCall

_OTHER_STYLE = "this stream is a blocking client's: use `for` and `with`, or the asyncio client"
_ASYNC = "what the asyncio client's stream gives"
_S = TypeVar("_S")
_R = TypeVar("_R")
_T = TypeVar("_T")
_C = TypeVar("_C", bound="_Stream")


class _Guarded:
    """A generator that one thread may close while another one runs it: without the GIL, CPython doesn't see to that."""

    __slots__ = ("_generator", "_lock")

    def __init__(self, generator: Generator[Any, None, None]) -> None:
        self._generator = generator
        self._lock = threading.RLock()

    @property
    def gi_frame(self) -> Any:
        return self._generator.gi_frame  # type: ignore[attr-defined]  # the type checker's Generator hasn't it

    def __iter__(self) -> _Guarded:
        return self

    def __next__(self) -> Any:
        with self._lock:
            return next(self._generator)

    def close(self) -> None:
        # Never waits: the thread that runs the generator may be waiting for an item without end.
        if not self._lock.acquire(blocking=False):
            raise ValueError("generator already executing")
        try:
            self._generator.close()
        finally:
            self._lock.release()


def _guarded(generator: Generator[Any, None, None]) -> Any:
    # With the GIL CPython itself raises "generator already executing".
    has_gil = getattr(sys, "_is_gil_enabled", None)
    return generator if has_gil is None or has_gil() else _Guarded(generator)


class _Stream(AnyStream):
    """Base of the client's streams.

    Leaving the ``with`` statement of a stream, or dropping the stream, cancels a call that hasn't ended.
    """

    _call: StreamCall

    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` once the call has ended, on a thread of rrpc's own or one that waits for a call.

        ``callback`` must not wait. It is called at once if the call has ended.
        """
        tell_end(self._call.attempts, callback)

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Waits until the call has ended, at most ``timeout`` seconds. Returns whether it has.

        A server ends a call when its handler returns, which may wait for room for more items: take them meanwhile.
        """
        refuse_blocking("wait_closed()", _ASYNC, 1)
        ended = threading.Event()
        self.on_end(ended.set)
        return ended.wait(timeout)

    def __enter__(self: _C) -> _C:
        return self

    if not TYPE_CHECKING:  # what checkers refuse without it

        def __await__(self):
            raise TypeError(_OTHER_STYLE)

        def __aiter__(self):
            raise TypeError(_OTHER_STYLE)

        async def __aenter__(self):
            raise TypeError(_OTHER_STYLE)

        async def __aexit__(self, *exc_info):
            pass

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Receiving(_Stream, Generic[_T]):
    """The items that come, once: an iterator that goes on where the last loop was left."""

    def __init__(self, call: StreamCall) -> None:
        super().__init__(call)
        # A generator: nothing is received or decoded before the first next().
        self._items = cast("GeneratorType[_T, None, None]", _guarded(call.items()))

    def __iter__(self) -> Iterator[_T]:
        if self._closed:
            raise self._misuse("the stream is closed")
        if self._items.gi_frame is None:
            raise self._misuse("the stream has ended, its items are given once")
        refuse_blocking("the next item of a stream", _ASYNC, 1)
        return self._items

    def __next__(self) -> _T:
        if self._closed:
            raise self._misuse("the stream is closed")
        refuse_blocking("the next item of a stream", _ASYNC, 1)
        return next(self._items)

    def land_in(self, allocate: Callable[[int], Any]) -> None:
        """Has large buffers of the items land in the memory that ``allocate(nbytes)`` gives: writable, and as long.

        The arrays and memoryviews of an item stand in it then, and keep it. ``allocate`` is called by whoever receives;
        what it raises ends the call. Buffers of less than 16 KiB travel in the message and need no such memory.
        """
        self._call.attempts.land_in(allocate)

    def close(self) -> None:
        super().close()
        with suppress(ValueError):  # another thread runs it, and now gets Cancelled
            self._items.close()


class _Sending(_Stream, Generic[_S]):
    """Takes the items that are to be sent."""

    def send(self, item: _S) -> None:
        """Send an item, waiting while the server is too far behind. Raises the call's error once it has failed."""
        if self._closed or self._finished:
            raise self._misuse("send() after " + ("close()" if self._closed else "finish()"))
        refuse_blocking("send()", _ASYNC, 1)
        self._call.send(item)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until the server's process has all items sent so far: what they were made of may change then.

        Raises the call's error, or TimeoutError after ``timeout`` seconds.
        """
        refuse_blocking("flush()", _ASYNC, 1)
        self._call.flush(deadline_after(timeout))

    def _finish(self) -> None:
        self._end_sending()
        self._call.attempts.finish()


class ResponseStream(_Receiving[_T]):
    """The items that a server sends in answer to a call: an iterator."""

    gives_items = True


class RequestStream(_Sending[_S], Generic[_S, _R]):
    """Sends items one by one, and gives the server's one result.

    ::

        with client.add.open() as rows:
            rows.send(row)
            count = rows.finish()
    """

    def finish(self) -> _R:
        """Ends the items, and waits for the result."""
        refuse_blocking("finish()", _ASYNC, 1)
        self._finish()
        result: _R = self._call.result()
        return result


class DuplexStream(_Sending[_S], _Receiving[_T], Generic[_S, _T]):
    """Sends items and gives those that the server sends, each in their own time; two threads may share that."""

    def finish(self) -> None:
        """Ends the items of this end; the server's go on."""
        self._finish()
