"""What a handler knows of the call that it serves: :func:`context`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any

from .metadata import Metadata, MetadataLike, merged, pack, unpack

__all__ = ["Context", "context", "current", "detached", "enter"]

_current: ContextVar[Context | _Detached | None] = ContextVar("rrpc.context", default=None)
current = _current.get
"""For clients: what the calls made here inherit from, unless it's None or has ended; all that they cost elsewhere."""
enter = _current.set
"""For servers: this thread or task runs the handler of this call from now on, until the context has ended."""


class Context:
    """One call, as its handler sees it."""

    __slots__ = ("_core", "_handle", "_metadata", "_name", "deadline", "ended", "sent", "unseen")

    def __init__(self, core: Any, handle: int, name: bytes, ns_left: int, metadata: bytes) -> None:
        self._core = core
        self._handle = handle
        self._name = name
        self._metadata: bytes | Metadata = metadata
        self.deadline = None if ns_left < 0 else monotonic() + ns_left * 1e-9
        """When the caller gives up, by :func:`time.monotonic`; None: never."""
        self.ended = False
        """Whether the call is answered. The context stays where it was entered until another one is."""
        self.sent = b""
        """For servers: the reply's metadata."""
        self.unseen = False
        """For servers: whether the call failed before a handler saw it."""

    @property
    def method(self) -> str:
        """``Service.method``."""
        return self._name.decode(errors="replace")

    @property
    def peer(self) -> str:
        """Where the call comes from, as text; empty once it is answered."""
        info = self._core.call_info(self._handle)
        return "" if info is None else info[0]

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the caller gave up, or its connection is gone."""
        cancelled: bool = self._core.is_cancelled(self._handle)
        return cancelled

    @property
    def metadata(self) -> Metadata:
        """What the caller sent beside the arguments."""
        metadata = self._metadata
        if not isinstance(metadata, Metadata):
            metadata = self._metadata = unpack(metadata)
        return metadata

    def set_metadata(self, metadata: MetadataLike) -> None:
        """Have the reply, be it a result or an error, carry this too; a name that was set before gets new values."""
        self.sent = pack(merged(unpack(self.sent), metadata) if self.sent else metadata)

    def time_left(self) -> float | None:
        """Seconds until the deadline, 0 behind it; None: there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())

    def timeout_of(self, timeout: float | None) -> float | None:
        """For clients: of a call that is made by the handler, where ``timeout`` is the call's own."""
        left = self.time_left()
        return timeout if left is None or (timeout is not None and timeout <= left) else left

    def __repr__(self) -> str:
        return f"<rrpc.Context of {self.method}>"


class _Detached:
    """Stands in a context's place where nothing is inherited from it."""

    __slots__ = ("context",)
    ended = True

    def __init__(self, context: Context) -> None:
        self.context = context


def context() -> Context:
    """In a handler: the call that it serves. RuntimeError elsewhere."""
    found = _current.get()
    if isinstance(found, _Detached):
        found = found.context
    if found is None or found.ended:
        raise RuntimeError(
            "rrpc.context() is for handlers, while they run; a thread that a handler starts needs it passed on"
        )
    return found


@contextmanager
def detached() -> Iterator[None]:
    """In a ``with`` statement: calls made inherit neither deadline nor cancellation from the call that is served."""
    found = _current.get()
    token = _current.set(_Detached(found) if isinstance(found, Context) else found)
    try:
        yield
    finally:
        _current.reset(token)
