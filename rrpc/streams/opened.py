"""A call with streams that is under way, beneath the objects that its caller has."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rrpc.errors import Cancelled, RpcError

from .receiving import received

if TYPE_CHECKING:
    from rrpc import _core

__all__ = ["Opened"]


class Opened:
    """The core's stream, and how items and the result are to be read.

    Interceptors put themselves around ``encode`` and ``decode`` and set ``on_end`` before anything is sent or received.
    """

    __slots__ = ("core", "decode", "decode_result", "encode", "failures", "name", "on_end", "typed")

    def __init__(
        self,
        core: _core.Stream,
        name: str,
        encode: Callable[[Any], tuple[bytes, Any]],
        decode: Callable[[bytes, Any], Any],
        decode_result: Callable[[bytes, Any], Any],
        typed: Callable[[RpcError], BaseException] | None = None,
    ) -> None:
        self.core = core
        self.name = name
        self.encode = encode
        self.decode = decode
        self.decode_result = decode_result
        self.typed = typed
        """Gives a declared error as its own class."""
        self.on_end: Callable[[BaseException | None], object] | None = None
        """Called once, when the outcome is known or the caller has let go of the call."""
        self.failures: list[BaseException] = []
        """What the caller's own iterable of items raised."""

    def send(self, item: Any) -> None:
        """Wait until there is room, and send it."""
        self.core.send(*self.encode(item))

    def result(self) -> Any:
        """Wait for the reply; raises what the call failed with."""
        try:
            result = self.decode_result(*self.core.result())
        except BaseException as error:
            raise self.outcome(error) from None
        self.ended(None)
        return result

    def items(self) -> Generator[Any, None, None]:
        """What the server sends, then how the call ended."""
        try:
            yield from received(self.core.receive, self.decode)
        except BaseException as error:  # GeneratorExit: whoever iterated let go of it
            raise self.outcome(error) from None
        self.result()

    def send_all(self, items: Iterable[Any]) -> None:
        """Send them, to the last or until the server has ended the call without waiting for that."""
        _send_all(self.core, self.encode, items, [])

    def feed(self, items: Iterable[Any]) -> None:
        """:meth:`send_all` in a thread of its own; what ``items`` raise ends the call."""
        # The thread may wait for an item long after the stream was dropped: it doesn't keep it.
        core, encode, failures = self.core, self.encode, self.failures

        def run() -> None:
            with suppress(BaseException):
                _send_all(core, encode, items, failures)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), name="rrpc-feeder", daemon=True).start()

    def cancel(self) -> bool:
        """End the call; False if it has ended."""
        if self.core.done():
            return False
        self.core.cancel()
        self.ended(Cancelled(f"{self.name}(): the stream was cancelled"))
        return True

    def outcome(self, error: BaseException) -> BaseException:
        """End the call for this; gives what is to be raised."""
        if isinstance(error, GeneratorExit):
            self.cancel()
            return error
        self.core.cancel()
        if self.failures:
            error = self.failures[0]
        elif self.typed is not None and isinstance(error, RpcError):
            error = self.typed(error)
        self.ended(error)
        return error

    def ended(self, error: BaseException | None) -> None:
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(error)

    def __del__(self) -> None:
        self.cancel()


def _send_all(
    core: _core.Stream,
    encode: Callable[[Any], tuple[bytes, Any]],
    items: Iterable[Any],
    failures: list[BaseException],
) -> None:
    source = iter(items)
    try:
        for item in source:
            core.send(*encode(item))
        core.finish()
    except BaseException as error:
        if isinstance(error, RpcError) and core.done():
            return  # the call's own outcome says it
        failures.append(error)  # before whoever waits for items hears of it
        core.cancel()
        raise
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()
