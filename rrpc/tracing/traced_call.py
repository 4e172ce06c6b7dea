"""Data of a traced call: its phases on one time line, and the calls that its handler made."""

# The thread or task that ends a call fills in its phases. Who looks earlier sees a call under way, without phases.

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

CLIENT, SERVER = "client", "server"
PHASES = (
    "channel",  # waits for a connection, interceptors, pauses between attempts
    "encode",
    "registration",  # arguments are made readable for the peer
    "credit wait",  # the peer has no room for one more message
    "send",  # until the request is at the server
    "remote read",  # arguments by the server, results by the client
    "queue",  # for a worker
    "GIL wait",  # from the core into Python
    "decode",
    "handler",
    "reply",  # until the reply is at the client
    "away",  # where the server doesn't say what it did
    "stream",  # the items of a stream, at the client
)
"""Every name that a phase may have. The place in here is its number on the wire."""


@dataclass(frozen=True)
class Place:
    """A thread of a process somewhere."""

    host: str
    """The boot id of its kernel: clocks of the same one can be compared."""
    pid: int
    process: str
    tid: int
    thread: str


@dataclass(frozen=True)
class Phase:
    """One stretch of a call's time. Times are nanoseconds, as ``time.monotonic_ns`` has them where the trace is."""

    name: str
    side: str
    """``client`` or ``server``."""
    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Returns the length of the phase in seconds."""
        return (self.end_ns - self.begin_ns) * 1e-9


@dataclass(eq=False)
class TracedCall:
    """One call. Its phases follow each other without a gap, from its beginning to its end."""

    method: str
    client: Place
    begin_ns: int
    end_ns: int = 0
    """0 while it is under way."""
    phases: list[Phase] = field(default_factory=list)
    children: list[TracedCall] = field(default_factory=list)
    """The calls that its handler made meanwhile."""
    children_left_out: int = 0
    """There were more, but the reply's metadata had no room for them."""
    server: Place | None = None
    """None where the server doesn't say."""
    estimated: bool = False
    """The server has another clock: its part is put into the middle of the rest of the round trip."""
    error: str = ""
    """The name of the status code that it failed with."""
    attempts: int = 0
    items_sent: int = 0
    items_received: int = 0
    window_waits: int = 0
    """Number of times that a stream's sender waited for the receiver."""

    @property
    def seconds(self) -> float:
        """Duration of the call in seconds, up to now if it is under way."""
        last = self.phases[-1].end_ns if self.phases else self.begin_ns
        return ((self.end_ns or last) - self.begin_ns) * 1e-9

    def phase_seconds(self, name: str, side: str | None = None) -> float:
        """Returns the total time of the phases called ``name``, in seconds.

        ``side`` selects ``client`` or ``server``; None selects both. Raises ValueError for an unknown name.
        """
        if name not in PHASES:
            raise ValueError(f"there is no phase {name!r}; there is {', '.join(PHASES)}")
        return sum(p.seconds for p in self.phases if p.name == name and side in (None, p.side))

    def all_calls(self) -> Iterator[TracedCall]:
        """Yields this call and all calls made for it, at any depth."""
        yield self
        for child in self.children:
            yield from child.all_calls()

    def move(self, here: Callable[[int], int]) -> None:
        """Move it to another time line, with the calls made for it. ``here`` keeps the order of times."""
        for call in self.all_calls():
            call.begin_ns = here(call.begin_ns)
            call.end_ns = here(call.end_ns) if call.end_ns else 0
            moved = [replace(p, begin_ns=here(p.begin_ns), end_ns=here(p.end_ns)) for p in call.phases]
            call.phases = [phase for phase in moved if phase.end_ns > phase.begin_ns]


def here() -> Place:
    """The thread that asks."""
    thread = threading.current_thread()
    return Place(_boot_id(), os.getpid(), _process_name(), threading.get_native_id(), thread.name)


@cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        import uuid

        return f"unknown {uuid.uuid4()}"  # like no other


def _process_name() -> str:
    import sys

    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c") else "python"
