"""A call with streams that is under way in a loop, beneath the objects that its caller has."""

# All of this runs in the thread of the call's loop, but for `let_go`: a finalizer may call it on any thread.

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import suppress
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any

from rrpc._call.stream_attempts import Another
from rrpc._client.stream_call import StreamCall
from rrpc._core import Awaited
from rrpc.errors import RpcError

from .asyncio_driver import carry_out, look_at, make_another, run_attempts
from .fairness import send_in_turns
from .loop_driver import running_driver
from .stream_waits import changed, received

if TYPE_CHECKING:
    from rrpc._client.outgoing_stream import OutgoingStream

Items = AsyncIterable[Any] | Iterable[Any]
_feeders: set[asyncio.Task[None]] = set()  # which a loop doesn't keep
_watchers: set[asyncio.Task[None]] = set()


class AsyncStreamCall:
    """A call that is sent at once where there is a connection, else by a task."""

    def __init__(self, call: OutgoingStream) -> None:
        running_driver()
        self.call = call
        self._opened: StreamCall | None = None
        self._opening: asyncio.Task[StreamCall] | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._feeds_no_more = False
        self._given_up = False  # before it was open
        self._failures: list[BaseException] = []
        self._allocate: Callable[[int], Any] | None = None
        try:
            asked = call.chain.step()
            if call.chain.done:
                self._opened = self._found(asked)
        except BaseException as error:
            call.failed(error)
            raise
        if self._opened is None:
            self._opening = asyncio.ensure_future(self._open(asked))
            self._opening.add_done_callback(look_at)

    async def _open(self, asked: Any) -> StreamCall:
        try:
            return self._found(await carry_out(self.call.chain, asked))
        except BaseException as error:
            self.call.failed(error)
            raise

    def _found(self, found: Any) -> StreamCall:
        opened = self.call.opened(found)
        opened.failures = self._failures
        if self._allocate is not None:
            opened.attempts.land_in(self._allocate)
        return opened

    def land_in(self, allocate: Callable[[int], Any]) -> None:
        """Has large buffers of the items land in the memory that ``allocate(nbytes)`` gives."""
        self._allocate = allocate  # of a call that isn't open yet
        if (opened := self.opened) is not None:
            opened.attempts.land_in(allocate)

    @property
    def name(self) -> str:
        """Returns the method's full name."""
        return self.call.method

    @property
    def opened(self) -> StreamCall | None:
        """Returns the opened call, or None if it isn't open yet or opening it failed."""
        if self._opening is not None and self._opening.done() and not self._opening.cancelled():
            self._opened = None if self._opening.exception() else self._opening.result()
        return self._opened

    async def get(self) -> StreamCall:
        """Waits until the request is sent. Raises the error if it can't be."""
        if self._opened is None:
            assert self._opening is not None
            # Cancelling one of those who wait doesn't end the opening, for which others may wait too.
            self._opened = await asyncio.shield(self._opening)
        return self._opened

    def cancel(self) -> bool:
        """Cancels the call. Returns False if it had ended."""
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
        """Returns whether the call has ended."""
        opened = self.opened
        if opened is None:
            return self._opening is None or self._opening.done()
        core = opened.core
        ended = opened.attempts.ended()
        # The next attempt needs a running loop, which a thread that only looks doesn't have.
        if ended is not None or asyncio._get_running_loop() is None:
            return ended is not False
        make_another(Another(opened.attempts, core, RpcError()))
        return False

    async def items(self, held: object) -> AsyncGenerator[Any, None]:
        """Yields the server's items, then raises the call's error if it failed. Keeps ``held`` until then."""
        try:
            opened = await self.get()
            first = await run_attempts(opened.attempts.first_items(1))
            async for item in received(opened.core, opened.decode, first):
                given = [item]
                del item  # nothing here keeps its memory until the next one comes
                yield given.pop()
        except BaseException as error:
            raise self._outcome(error) from None
        finally:
            self._stop_feeding()
        await self.result()

    async def result(self) -> Any:
        """Wait for the reply; raises what the call failed with."""
        try:
            opened = await self.get()
            attempts = opened.attempts
            reply = attempts.last_reply(False) or await run_attempts(attempts.result())
        except BaseException as error:
            raise self._outcome(error) from None
        return opened.replied(reply)

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
            if not attempts.send_now(payload, buffers):
                await run_attempts(attempts.send(payload, buffers))
            return
        while not attempts.core.try_send(payload, buffers):
            await changed(attempts.core, Awaited.ROOM)

    async def finish(self) -> None:
        """Ends the items of this end."""
        (await self.get()).attempts.finish()

    async def flush(self) -> None:
        """Waits until the server's process has all items sent so far."""
        await run_attempts((await self.get()).attempts.flush(None))

    async def wait_end(self) -> None:
        """Waits until the call has ended, in whatever way."""
        with suppress(RpcError):
            await run_attempts((await self.get()).attempts.result())

    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` in the loop once the call has ended."""
        watcher = asyncio.ensure_future(self.wait_end())
        _watchers.add(watcher)
        watcher.add_done_callback(_watchers.discard)
        watcher.add_done_callback(lambda _: callback())

    async def send_all(self, items: Items) -> None:
        """Sends the items to the last, or until the server has ended the call without waiting for them."""
        try:
            await send_in_turns(items, self._send)
            await self.finish()
        except BaseException as error:
            # `_stop_feeding` has cancelled the task: the call's outcome is known, and this error isn't it.
            if self._feeds_no_more:
                raise
            opened = self.opened
            core = None if opened is None else opened.core
            if core is not None and isinstance(error, RpcError) and (core.done() or core.answered()):
                return  # the call's own outcome says it
            self._failures.append(error)
            self._cancel(error)
            raise
        finally:
            if isinstance(items, AsyncGeneratorType):
                await items.aclose()
            elif isinstance(items, GeneratorType):
                items.close()

    def feed(self, items: Items) -> None:
        """``send_all`` in a task of its own; what ``items`` raise ends the call."""
        self._feeder = asyncio.ensure_future(self._feed(items))
        _feeders.add(self._feeder)
        self._feeder.add_done_callback(_feeders.discard)

    def _stop_feeding(self) -> None:
        feeder, self._feeder = self._feeder, None
        if feeder is None or feeder.done():
            return
        # Set before the task is cancelled, which looks at it.
        self._feeds_no_more = True
        with suppress(RuntimeError):  # its loop is closed
            feeder.get_loop().call_soon_threadsafe(feeder.cancel)

    async def _feed(self, items: Items) -> None:
        with suppress(Exception):  # whoever waits for the answers hears of it
            await self.send_all(items)


class Held:
    """Keeps the call open. Deleting it ends the call with ``let_go``.

    The call's stream and its iterators hold a reference. Tasks that open the call or feed it hold none.
    """

    __slots__ = ("_call",)

    def __init__(self, call: AsyncStreamCall) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call.let_go()
