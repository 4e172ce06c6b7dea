"""What looks at a server while it serves: the access log, the numbers, the port where they are read."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import rrpc
from rrpc.cli.common import BadInput
from rrpc.observe import Observer, ServedCall

from .access import AccessLog
from .settings import Settings
from .statistics import CallStatistics, snapshot

if TYPE_CHECKING:
    from .monitor import Monitor

__all__ = ["Observing"]


class Observing:
    """Made before the server, so that /healthz and /readyz answer while services load."""

    def __init__(self, options: Settings) -> None:
        self._server: rrpc.Server | None = None
        self._draining = False
        self._ready_file: str | None = options.ready_file
        self._access = AccessLog(options.access_log, options.log_format) if options.access_log else None
        self._calls = CallStatistics() if options.metrics else None
        self._monitor = self._open_monitor(options.metrics) if options.metrics else None

    @property
    def observer(self) -> Observer | None:
        """For the server; None where nobody wants to see calls."""
        watching: list[Observer] = [one for one in (self._access, self._calls) if one is not None]
        if len(watching) < 2:
            return watching[0] if watching else None

        def all_of_them(call: ServedCall) -> None:
            for one in watching:
                one(call)

        return all_of_them

    @property
    def url(self) -> str:
        """Where numbers are read; "" where they aren't."""
        return self._monitor.url if self._monitor is not None else ""

    def ready(self, server: rrpc.Server) -> None:
        self._server = server
        if self._ready_file is not None:
            _write_whole(self._ready_file, "".join(f"{address}\n" for address in server.addresses))

    def draining(self) -> None:
        self._draining = True
        if self._server is not None:
            self._server.health.drain()
        if self._ready_file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._ready_file)

    def reopen(self) -> None:
        if self._access is not None:
            self._access.reopen()

    def _open_monitor(self, address: str) -> Monitor:
        try:
            from .metrics import MetricsPage
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            raise BadInput("--metrics needs prometheus-client: pip install 'rrpc[metrics]'") from None
        from .monitor import Monitor

        return Monitor(address, MetricsPage(self._numbers).render, self._state)

    def _state(self) -> str:
        if self._draining:
            return "draining"
        if self._server is None:
            return "starting"
        return "ready" if self._server.health.serving() else "a service says that it doesn't serve"

    def _numbers(self) -> dict[str, Any]:
        assert self._calls is not None
        return snapshot(self._calls, self._server)


def _write_whole(path: str, text: str) -> None:
    """Whoever sees the file sees all of it."""
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "w") as file:
            file.write(text)
        os.replace(beside, path)
    except OSError as error:
        raise BadInput(f"--ready-file {path}: {error.strerror}") from None
