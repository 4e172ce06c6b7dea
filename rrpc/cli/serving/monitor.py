"""The HTTP port: /metrics for Prometheus, /healthz and /readyz for whoever keeps the server running."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rrpc.cli.common import BadInput

from .kinds import host_and_port

Render = Callable[[str], tuple[bytes, str]]
Answer = Callable[[str, str], tuple[int, bytes, str]]

_REQUEST_SECONDS = 5.0
_CONNECTIONS_MAX = 32
_TEXT = "text/plain; charset=utf-8"


class Monitor:
    """Answers from the moment it is made. ``state`` is what /readyz says: with 200 where that is "ready"."""

    def __init__(self, address: str, render: Render, state: Callable[[], str]) -> None:
        try:
            self._http = _Http(*host_and_port(address), _answers(render, state))
        except OSError as error:
            raise BadInput(f"--metrics {address}: {error.strerror or error}") from None
        shown, bound = self._http.server_address[:2]
        self.url = f"http://[{shown!s}]:{bound}" if ":" in str(shown) else f"http://{shown!s}:{bound}"
        threading.Thread(target=self._http.serve_forever, name="rrpc-metrics", daemon=True).start()


def _answers(render: Render, state: Callable[[], str]) -> Answer:
    def answer(path: str, accept: str) -> tuple[int, bytes, str]:
        if path == "/metrics":
            return 200, *render(accept)
        if path == "/healthz":
            return 200, b"ok\n", _TEXT
        if path == "/readyz":
            now = state()
            return 200 if now == "ready" else 503, f"{now}\n".encode(), _TEXT
        return 404, b"there is /metrics, /healthz and /readyz\n", _TEXT

    return answer


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, answer: Answer) -> None:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self.answer = answer
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        super().__init__(found[0][4][:2], _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Binds as TCPServer does. HTTPServer also looks up the host's name, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logging.getLogger("rrpc.serve").debug("metrics: %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Http

    def do_GET(self) -> None:
        status, body, kind = self.server.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        logging.getLogger("rrpc.serve").debug(f"metrics: {format}", *args)
