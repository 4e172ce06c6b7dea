"""Calls with streams, as coroutines have them."""

# The methods run in the thread of the call's loop, but for a finalizer: see `Held`.

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rrpc._client.any_stream import AnyStream
from rrpc._client.outgoing_stream import UntypedStream, begun_course, kind_of
from rrpc._interface import RECEIVES, SENDS
from rrpc.metadata import MetadataLike

from .async_stream_call import AsyncStreamCall, Held

if TYPE_CHECKING:
    from .async_client import Client

_OTHER_STYLE = "this stream is an asyncio client's: use `async for` and `async with`, or the blocking client"
_S = TypeVar("_S")
_R = TypeVar("_R")
_T = TypeVar("_T")
_C = TypeVar("_C", bound="_Stream")


class _Stream(AnyStream):
    """Base of all streams. Leaving its ``async with`` statement cancels a call that hasn't ended."""

    _call: AsyncStreamCall
    _shown = "rrpc.aio"

    def __init__(self, call: AsyncStreamCall) -> None:
        super().__init__(call)
        self._held = Held(call)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` in the event loop once the call has ended."""
        self._call.on_end(callback)

    async def wait_closed(self) -> None:
        """Waits until the call has ended, in whatever way.

        A server ends a call when its handler returns, which may wait for room for more items: take them meanwhile.
        """
        await self._call.wait_end()

    async def __aenter__(self: _C) -> _C:
        return self

    if not TYPE_CHECKING:  # what checkers refuse without it

        def __iter__(self):
            raise TypeError(_OTHER_STYLE)

        def __enter__(self):
            raise TypeError(_OTHER_STYLE)

        def __exit__(self, *exc_info):
            pass

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()


class _Receiving(_Stream, Generic[_T]):
    """The items that come, once: an async iterator that goes on where the last loop was left."""

    def __init__(self, call: AsyncStreamCall) -> None:
        super().__init__(call)
        # The items keep `_held` too, so a loop over them goes on when the stream itself is dropped.
        self._items: Any = call.items(self._held)

    def __aiter__(self) -> AsyncIterator[_T]:
        if self._closed:
            raise self._misuse("the stream is closed")
        if self._items.ag_frame is None:
            raise self._misuse("the stream has ended, its items are given once")
        items: AsyncIterator[_T] = self._items
        return items

    def land_in(self, allocate: Callable[[int], Any]) -> None:
        """Has large buffers of the items land in the memory that ``allocate(nbytes)`` gives: writable, and as long.

        The arrays and memoryviews of an item stand in it then, and keep it. ``allocate`` is called by whoever receives;
        what it raises ends the call. Buffers of less than 16 KiB travel in the message and need no such memory.
        """
        self._call.land_in(allocate)

    async def __anext__(self) -> _T:
        if self._closed:
            raise self._misuse("the stream is closed")
        item: _T = await self._items.__anext__()
        return item

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()
        with suppress(RuntimeError):  # another task runs it, and now gets Cancelled
            await self._items.aclose()


class _Sending(_Stream, Generic[_S]):
    """Takes the items that are to be sent."""

    async def send(self, item: _S) -> None:
        """Send an item, waiting while the server is too far behind. Raises the call's error once it has failed."""
        if self._closed or self._finished:
            raise self._misuse("send() after " + ("close()" if self._closed else "finish()"))
        await self._call.send(item)

    async def flush(self) -> None:
        """Waits until the server's process has all items sent so far: what they were made of may change then."""
        await self._call.flush()

    async def _finish(self) -> None:
        self._end_sending()
        await self._call.finish()


class ResponseStream(_Receiving[_T]):
    """The items that a server sends in answer to a call: an async iterator."""

    gives_items = True


class RequestStream(_Sending[_S], Generic[_S, _R]):
    """Sends items one by one, and gives the server's one result.

    ::

        async with client.add.open() as rows:
            await rows.send(row)
            count = await rows.finish()
    """

    async def finish(self) -> _R:
        """Ends the items, and waits for the result."""
        await self._finish()
        result: _R = await self._call.result()
        return result


class DuplexStream(_Sending[_S], _Receiving[_T], Generic[_S, _T]):
    """Sends items and gives those that the server sends, each in their own time; two tasks may share that."""

    async def finish(self) -> None:
        """Ends the items of this end; the server's go on."""
        await self._finish()


_OBJECTS: dict[int, Callable[[AsyncStreamCall], Any]] = {
    SENDS: RequestStream,
    RECEIVES: ResponseStream,
    SENDS | RECEIVES: DuplexStream,
}


def open_stream(
    client: Client,
    method: str,
    /,
    *args: Any,
    sends: bool = False,
    receives: bool = True,
    timeout: float | None = None,
    metadata: MetadataLike | None = None,
    **kwargs: Any,
) -> Any:
    """Calls a method with streams by name, like ``rrpc.open_stream``, but for coroutines.

    It doesn't wait: where there is no connection yet, a task begins the call once there is one. Errors of that, and
    the server's, come from the stream.

    Args:
        client: The client whose connection and options the call has.
        method: The service's and the method's name, joined by a dot.
        *args: The method's arguments, but for its stream. One with the name of an option is given so, by its place.
        sends: Whether the method takes a stream.
        receives: Whether the method gives a stream.
        timeout: Seconds that the whole call may take; None: that of the client's calls.
        metadata: Metadata that goes with the call, besides the client's.
        **kwargs: Arguments that are given by name.

    Returns:
        A ``RequestStream`` if the method only takes a stream, a ``ResponseStream`` if it only gives one, a
        ``DuplexStream`` if it does both; those of ``rrpc.aio``.

    Raises:
        TypeError: It isn't an ``rrpc.aio.Client``, the method's name isn't a str, or there is no stream either way.
        RuntimeError: No event loop runs in the calling thread.
        InvalidArgument: An argument or the metadata can't be sent, or ``timeout`` is no number of seconds from 0 up.
        Unavailable: The client is closed, or has just failed to connect.
        DeadlineExceeded: The time was up before the call was sent.
    """
    if not hasattr(type(client), "__await__"):
        raise TypeError(
            f"rrpc.aio.open_stream() takes an rrpc.aio.Client, not {type(client).__name__}; "
            "rrpc.open_stream() is for blocking clients"
        )
    kind = kind_of(sends, receives)
    request = UntypedStream(method, kind, args, kwargs)
    return _OBJECTS[kind](
        AsyncStreamCall(begun_course(client._channel, request, client._options, timeout, metadata))
    )
