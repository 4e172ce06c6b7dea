"""systemd's protocol for services that tell when they are ready: datagrams of lines to $NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import os
import socket
import time


class Notifier:
    """Says nothing where nobody listens. It takes the variables out of the environment: children aren't meant."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_interval = _watchdog_interval() if address else None
        """Period in which ``watchdog`` must be called, in seconds; None: never."""
        if address and not address.startswith(("/", "@")):
            _log().warning("NOTIFY_SOCKET is %s, which is no Unix socket: nothing is told", address)
            self._address = ""

    def ready(self, status: str) -> None:
        """Tells systemd that the server takes calls, and its status line."""
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self) -> None:
        """Tells systemd that the server reloads. Call ``ready`` when it has."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Tells systemd that the server ends, and its status line."""
        self._send("STOPPING=1", f"STATUS={status}")

    def watchdog(self) -> None:
        """Tells systemd's watchdog that the server is alive."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(1.0)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _log().warning("telling systemd %s: %s", lines[0], error)


def _watchdog_interval() -> float | None:
    """Half of what is allowed, as systemd asks."""
    allowed = os.environ.pop("WATCHDOG_USEC", "")
    pid = os.environ.pop("WATCHDOG_PID", "")
    if not allowed.isdecimal() or int(allowed) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(allowed) / 2e6


def _log() -> logging.Logger:
    return logging.getLogger("rrpc.serve")
