"""Observation of a running server: the access log, the metrics, and the HTTP port that serves the metrics."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import rrpc
from rrpc.cli.common import BadInput
from rrpc.observe import Observer, ServedCall

from .access import AccessLog
from .settings import Settings
from .statistics import CallStatistics, snapshot

if TYPE_CHECKING:
    from .monitor import Monitor


class Shown:
    """Shows a server to others: the HTTP port with its metrics and its state, and the ready file."""

    def __init__(self, options: Settings, *, supervised: bool = False) -> None:
        """``supervised``: it shows nothing, as its supervisor does."""
        self._ready_file: str | None = None if supervised else options.ready_file
        address = None if supervised else options.metrics
        self._monitor = open_monitor(address, self.numbers, self._state) if address else None

    @property
    def url(self) -> str:
        """The URL of the HTTP port; "" if there is none."""
        return self._monitor.url if self._monitor is not None else ""

    def numbers(self) -> dict[str, Any]:
        """Returns the statistics to be shown."""
        raise NotImplementedError

    def _state(self) -> str:
        raise NotImplementedError

    def _show_ready(self, addresses: Sequence[str]) -> None:
        if self._ready_file is not None:
            write_whole(self._ready_file, "".join(f"{address}\n" for address in addresses))

    def _hide_ready(self) -> None:
        if self._ready_file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._ready_file)


class Observing(Shown):
    """Made before the server, so that /healthz and /readyz answer while services load.

    The supervisor of several processes has its own view of them; theirs are counted and logged here.
    """

    def __init__(self, options: Settings, *, supervised: bool) -> None:
        self._server: rrpc.Server | None = None
        self._draining = False
        self._access = AccessLog(options.access_log, options.log_format) if options.access_log else None
        self._calls = CallStatistics() if options.metrics else None
        super().__init__(options, supervised=supervised)

    @property
    def observer(self) -> Observer | None:
        """The observer for the server; None if there is neither an access log nor metrics."""
        watching: list[Observer] = [one for one in (self._access, self._calls) if one is not None]
        if len(watching) < 2:
            return watching[0] if watching else None

        def all_of_them(call: ServedCall) -> None:
            for one in watching:
                one(call)

        return all_of_them

    def ready(self, server: rrpc.Server) -> None:
        """Notes the server that takes calls now, and writes the ready file."""
        self._server = server
        self._show_ready(server.addresses)

    def draining(self) -> None:
        """Shows from now on that the server drains, and removes the ready file."""
        self._draining = True
        if self._server is not None:
            self._server.health.drain()
        self._hide_ready()

    def reopen(self) -> None:
        """Opens the access log anew, after a rotation."""
        if self._access is not None:
            self._access.reopen()

    def _state(self) -> str:
        if self._draining:
            return "draining"
        if self._server is None:
            return "starting"
        return "ready" if self._server.health.serving() else "a service says that it doesn't serve"

    def numbers(self) -> dict[str, Any]:
        """Returns the statistics of this process, empty if nothing asked for them."""
        return snapshot(self._calls, self._server) if self._calls is not None else {}


def open_monitor(address: str, numbers: Callable[[], dict[str, Any]], state: Callable[[], str]) -> Monitor:
    """Opens the page of metrics and health. Raises BadInput if a package for it is missing."""
    try:
        from .metrics import MetricsPage
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise BadInput("--metrics needs prometheus-client: pip install 'rrpc-rdma[metrics]'") from None
    from .monitor import Monitor

    return Monitor(address, MetricsPage(numbers).render, state)


def write_whole(path: str, text: str) -> None:
    """Writes the file atomically: no reader sees a part of the text. Raises BadInput."""
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "w") as file:
            file.write(text)
        os.replace(beside, path)
    except OSError as error:
        raise BadInput(f"--ready-file {path}: {error.strerror}") from None
