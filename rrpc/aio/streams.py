"""Calls with streams, as coroutines have them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import suppress
from time import monotonic
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rrpc._core import Awaited
from rrpc.errors import RpcError
from rrpc.metadata import EMPTY, Metadata, MetadataLike, unpack
from rrpc.outgoing_streams import UntypedStream, begun_course, kind_of
from rrpc.service import RECEIVES, SENDS
from rrpc.streams import Opened

from .driving import going
from .loop import running_driver
from .receiving import changed, received
from .turns import others_turn, turn_end

if TYPE_CHECKING:
    from rrpc import _core
    from rrpc.outgoing_streams import OutgoingStream
    from rrpc.streams import Attempts

    from .client import Client

__all__ = ["Begun", "DuplexStream", "RequestStream", "ResponseStream", "open_stream"]

_OTHER_STYLE = "this stream is an asyncio client's: use `async for` and `async with`, or the blocking client"
_S = TypeVar("_S")
_R = TypeVar("_R")
_T = TypeVar("_T")
_C = TypeVar("_C", bound="_Stream")

Items = AsyncIterable[Any] | Iterable[Any]
_feeders: set[asyncio.Task[None]] = set()  # which a loop doesn't keep


class Begun:
    """A call that is sent at once where there is a connection, else by a task."""

    def __init__(self, call: OutgoingStream) -> None:
        running_driver()
        self.call = call
        self._opened: Opened | None = None
        self._opening: asyncio.Task[Opened] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._feeds_no_more = False
        self._given_up = False  # before it was open
        self._failures: list[BaseException] = []
        try:
            asked = call.chain.step()
            if call.chain.done:
                self._opened = self._found(asked)
        except BaseException as error:
            call.failed(error)
            raise
        if self._opened is None:
            self._opening = asyncio.ensure_future(self._open(asked))
            self._opening.add_done_callback(_look_at)

    async def _open(self, asked: Any) -> Opened:
        try:
            return self._found(await going(self.call.chain, self.call, asked))
        except BaseException as error:
            self.call.failed(error)
            raise

    def _found(self, found: Any) -> Opened:
        opened = self.call.opened(found)
        opened.failures = self._failures
        return opened

    @property
    def name(self) -> str:
        return self.call.method

    @property
    def opened(self) -> Opened | None:
        """What there is already."""
        if self._opening is not None and self._opening.done() and not self._opening.cancelled():
            self._opened = None if self._opening.exception() else self._opening.result()
        return self._opened

    async def get(self) -> Opened:
        """Once the request is sent; raises why it wasn't."""
        if self._opened is None:
            assert self._opening is not None
            self._opened = await asyncio.shield(self._opening)
        return self._opened

    def cancel(self) -> bool:
        ended = self._cancel()
        self._stop_feeding()
        return ended

    def _cancel(self, error: BaseException | None = None) -> bool:
        """``error``: why."""
        opened = self.opened
        if opened is not None:
            return opened.cancel()
        if self._opening is None or self._opening.done() or self._given_up:
            return False
        self._given_up = True
        if isinstance(error, asyncio.CancelledError):  # which interceptors see then, too
            return self._opening.cancel()
        self.call.cancel()
        return True

    def let_go(self) -> None:
        """Nobody takes more of it: it ends, or has ended in its own way. From any thread."""
        opened = self.opened
        if opened is None:
            self._cancel()
        else:
            opened.let_go()
        self._stop_feeding()

    def done(self) -> bool:
        opened = self.opened
        if opened is not None:
            return self._done(opened.attempts)
        return self._opening is None or self._opening.done()

    def _done(self, attempts: Attempts) -> bool:
        core = attempts.core
        if not core.done():
            return False
        if attempts.under_way:
            return False
        if asyncio._get_running_loop() is None or not attempts.goes_on():
            return True
        self._again(attempts, core, RpcError())
        return False

    async def items(self, held: object) -> AsyncGenerator[Any, None]:
        """What the server sends, then how the call ended; ``held`` is kept until then."""
        try:
            opened = await self.get()
            first = await self._first_items(opened.attempts)
            async for item in received(opened.core, opened.decode, first):
                yield item
        except BaseException as error:
            raise self._outcome(error) from None
        finally:
            self._stop_feeding()
        await self.result()

    async def result(self) -> Any:
        """Wait for the reply; raises what the call failed with."""
        try:
            opened = await self.get()
            while not await self._ended(opened.attempts):
                pass
        except BaseException as error:
            raise self._outcome(error) from None
        return opened.result()

    async def _first_items(self, attempts: Attempts) -> list[Any]:
        """What the server sends first; there may be no such items."""
        while True:
            core = attempts.core
            try:
                batch = core.try_receive(1)
            except RpcError as error:
                await self._go_on(attempts, core, error)
                continue
            if batch is None:
                await changed(core, Awaited.ITEMS)
            elif attempts.settle(core):
                return batch

    async def _ended(self, attempts: Attempts) -> bool:
        """Wait for the attempt to end; False: there is another."""
        core = attempts.core
        while not core.done():
            await changed(core, Awaited.END)
        if attempts.kept is not None:
            try:
                core.result()
            except RpcError as error:
                await self._go_on(attempts, core, error)
        return attempts.core is core

    async def _go_on(self, attempts: Attempts, core: _core.Stream, error: RpcError) -> None:
        """As :meth:`rrpc.streams.Attempts.go_on`."""
        if attempts.core is core:
            await asyncio.shield(self._again(attempts, core, error))

    def _again(self, attempts: Attempts, core: _core.Stream, error: RpcError) -> asyncio.Task[None]:
        """Another attempt, begun if that isn't so yet."""
        if self._moving is None:
            cause = attempts.cause(core, error)
            attempts.under_way = True
            self._moving = asyncio.ensure_future(self._move(attempts, cause))
            self._moving.add_done_callback(_look_at)
        return self._moving

    async def _move(self, attempts: Attempts, cause: RpcError) -> None:
        try:
            chain = self.call.again(attempts, cause)
            await going(chain, self.call, chain.step())
        except RpcError as error:
            attempts.fail(error, cause)
            raise
        finally:
            attempts.under_way = False
            self._moving = None

    def _outcome(self, error: BaseException) -> BaseException:
        """End the call for this; gives what is to be raised."""
        opened = self.opened
        if opened is not None:
            return opened.outcome(error)
        self._cancel(error)
        return self._failures[0] if self._failures and isinstance(error, Exception) else error

    async def send(self, item: Any) -> None:
        """Wait until there is room, and send it."""
        try:
            await self._send(item)
        except RpcError as error:
            opened = self.opened
            raise (error if opened is None else opened.unsent(error)) from None

    async def _send(self, item: Any) -> None:
        opened = await self.get()
        payload, buffers = opened.encode(item)
        attempts = opened.attempts
        if attempts.kept is not None:
            await self._send_kept(attempts, payload, buffers)
            return
        while not attempts.core.try_send(payload, buffers):
            await changed(attempts.core, Awaited.ROOM)

    async def _send_kept(self, attempts: Attempts, payload: bytes, buffers: Any) -> None:
        waited_for = None
        while True:
            core = attempts.core
            try:
                if attempts.try_send(payload, buffers):
                    break
                await changed(core, Awaited.ROOM)
                waited_for = core
            except RpcError as error:
                await self._go_on(attempts, core, error)
        if waited_for is not None:
            attempts.settle(waited_for)

    async def finish(self) -> None:
        """There are no more items to send."""
        (await self.get()).attempts.finish()

    async def send_all(self, items: Items) -> None:
        """To the last, or until the server has ended the call without waiting for that."""
        try:
            await self._send_each(items)
            await self.finish()
        except BaseException as error:
            if self._feeds_no_more:
                raise
            opened = self.opened
            if opened is not None and isinstance(error, RpcError) and opened.core.done():
                return  # the call's own outcome says it
            self._failures.append(error)
            self._cancel(error)
            raise
        finally:
            if isinstance(items, AsyncGeneratorType):
                await items.aclose()
            elif isinstance(items, GeneratorType):
                items.close()

    async def _send_each(self, items: Items) -> None:
        end = turn_end()
        if isinstance(items, AsyncIterable):
            async for item in items:
                await self._send(item)
                if monotonic() > end:
                    end = await others_turn()
        else:
            for item in items:
                await self._send(item)
                if monotonic() > end:
                    end = await others_turn()

    def feed(self, items: Items) -> None:
        """:meth:`send_all` in a task of its own; what ``items`` raise ends the call."""
        self._feeder = asyncio.ensure_future(self._feed(items))
        _feeders.add(self._feeder)
        self._feeder.add_done_callback(_feeders.discard)

    def _stop_feeding(self) -> None:
        feeder, self._feeder = self._feeder, None
        if feeder is None or feeder.done():
            return
        self._feeds_no_more = True
        with suppress(RuntimeError):  # its loop is closed
            feeder.get_loop().call_soon_threadsafe(feeder.cancel)

    async def _feed(self, items: Items) -> None:
        with suppress(Exception):  # whoever waits for the answers hears of it
            await self.send_all(items)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Nobody may be waiting for it any more."""
    if not task.cancelled():
        task.exception()


class _Held:
    """Whoever has it wants the call: its stream, and whoever iterates. Tasks that open the call or feed it don't."""

    __slots__ = ("_call",)

    def __init__(self, call: Begun) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call.let_go()


