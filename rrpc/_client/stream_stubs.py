"""Streaming methods of generated clients; ``rrpc/_client/stubs.py`` has the methods without streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rrpc._call.stream_attempts import Attempts
from rrpc.errors import InvalidArgument
from rrpc.metadata import MetadataLike

from .blocking_guard import refuse_blocking
from .outgoing_stream import begin, opened_by
from .stream_call import StreamCall
from .streams import DuplexStream, RequestStream, ResponseStream
from .stubs import RemoteMethod

if TYPE_CHECKING:
    from rrpc._channel import Connection

_S = TypeVar("_S")
_R = TypeVar("_R")
_T = TypeVar("_T")


class StreamMethod(RemoteMethod):
    """Base of the three kinds of streaming methods."""

    def _begin(
        self,
        arguments: tuple[Any, ...],
        timeout: float | None,
        metadata: MetadataLike | None,
        depth: int = 3,
    ) -> StreamCall:
        refuse_blocking(f"{self.rpc_name}()", "the method of the asyncio client", depth)
        return begin(self._channel, StubRequest(self, arguments), self._options, timeout, metadata)

    def _checked(self, items: Any) -> Any:
        if isinstance(items, Iterable):
            return items
        raise InvalidArgument(f"{self.rpc_name}() takes an iterable of items, not {type(items).__name__}")


class StubRequest:
    """A call of such a method."""

    out = None

    def __init__(self, stub: StreamMethod, arguments: tuple[Any, ...]) -> None:
        self._stub = stub
        self._arguments = arguments
        self._sizes: Any = None
        self.method = stub.rpc_name
        self.idempotent = stub.rpc_idempotent

    def named(self) -> Mapping[str | int, Any]:
        return dict(zip(self._stub._plan.names, self._arguments, strict=True))

    def open(self, connection: Connection, timeout: float | None, metadata: MetadataLike) -> Any:
        _, encode, name = self._stub.bound(connection)
        plan = self._stub._plan
        payload, message = encode(self._arguments)
        self._sizes = message.sizes
        return connection.core.open(name, payload, message or None, timeout, metadata, plan.kind)

    def opened(self, attempts: Attempts) -> StreamCall:
        return opened_by(self._stub._plan, attempts, self._sizes)


class ResponseStreamMethod(StreamMethod, Generic[_T]):
    """The base of methods that give a stream."""

    def _open(
        self, arguments: tuple[Any, ...], timeout: float | None, metadata: MetadataLike | None = None
    ) -> ResponseStream[_T]:
        return ResponseStream(self._begin(arguments, timeout, metadata))


class RequestStreamMethod(StreamMethod, Generic[_S, _R]):
    """The base of methods that take a stream and give one result."""

    def open(
        self, *, timeout: float | None = None, metadata: MetadataLike | None = None
    ) -> RequestStream[_S, _R]:
        """Begins the same call, and returns an object that sends the items one by one.

        Args:
            timeout: Seconds until the call ends with DeadlineExceeded; None: the client's own, where it has one.
            metadata: Goes with the call, beside the client's own.
        """
        return RequestStream(self._begin((), timeout, metadata, 2))

    def _send_all(
        self, items: Iterable[_S], timeout: float | None, metadata: MetadataLike | None = None
    ) -> _R:
        # Before the call begins, so that an object that is no iterable costs no call.
        source = iter(self._checked(items))
        call = self._begin((), timeout, metadata)
        call.send_all(source)
        result: _R = call.result()
        return result


class DuplexStreamMethod(StreamMethod, Generic[_S, _T]):
    """The base of methods that take a stream and give one."""

    def open(
        self, *, timeout: float | None = None, metadata: MetadataLike | None = None
    ) -> DuplexStream[_S, _T]:
        """Begins the same call, and returns an object that sends the items one by one.

        Args:
            timeout: Seconds until the call ends with DeadlineExceeded; None: the client's own, where it has one.
            metadata: Goes with the call, beside the client's own.
        """
        return DuplexStream(self._begin((), timeout, metadata, 2))

    def _exchange(
        self, items: Iterable[_S], timeout: float | None, metadata: MetadataLike | None = None
    ) -> ResponseStream[_T]:
        source = iter(self._checked(items))
        call = self._begin((), timeout, metadata)
        call.feed(source)  # a thread goes through the items beside the answers
        return ResponseStream(call)
