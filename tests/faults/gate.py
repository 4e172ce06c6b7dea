"""The gate that all messages between a client and a server pass, and that stops one of them for a fault."""

import threading
from collections.abc import Callable
from typing import Protocol

import raw_peer
from raw_peer import HEADER, HEADER_MAGIC

CLIENT, SERVER = "client", "server"  # who sends
HOLD_SECONDS = 60.0  # nobody holds a message longer, so that a lane that fails lets go of its threads
LAST_SECONDS = 2.0  # messages of a client that has its results may still be on their way
MESSAGES = {
    raw_peer.HELLO: "HELLO",
    raw_peer.CALL: "REQUEST",
    raw_peer.CALL_BULK: "REQUEST",
    raw_peer.REPLY: "REPLY",
    raw_peer.REPLY_BULK: "REPLY",
    raw_peer.ITEM: "ITEM",
    raw_peer.ITEM_BULK: "ITEM",
    raw_peer.DONE: "DONE",
    raw_peer.CANCEL: "CANCEL",
    raw_peer.CANCEL_ACK: "CANCEL_ACK",
    raw_peer.PING: "PING",
    raw_peer.PONG: "PONG",
    raw_peer.GO_AWAY: "GOAWAY",
    raw_peer.WINDOW: "WINDOW",
    raw_peer.GO_AWAY_ACK: "GOAWAY_ACK",
    raw_peer.CREDIT: "CREDIT",
}


def message_name(message: bytes) -> str:
    """Returns the name of a message's type, "" for bytes that are no message."""
    if len(message) < HEADER.size:
        return ""
    magic, kind, *_ = HEADER.unpack_from(message)
    return MESSAGES.get(kind, "") if magic == HEADER_MAGIC else ""


class Wire(Protocol):
    """A man in the middle of one transport: clients connect to its address, and it leads them to the target."""

    address: str
    target: str

    def cut(self, reset: bool = False) -> None:
        """End all connections."""

    def close(self) -> None:
        """Listen no more."""


class Gate:
    """Passes messages on, in the wires' threads; the lane's thread arms it and opens it again.

    ``edit`` changes the bytes of the message that was stopped when it is let go. A muted gate passes nothing, and
    the connections stay open: a network that loses everything.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted: tuple[str, str] | None = None
        self._left = 0
        self._held = False
        self._mute = False
        self._edit: Callable[[bytes], bytes] | None = None

    def arm(self, sender: str, name: str, number: int) -> None:
        """Stop the message of this name that comes as such a number from now on, counted from 1."""
        with self._changed:
            self._wanted, self._left, self._held = (sender, name), number, False

    def reached(self, timeout: float, over: Callable[[], bool]) -> bool:
        """Waits until the message is here; False if it doesn't come in time, or soon after ``over``."""
        with self._changed:
            while not self._held and timeout > 0:
                timeout = min(timeout, LAST_SECONDS) if over() else timeout
                self._changed.wait(0.02)
                timeout -= 0.02
            return self._held

    def open(self, edit: Callable[[bytes], bytes] | None = None) -> None:
        """Let everything pass, at once."""
        with self._changed:
            self._wanted, self._held, self._mute, self._edit = None, False, False, edit
            self._changed.notify_all()

    def mute(self) -> None:
        """Let nothing pass until the gate is opened."""
        with self._changed:
            self._mute = True

    def passes(self, sender: str, name: str, message: bytes) -> bytes:
        """Returns the message, changed perhaps, once it may go on. Called by the wires."""
        with self._changed:
            self._changed.wait_for(lambda: not self._mute, HOLD_SECONDS)
            if self._wanted != (sender, name):
                return message
            self._left -= 1
            if self._left > 0:
                return message
            self._wanted, self._held = None, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._held, HOLD_SECONDS)
            edit, self._edit = self._edit, None
        return message if edit is None else edit(message)