class _Stream:
    """What all of them have. Leaving its ``async with`` statement cancels a call that hasn't ended."""

    def __init__(self, call: Begun) -> None:
        self._call = call
        self._held = _Held(call)
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
        return self._call.done()

    def initial_metadata(self) -> Metadata:
        """What the server sent ahead of its items; empty where it has sent none, or not yet."""
        opened = self._call.opened
        return EMPTY if opened is None else unpack(opened.core.initial_metadata() or b"")

    def metadata(self) -> Metadata:
        """What the server sent with the call's end; empty until then."""
        opened = self._call.opened
        return EMPTY if opened is None else unpack(opened.core.metadata())

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

    def __repr__(self) -> str:
        opened = self._call.opened
        ended = opened is not None and opened.core.done()
        state = "closed" if self._closed else "ended" if ended else "open"
        return f"<rrpc.aio.{type(self).__name__} of {self._call.name}, {state}>"

    def _misuse(self, what: str) -> RuntimeError:
        return RuntimeError(f"{self._call.name}(): {what}; call the method again for another stream")


class _Receiving(_Stream, Generic[_T]):
    """The items that come, once: an async iterator that goes on where the last loop was left."""

    def __init__(self, call: Begun) -> None:
        super().__init__(call)
        self._items: Any = call.items(self._held)

    def __aiter__(self) -> AsyncIterator[_T]:
        if self._closed:
            raise self._misuse("the stream is closed")
        if self._items.ag_frame is None:
            raise self._misuse("the stream has ended, its items are given once")
        items: AsyncIterator[_T] = self._items
        return items

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

    def __init__(self, call: Begun) -> None:
        super().__init__(call)
        self._finished = False

    async def send(self, item: _S) -> None:
        """Send an item, waiting while the server is too far behind. Raises the call's error once it has failed."""
        if self._closed or self._finished:
            raise self._misuse("send() after " + ("close()" if self._closed else "finish()"))
        await self._call.send(item)

    async def _finish(self) -> None:
        if self._closed:
            raise self._misuse("finish() after close()")
        if self._finished:
            raise self._misuse("finish() for the second time")
        self._finished = True
        await self._call.finish()


