"""What handlers see of their calls; served by rrpc-serve."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rrpc

_seen: dict[str, Any] = {}
_events: dict[str, threading.Event] = {}


def _wait(name: str, seconds: float = 30.0) -> bool:
    return _event(name).wait(seconds)


def _event(name: str) -> threading.Event:
    return _events.setdefault(name, threading.Event())


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


@rrpc.service
class Seen:
    """Tells what rrpc.context() has."""

    @rrpc.method
    def about(self) -> dict[str, Any]:
        context = rrpc.context()
        return {
            "method": context.method,
            "peer": context.peer,
            "time_left": context.time_left(),
            "has_deadline": context.deadline is not None,
            "cancelled": context.cancelled,
            "ended": context.ended,
        }

    @rrpc.method
    def metadata(self) -> dict[str, Any]:
        """What came, by name; it goes back in the reply, in two steps."""
        metadata = rrpc.context().metadata
        for name in metadata:
            rrpc.context().set_metadata({name: metadata.get_all(name), "last": name})
        return {name: metadata.get_all(name) for name in metadata}

    @rrpc.method
    def fail_with(self, metadata: dict[str, str]) -> None:
        rrpc.context().set_metadata(metadata)
        raise rrpc.NotFound("no such row", details={"row": 7, "where": ("a", 1)})

    @rrpc.method
    def hold(self, name: str) -> bool:
        """Runs until it is cancelled; `seen(name)` then tells how it went."""
        context = rrpc.context()
        called: list[str] = []
        context.add_cancel_callback(lambda: called.append("callback"))
        before = context.cancelled, context.wait_cancelled(0)
        _event(f"{name} began").set()
        told = context.wait_cancelled(30)
        rest = threading.Event()
        context.add_cancel_callback(rest.set)
        _seen[name] = {
            "before": before,
            "told": told,
            "cancelled": context.cancelled,
            "called": called,
            "late": rest.wait(30),
        }
        _event(f"{name} ended").set()
        return told

    @rrpc.method
    def keep(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Goes on after a cancel, until it is released."""
        _event(f"{name} began").set()
        _wait(name)
        result = array + 1
        _seen[name] = float(result.sum())
        _event(f"{name} ended").set()
        return result

    @rrpc.method
    def release(self, name: str) -> None:
        _event(name).set()

    @rrpc.method
    def echo(self, value: Any) -> Any:
        return value

    @rrpc.method
    def pause(self, seconds: float) -> bool:
        """Until it is cancelled, or for so long; which it was."""
        return rrpc.context().wait_cancelled(seconds)

    @rrpc.method
    def make(self, nbytes: int) -> NDArray[np.uint8]:
        return np.ones(nbytes, np.uint8)

    @rrpc.method
    def counts(self) -> dict[str, int]:
        return rrpc.stats()

    @rrpc.method
    def began(self, name: str) -> bool:
        return _wait(f"{name} began")

    @rrpc.method
    def seen(self, name: str) -> Any:
        """Of a `hold`, once it has ended."""
        return _seen.get(name) if _wait(f"{name} ended") else None

    @rrpc.method
    def outside(self) -> list[str]:
        """In a thread of the handler's own."""
        found: list[str] = []

        def ask() -> None:
            try:
                rrpc.context()
            except RuntimeError as error:
                found.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return found

    @rrpc.method
    def in_callbacks(self, address: str) -> list[str]:
        """What a callback of a future sees that this handler waits for, and so may run itself."""
        seen: list[str] = []

        def look(future: Any) -> None:
            try:
                seen.append(rrpc.context().method)
            except RuntimeError:
                seen.append("no context")

        with rrpc.connect(address) as client:
            futures = [client.start("Seen.echo", i) for i in range(20)]
            for future in futures:
                future.add_done_callback(look)
            for future in futures:
                future.result()
            _wait_for(lambda: len(seen) == len(futures))
        return seen

    @rrpc.method
    def still_there_when_detached(self) -> bool:
        with rrpc.detached():
            return rrpc.context().method == "Seen.still_there_when_detached"
