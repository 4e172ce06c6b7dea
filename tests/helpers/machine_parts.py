"""The surroundings of a call's machines in tests that drive them with random events."""

import concurrent.futures
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import rrpc
from rrpc.errors import unsent

TIMEOUT = 60.0
FAILURES = ("unavailable", "unavailable", "unsent", "internal", "cancel", "interrupt", "late")
"""What may happen to an attempt, as often as it should be drawn; see ``failure``."""


class Ends(Exception):
    """Ctrl-C, or whatever else a driver's wait raises that is no RpcError."""


@dataclass
class Request:
    idempotent: bool
    method = "Lab.do"
    out = None

    def named(self) -> Mapping[str | int, Any]:
        return {}

    def encode(self, connection: Any) -> tuple[bytes, bytes, Any]:
        return b"Lab.do", b"", None

    def decode(self, payload: bytes, blocks: Any, message: Any) -> Any:
        return payload

    def error(self, error: rrpc.RpcError) -> rrpc.RpcError:
        return error

    def check(self, result: Any) -> Any:
        return result


class Connection:
    address = "tcp://here:1"

    def usable(self) -> bool:
        return True


class Channel:
    """Has a connection, or will; counts what it is told of calls."""

    target = "tcp://here:1"

    def __init__(self, ready: list[bool]) -> None:
        self.ready = ready
        self.waited: list[concurrent.futures.Future[Any]] = []
        self.told: list[str] = []

    def pick_nowait(self, wait_for_ready: bool = False) -> Connection | None:
        return Connection() if not self.ready or self.ready.pop() else None

    def pick_soon(self, wait_for_ready: bool = False) -> concurrent.futures.Future[Any]:
        self.waited.append(concurrent.futures.Future())
        return self.waited[-1]

    def failed(self, connection: Any, error: rrpc.RpcError) -> None:
        self.told.append("failed")

    def succeeded(self, connection: Any) -> None:
        self.told.append("succeeded")

    def why_not(self) -> str:
        return ""


def failure(event: str) -> BaseException:
    if event == "unavailable":
        return rrpc.Unavailable("lost")
    if event == "unsent":
        return unsent(rrpc.Unavailable("going away"))
    if event == "late":
        return rrpc.DeadlineExceeded("too late")
    return rrpc.Internal("broken") if event == "internal" else Ends()


class Clock:
    """Stands in for ``time.monotonic`` while a test runs."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    @property
    def late(self) -> bool:
        return self.now >= 1000.0 + TIMEOUT


@contextmanager
def clock() -> Iterator[Clock]:
    made = Clock()
    with (
        mock.patch("rrpc._options.monotonic", made),
        mock.patch("rrpc._call.outgoing.monotonic", made),
    ):
        yield made