class ResponseStream(_Receiving[_T]):
    """The items that a server sends in answer to a call: an async iterator."""

    gives_items = True


class RequestStream(_Sending[_S], Generic[_S, _R]):
    """Sends items one by one, and gives the server's one result::

    async with client.add.open() as rows:
        await rows.send(row)
        count = await rows.finish()
    """

    async def finish(self) -> _R:
        """There are no more items: wait for the result."""
        await self._finish()
        result: _R = await self._call.result()
        return result


class DuplexStream(_Sending[_S], _Receiving[_T], Generic[_S, _T]):
    """Sends items and gives those that the server sends, each in their own time; two tasks may share that."""

    async def finish(self) -> None:
        """There are no more items to send; those of the server go on."""
        await self._finish()


_OBJECTS: dict[int, Callable[[Begun], Any]] = {
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
    """As :func:`rrpc.open_stream`, for coroutines."""
    if not hasattr(type(client), "__await__"):
        raise TypeError(
            f"rrpc.aio.open_stream() takes an rrpc.aio.Client, not {type(client).__name__}; "
            "rrpc.open_stream() is for blocking clients"
        )
    kind = kind_of(sends, receives)
    request = UntypedStream(method, kind, args, kwargs)
    return _OBJECTS[kind](Begun(begun_course(client._channel, request, client._options, timeout, metadata)))
