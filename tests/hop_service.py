"""A server that calls another like itself, as far as there is one; served by rrpc-serve."""

import contextlib
import threading
from typing import Any

import rrpc

_began: dict[str, threading.Event] = {}
_ended: dict[str, threading.Event] = {}
_outcomes: dict[str, Any] = {}


def _event(events: dict[str, threading.Event], name: str) -> threading.Event:
    return events.setdefault(name, threading.Event())


@rrpc.service
class Hop:
    """One of several in a row."""

    def __init__(self, after: str = "") -> None:
        self.after = rrpc.connect(after, timeout=100.0) if after else None

    @rrpc.method
    def times_left(self, own: float | None = None, detached: bool = False) -> list[float | None]:
        """What each hop has left, this one first; ``own`` is the timeout of the calls on the way."""
        left = [rrpc.context().time_left()]
        if self.after is not None:
            with rrpc.detached() if detached else contextlib.nullcontext():
                left += self.after.call("Hop.times_left", own, timeout=own)
        return left

    @rrpc.method
    def hold(self, name: str, how: str = "call") -> None:
        """Lasts until it is cancelled, in the last one."""
        _event(_began, name).set()
        try:
            self._hold(name, how)
            _outcomes[name] = "returned"
        except BaseException as error:
            _outcomes[name] = type(error).__name__
            raise
        finally:
            _event(_ended, name).set()

    def _hold(self, name: str, how: str) -> None:
        if self.after is None:
            if not rrpc.context().wait_cancelled(60):
                raise rrpc.Internal("nobody cancelled it")
        elif how == "call":
            self.after.call("Hop.hold", name, how)
        elif how == "futures":
            futures = [self.after.start("Hop.hold", f"{name} {i}" if i else name, how) for i in range(2)]
            for future in futures:
                future.result()
        else:
            with rrpc.detached():
                self.after.call("Hop.hold", name, how)

    @rrpc.method
    def began(self, name: str) -> bool:
        return _event(_began, name).wait(30)

    @rrpc.method
    def outcome(self, name: str) -> str:
        """Of a `hold`, once it has ended; nothing if it hasn't for long."""
        return _outcomes[name] if _event(_ended, name).wait(30) else ""

    @rrpc.method
    def has_ended(self, name: str) -> bool:
        return _event(_ended, name).is_set()

    @rrpc.method
    def counts(self) -> dict[str, int]:
        return rrpc.stats()
