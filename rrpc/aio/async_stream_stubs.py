"""Base classes of the methods with streams in generated asyncio clients."""

# Called in the thread of a running loop, to which the stream then belongs.

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rrpc._client import stream_stubs
from rrpc._client.outgoing_stream import begun_course
from rrpc.errors import InvalidArgument
from rrpc.metadata import MetadataLike

if TYPE_CHECKING:
    from .async_stream_call import AsyncStreamCall
    from .async_streams import DuplexStream, RequestStream, ResponseStream

_S = TypeVar("_S")
_R = TypeVar("_R")
_T = TypeVar("_T")


class _StreamMethod(stream_stubs.StreamMethod):
    """Base of the three kinds of methods with streams.

    The first call imports the modules that need asyncio.
    """

    def _begun(
        self, arguments: tuple[Any, ...], timeout: float | None, metadata: MetadataLike | None
    ) -> AsyncStreamCall:
        from .async_stream_call import AsyncStreamCall

        request = stream_stubs.StubRequest(self, arguments)
        return AsyncStreamCall(begun_course(self._channel, request, self._options, timeout, metadata))

    def _checked(self, items: Any) -> Any:
        if isinstance(items, (AsyncIterable, Iterable)):
            return items
        raise InvalidArgument(
            f"{self.rpc_name}() takes an iterable of items, async or not, not {type(items).__name__}"
        )


class ResponseStreamMethod(_StreamMethod, Generic[_T]):
    """The base of methods that give a stream."""

    def _open(
        self, arguments: tuple[Any, ...], timeout: float | None, metadata: MetadataLike | None = None
    ) -> ResponseStream[_T]:
        from .async_streams import ResponseStream

        return ResponseStream(self._begun(arguments, timeout, metadata))


class RequestStreamMethod(_StreamMethod, Generic[_S, _R]):
    """The base of methods that take a stream and give one result."""

    def open(
        self, *, timeout: float | None = None, metadata: MetadataLike | None = None
    ) -> RequestStream[_S, _R]:
        """Begins the same call, and returns an object that sends the items one by one.

        Args:
            timeout: Seconds until the call ends with DeadlineExceeded; None: the client's own, where it has one.
            metadata: Goes with the call, beside the client's own.
        """
        from .async_streams import RequestStream

        return RequestStream(self._begun((), timeout, metadata))

    async def _send_all(
        self,
        items: AsyncIterable[_S] | Iterable[_S],
        timeout: float | None,
        metadata: MetadataLike | None = None,
    ) -> _R:
        self._checked(items)
        call = self._begun((), timeout, metadata)
        await call.send_all(items)
        result: _R = await call.result()
        return result


class DuplexStreamMethod(_StreamMethod, Generic[_S, _T]):
    """The base of methods that take a stream and give one."""

    def open(
        self, *, timeout: float | None = None, metadata: MetadataLike | None = None
    ) -> DuplexStream[_S, _T]:
        """Begins the same call, and returns an object that sends the items one by one.

        Args:
            timeout: Seconds until the call ends with DeadlineExceeded; None: the client's own, where it has one.
            metadata: Goes with the call, beside the client's own.
        """
        from .async_streams import DuplexStream

        return DuplexStream(self._begun((), timeout, metadata))

    def _exchange(
        self,
        items: AsyncIterable[_S] | Iterable[_S],
        timeout: float | None,
        metadata: MetadataLike | None = None,
    ) -> ResponseStream[_T]:
        from .async_streams import ResponseStream

        self._checked(items)
        call = self._begun((), timeout, metadata)
        call.feed(items)  # a task goes through the items beside the answers
        return ResponseStream(call)
