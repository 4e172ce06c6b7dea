"""The built-in services: what every server offers of its own."""

from __future__ import annotations

import datetime
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import rrpc
from rrpc._channel.versions import DESCRIPTION_VERSION
from rrpc._interface import AnnotationError, Interface
from rrpc._server.health import Health
from rrpc._server.waker import Waker

from .generated_stubs import HealthBase, HealthStatus, ProcessStats, ReflectionBase, StatsBase


def builtin(server: rrpc.Server, workers: int) -> list[object]:
    """The services that a server has besides the user's."""
    seen: rrpc.Server = weakref.proxy(server)  # which holds these, and shall go when its last user does
    return [
        HealthService(server.health),
        ReflectionService(lambda: seen.interfaces()),
        StatsService(seen, workers),
    ]


class HealthService(HealthBase):
    """The state that the application, or the shutdown, has set."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def check(self, service: str = "") -> HealthStatus:
        return HealthStatus.SERVING if self._health.serving(service) else HealthStatus.NOT_SERVING

    def watch(self, service: str = "") -> Iterator[HealthStatus]:
        waker, told = Waker(), None
        with self._health.watching(waker.wake):
            while True:
                last = self._health.draining  # read first: what it brings about is then told
                state = self.check(service)
                if state is not told:
                    told = state
                    yield state
                if last:
                    return
                yield waker  # type: ignore[misc]  # which holds no worker


class ReflectionService(ReflectionBase):
    """Describes interfaces, each when it is first asked for."""

    def __init__(self, interfaces: Callable[[], Sequence[Interface]]) -> None:
        self._interfaces = interfaces
        self._described: dict[str, dict[str, Any]] = {}

    def services(self) -> list[str]:
        return [interface.name for interface in self._interfaces()]

    def describe(self, service: str) -> dict[str, Any]:
        if service not in self._described:
            self._described[service] = self._describe(service)
        return self._described[service]

    def _describe(self, service: str) -> dict[str, Any]:
        from rrpc.schema import service_of, to_data

        for interface in self._interfaces():
            if interface.name == service:
                try:
                    return {"version": DESCRIPTION_VERSION, "service": to_data(service_of(interface))}
                except AnnotationError as error:
                    raise rrpc.FailedPrecondition(f"{service} can't be described: {error}") from None
        raise rrpc.NotFound(
            f"there is no service {service[:80]!r} here; there is {', '.join(self.services())}"
        )


class StatsService(StatsBase):
    """Counts of this process."""

    def __init__(self, server: rrpc.Server, workers: int) -> None:
        self._server = server
        self._workers = workers
        self._started = time.monotonic()

    def process(self) -> ProcessStats:
        counters, now = rrpc.stats(), self._server.stats()
        return ProcessStats(
            version=rrpc.__version__,
            pid=os.getpid(),
            uptime=datetime.timedelta(seconds=time.monotonic() - self._started),
            workers=self._workers,
            connections=now["connections"],
            calls_running=now["calls_running"],
            calls_served=counters["calls_served"],
            bytes_inline=counters["bytes_inline_sent"] + counters["bytes_inline_received"],
            bytes_remote=counters["bytes_read"] + counters["bytes_written"],
            bytes_copied=counters["bytes_copied"],
            pool_bytes_used=counters["pool_bytes_used"],
            pool_limit_bytes=counters["pool_limit_bytes"],
            counters=counters,
        )
