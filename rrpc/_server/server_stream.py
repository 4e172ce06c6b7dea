"""The server's end of a call with streams, as an object: handlers that ask for one send and receive by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rrpc._call.peer_names import peer_name
from rrpc.errors import Cancelled, RpcError

if TYPE_CHECKING:
    from rrpc import _core
    from rrpc._call.context import Context

_S = TypeVar("_S")
_T = TypeVar("_T")


class _Call(Protocol):
    """The served call that a server stream belongs to."""

    context: Context

    @property
    def core_stream(self) -> _core.Stream: ...
    def encode(self, item: Any) -> tuple[Any, Any]: ...
    def received(self) -> Any: ...
    def finish(self) -> bool: ...
    def fail(self, error: RpcError) -> bool: ...
    def detach(self) -> None: ...
    def answered(self) -> bool: ...


class ServerEnd(Generic[_S, _T]):
    """The methods that wait for nothing, which the blocking and the asyncio stream share. Any thread may call them."""

    rpc_awaits = False
    """Whether it is for coroutines."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._core = call.core_stream

    def try_send(self, item: _T) -> bool:
        """Sends an item if the client has room for it now; returns False otherwise. Raises the call's error."""
        return self._core.try_send(*self._call.encode(item))

    def land_in(self, allocate: Callable[[int], Any]) -> None:
        """Has large buffers of the items land in the memory that ``allocate(nbytes)`` gives: writable, and as long.

        The arrays and memoryviews of an item stand in it then, and keep it. ``allocate`` is called by whoever receives;
        what it raises ends the call. Buffers of less than 16 KiB travel in the message and need no such memory.
        """
        self._core.land_in(allocate)

    def finish(self) -> bool:
        """Ends the call: the client gets all items sent, and then the end. Returns False if the call has ended."""
        return self._call.finish()

    def cancel(self, error: RpcError | None = None) -> bool:
        """Ends the call with ``error`` (default: Cancelled), which the client gets. Returns False if it has ended."""
        return self._call.fail(
            error or Cancelled(f"{self._call.context.method}(): the server gave the call up")
        )

    def detach(self) -> None:
        """Keeps the call open when the handler returns, until ``finish`` or ``cancel``, or its client ends it.

        The handler's worker serves other calls then. The server cancels a call whose detached stream nobody keeps.
        """
        self._call.detach()

    def done(self) -> bool:
        """Returns whether the call has ended, in whatever way."""
        return self._call.answered() or self._core.done()

    def peer_finished(self) -> bool:
        """Returns whether the client has sent its last item (half-close); some may be left to receive."""
        return self._core.peer_finished()

    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` once the call has ended, on a thread of rrpc's own or one that waits for a call.

        ``callback`` must not wait. It is called at once if the call has ended.
        """
        self._core.on_end(callback)

    @property
    def local_address(self) -> str:
        """Address of this end: ``host:port``, or ``pid 4711 uid 1000 (serve.py)`` over shared memory."""
        return peer_name(self._core.addresses()[0])

    @property
    def peer_address(self) -> str:
        """The client's end of the connection, in the same form."""
        return peer_name(self._core.addresses()[1])

    def __repr__(self) -> str:
        state = "ended" if self.done() else "open"
        return f"<{type(self).__module__}.{type(self).__name__} of {self._call.context.method}, {state}>"

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None and call.detached:
            call.fail(Cancelled(f"{call.context.method}(): the server dropped the stream"))


class ServerStream(ServerEnd[_S, _T]):
    """The server's end of a call: ``S`` are the client's items (None: it sends none), ``T`` the server's.

    A handler asks for it by a parameter, and gives None::

        @rrpc.method
        def subscribe(self, topic: str, stream: rrpc.ServerStream[None, Event]) -> None:
            self.subscribers[topic].append(stream)
            stream.detach()

    Clients see a method that gives an iterator of ``T`` (and takes one of ``S``). The call ends when the handler
    returns, unless it has called ``detach``.
    """

    def __init__(self, call: _Call) -> None:
        super().__init__(call)
        # One thread at a time may iterate, as this is a generator.
        self._items: Iterator[Any] = call.received()

    def send(self, item: _T, timeout: float | None = None) -> None:
        """Sends an item, and waits while the client has no room for it.

        Args:
            item: What is sent; of the type that the annotation gives.
            timeout: Most seconds to wait; None: as long as the call lasts.

        Raises:
            RpcError: The call has ended.
            TimeoutError: There was no room in that time; the item wasn't sent.
        """
        payload, buffers = self._call.encode(item)
        self._core.send(payload, buffers, timeout)

    def __iter__(self) -> Iterator[_S]:
        return self

    def __next__(self) -> _S:
        item: _S = next(self._items)
        return item

    def flush(self, timeout: float | None = None) -> None:
        """Waits until the client's process has all items sent so far: what they were made of may change then.

        Raises the call's error, or TimeoutError after ``timeout`` seconds.
        """
        self._core.wait_delivered(timeout)

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Waits until the call has ended, at most ``timeout`` seconds. Returns whether it has."""
        ended = threading.Event()
        self.on_end(ended.set)
        return ended.wait(timeout)
