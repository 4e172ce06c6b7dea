"""The service that the tests of calls, bulk, faults and deadlines call; served by rrpc-serve."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rrpc

_released: dict[str, threading.Event] = {}
_started: set[str] = set()
_kept: list[Any] = []


class OddError(Exception):
    """A type that callers don't have."""


def _event(name: str) -> threading.Event:
    return _released.setdefault(name, threading.Event())


@rrpc.service
class Lab:
    """Whatever a test needs of a server."""

    @rrpc.method
    def add(self, a: int, b: int = 1) -> int:
        return a + b

    @rrpc.method
    def nothing(self) -> None: ...

    @rrpc.method
    def echo(self, value: Any) -> Any:
        return value

    @rrpc.method
    def total(self, array: NDArray[Any]) -> float:
        return float(array.sum())

    @rrpc.method
    def size(self, value: Any) -> int:
        return len(value)

    @rrpc.method
    def scale(self, array: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
        return array * factor

    @rrpc.method
    def overwrite(self, array: NDArray[Any]) -> float:
        """Changes its own copy; the caller's array must not change."""
        array[...] = 0
        return float(array.sum())

    @rrpc.method
    def make(self, nbytes: int, fill: int = 0, pool: bool = False) -> NDArray[np.uint8]:
        array: NDArray[np.uint8] = (rrpc.empty if pool else np.empty)(nbytes, np.uint8)
        array[...] = fill
        return array

    @rrpc.method
    def spaced(self, count: int, nbytes: int) -> NDArray[np.uint8]:
        """`count` rows of `nbytes`, each full of its number, that aren't adjacent in memory."""
        array = np.full((count, 2, nbytes), 255, np.uint8)
        array[:, 0] = np.arange(count)[:, None]
        return array[:, 0]

    @rrpc.method
    def blob(self, nbytes: int) -> bytes:
        return bytes(nbytes)

    @rrpc.method
    def keep(self, array: NDArray[Any]) -> int:
        _kept.append(array)
        return len(_kept)

    @rrpc.method
    def drop_kept(self) -> float:
        """What the kept arrays hold, before they go."""
        total = float(sum(array.sum() for array in _kept))
        _kept.clear()
        return total

    @rrpc.method
    def fail(self, kind: str, message: str) -> None:
        if kind == "odd":
            raise OddError(message)
        if kind == "exit":
            raise SystemExit(3)
        if kind == "rpc":
            raise rrpc.NotFound(message)
        raise {"value": ValueError, "key": KeyError, "zero": ZeroDivisionError}[kind](message)

    @rrpc.method
    def unencodable(self) -> Any:
        return {"deep": [object()]}

    @rrpc.method
    def wrong_result(self) -> int:
        return "no int"  # type: ignore[return-value]

    @rrpc.method
    def hold(self, name: str, seconds: float = 30.0, until: str = "") -> bool:
        """Runs until `release(name)`, the file `until` is there, or nobody waits for it; False if none of it came."""
        _started.add(name)
        end, event = time.monotonic() + seconds, _event(name)
        while not event.wait(min(0.05, max(0.0, end - time.monotonic()))):
            if until and Path(until).exists():
                return True
            if rrpc.context().cancelled or time.monotonic() >= end:
                return False
        return True

    @rrpc.method
    def release(self, name: str) -> None:
        _event(name).set()

    @rrpc.method
    def holding(self, name: str) -> bool:
        return name in _started

    @rrpc.method
    def counts(self) -> dict[str, int]:
        """The server's own statistics."""
        return rrpc.stats()

    @rrpc.method
    def pid(self) -> int:
        return os.getpid()


@rrpc.service
class Second:
    """Another service in the same process."""

    @rrpc.method
    def twice(self, value: int) -> int:
        return 2 * value
