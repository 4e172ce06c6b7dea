"""Calls with streams, as their caller has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from rrpc._call.peer_names import peer_name
from rrpc.metadata import Metadata, unpack

from .blocking_guard import refuse_blocking
from .stream_call import Opened

__all__ = ["DuplexStream", "RequestStream", "ResponseStream"]

_OTHER_STYLE = "this stream is a blocking client's: use `for` and `with`, or the asyncio client"
_ASYNC = "what the asyncio client's stream gives"
_S = TypeVar("_S")
_R = TypeVar("_R")
_T = TypeVar("_T")
_C = TypeVar("_C", bound="_Stream")


class _Stream:
    """Base of the client's streams.

    Leaving the ``with`` statement of a stream, or dropping the stream, cancels a call that hasn't ended.
    """

    def __init__(self, call: Opened) -> None:
        self._call = call
        self._closed = False

    def cancel(self) -> bool:
        """End the call now; False if it has ended. Whoever waits for it gets Cancelled."""
        return self._call.cancel()

    def close(self) -> None:
        """Let go of the call: cancelled if it hasn't ended, and not to be used any more."""
        self._closed = True
        self._call.let_go()

    def done(self) -> bool:
        """Whether the call has ended, in whatever way; items may still wait to be taken."""
        return self._call.attempts.done()

    def peer_finished(self) -> bool:
        """Returns whether the server has sent its last item; some may be left to take."""
        return self._call.core.peer_finished() or self.done()

    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` once the call has ended, on a thread of rrpc's own or one that waits for a call.

        ``callback`` must not wait. It is called at once if the call has ended.
        """
        self._call.attempts.on_end(callback)

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Waits until the call has ended, at most ``timeout`` seconds. Returns whether it has.

        A server ends a call when its handler returns, which may wait for room for more items: take them meanwhile.
        """
        refuse_blocking("wait_closed()", _ASYNC, 1)
        ended = threading.Event()
        self.on_end(ended.set)
        return ended.wait(timeout)

    @property
    def local_address(self) -> str:
        """This end of the connection: ``host:port``, or ``pid 4711 uid 1000 (train.py)`` over shared memory."""
        return peer_name(self._call.core.addresses()[0])

    @property
    def peer_address(self) -> str:
        """The server's end of the connection, in the same form."""
        return peer_name(self._call.core.addresses()[1])

    def initial_metadata(self) -> Metadata:
        """Returns the metadata that the server sent before its items; empty if it has sent none so far."""
        return unpack(self._call.core.initial_metadata() or b"")

    def metadata(self) -> Metadata:
        """Returns the metadata that the server sent at the end of the call; empty until then."""
        return unpack(self._call.core.metadata())

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

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._call.core.done() else "open"
        return f"<rrpc.{type(self).__name__} of {self._call.name}, {state}>"

    def _misuse(self, what: str) -> RuntimeError:
        return RuntimeError(f"{self._call.name}(): {what}; call the method again for another stream")


class _Receiving(_Stream, Generic[_T]):
    """The items that come, once: an iterator that goes on where the last loop was left."""

    def __init__(self, call: Opened) -> None:
        super().__init__(call)
        self._items = cast("GeneratorType[_T, None, None]", call.items())

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

    def __init__(self, call: Opened) -> None:
        super().__init__(call)
        self._finished = False

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
        self._call.flush(timeout)

    def _finish(self) -> None:
        if self._closed:
            raise self._misuse("finish() after close()")
        if self._finished:
            raise self._misuse("finish() for the second time")
        self._finished = True
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
        """There are no more items: wait for the result."""
        refuse_blocking("finish()", _ASYNC, 1)
        self._finish()
        result: _R = self._call.result()
        return result


class DuplexStream(_Sending[_S], _Receiving[_T], Generic[_S, _T]):
    """Sends items and gives those that the server sends, each in their own time; two threads may share that."""

    def finish(self) -> None:
        """There are no more items to send; those of the server go on."""
        self._finish()
