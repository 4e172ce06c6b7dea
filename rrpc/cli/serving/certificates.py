"""TLS of a server that runs: logs what is wrong with new certificates, and which clients were refused."""

from __future__ import annotations

import logging
import time

from rrpc import Server

_LOOK_SECONDS = 5.0


class Certificates:
    """Looks now and then whether changed files of TLS can be used."""

    def __init__(self, server: Server, tls: bool) -> None:
        self._server = server
        self._due = time.monotonic() + _LOOK_SECONDS if tls else None
        self._problem = ""
        self._refused = 0

    def due_in(self) -> float | None:
        """Returns the seconds until the next look; None without TLS."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def tend(self) -> None:
        """Looks if it is due, and logs a new problem, its end, and refused clients in one line."""
        if self._due is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_SECONDS
        log = logging.getLogger("rrpc.serve")
        refused, last = self._server.tls_refusals()
        if refused > self._refused:
            log.warning("TLS: %d handshakes came to nothing, the last of %s", refused - self._refused, last)
            self._refused = refused
        problem = self._server.tls_problem()
        if problem == self._problem:
            return
        if problem:
            log.error("%s; the certificates read before stay in use", problem)
        else:
            log.info("TLS: new certificates are in use")
        self._problem = problem
