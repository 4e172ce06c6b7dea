"""Steps of a course, which drivers carry out: what is to be waited for, or exchanged with the server."""

# A step belongs to one course. The thread or task that carries the course out is the only one that uses it; other
# threads reach no further than the core's call, by `cancel`.

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rrpc.errors import RpcError

if TYPE_CHECKING:
    from rrpc import _core
    from rrpc._channel import Connection


class Sleep:
    """Yielded by an interceptor to wait for so many seconds, in whatever way the call's style waits.

    It ends early, with the call's own error raised at the ``yield``, where the call's deadline passes or it is
    cancelled.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        # Negated, so that NaN is refused too: every comparison with it is False.
        if not seconds >= 0:
            raise ValueError(f"Sleep takes a number of seconds from 0 up, not {seconds!r}")
        # Events refuse to wait for longer.
        self.seconds = min(float(seconds), threading.TIMEOUT_MAX)

    def __repr__(self) -> str:
        return f"Sleep({self.seconds:g})"


class Waiting:
    """A step of a course: wait for this ``concurrent.futures.Future``.

    If the call's time is up before, cancel it and go on with the error that ``late()`` gives. ``drive(timeout)``,
    where there is one, gets a thread that waits there sooner.
    """

    __slots__ = ("drive", "future", "late")

    def __init__(
        self,
        future: Any,
        late: Callable[[], RpcError],
        drive: Callable[[float | None], object] | None = None,
    ) -> None:
        self.future = future
        self.late = late
        self.drive = drive


class Exchange:
    """A step of a course: one request over one connection. It gives (payload, blocks, metadata)."""

    __slots__ = ("arguments", "connection", "handle")

    def __init__(self, connection: Connection, arguments: tuple[Any, ...]) -> None:
        self.connection = connection
        self.arguments = arguments
        """Arguments of the core's ``start``."""
        self.handle: _core.Call | None = None
        """The core's call. Drivers set it."""

    def start(self) -> _core.Call:
        self.handle = self.connection.core.start(*self.arguments)
        return self.handle
