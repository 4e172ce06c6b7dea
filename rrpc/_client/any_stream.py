"""Base of the streams that callers have, in every style."""

# None of these methods waits, so any thread, or the loop, may call them.

from __future__ import annotations

from typing import Any

from rrpc._call.peer_names import peer_name
from rrpc.metadata import EMPTY, Metadata, unpack


class AnyStream:
    """Base of the streams of both styles: one call, which may not be open yet."""

    _call: Any
    """The style's call; its ``opened`` is None until the call has a connection."""
    _shown = "rrpc"

    def __init__(self, call: Any) -> None:
        self._call = call
        self._closed = False
        self._finished = False
        """Whether the stream sends no more."""

    def cancel(self) -> bool:
        """Ends the call now. Returns False if it has ended. Whoever waits for it gets Cancelled."""
        ended: bool = self._call.cancel()
        return ended

    def close(self) -> None:
        """Lets go of the call: cancels it if it hasn't ended. The stream can't be used any more."""
        # Set first: a thread that iterates sees it as soon as the call's end wakes it.
        self._closed = True
        self._call.let_go()

    def done(self) -> bool:
        """Returns whether the call has ended, in whatever way; items may still wait to be taken."""
        done: bool = self._call.done()
        return done

    def peer_finished(self) -> bool:
        """Returns whether the server has sent its last item; some may be left to take."""
        opened = self._call.opened
        return (opened is not None and opened.core.peer_finished()) or self.done()

    @property
    def local_address(self) -> str:
        """Address of this end: ``host:port``, or ``pid 4711 uid 1000 (train.py)`` over shared memory.

        Empty until the call has a connection.
        """
        return self._address(0)

    @property
    def peer_address(self) -> str:
        """The server's end of the connection, in the same form."""
        return self._address(1)

    def initial_metadata(self) -> Metadata:
        """Returns the metadata that the server sent before its items; empty if it has sent none so far."""
        opened = self._call.opened
        return EMPTY if opened is None else unpack(opened.core.initial_metadata() or b"")

    def metadata(self) -> Metadata:
        """Returns the metadata that the server sent at the end of the call; empty until then."""
        opened = self._call.opened
        return EMPTY if opened is None else unpack(opened.core.metadata())

    def _end_sending(self) -> None:
        """Notes that the stream sends no more. Raises RuntimeError if it doesn't already."""
        if self._closed:
            raise self._misuse("finish() after close()")
        if self._finished:
            raise self._misuse("finish() for the second time")
        self._finished = True

    def __repr__(self) -> str:
        opened = self._call.opened
        ended = opened is not None and opened.core.done()
        state = "closed" if self._closed else "ended" if ended else "open"
        return f"<{self._shown}.{type(self).__name__} of {self._call.name}, {state}>"

    def _address(self, end: int) -> str:
        opened = self._call.opened
        return "" if opened is None else peer_name(opened.core.addresses()[end])

    def _misuse(self, what: str) -> RuntimeError:
        return RuntimeError(f"{self._call.name}(): {what}; call the method again for another stream")
