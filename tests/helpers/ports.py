"""TCP ports for servers that may end and come back.

They lie below those that Linux gives to whoever connects (ip_local_port_range): one of those may be a client's by the
time that the server is back. Test processes run side by side, and each has ports of its own.
"""

import os
import socket
from contextlib import ExitStack

FIRST, LAST = 10_000, 32_000
SHARES = 16  # test processes that have none in common
SHARE = (LAST - FIRST) // SHARES

_next = 0


def own_port() -> int:
    return own_ports(1)[0]


def own_ports(count: int) -> range:
    """So many in a row that nobody listens on."""
    global _next
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = FIRST + worker % SHARES * SHARE
    for _ in range(SHARE):
        if _next + count > SHARE:
            _next = 0
        ports = range(begin + _next, begin + _next + count)
        _next += count
        if _all_free(ports):
            return ports
    raise AssertionError(f"no {count} free ports in a row from {begin} on")


def _all_free(ports: range) -> bool:
    with ExitStack() as held:
        try:
            for port in ports:
                held.enter_context(socket.create_server(("", port)))
        except OSError:
            return False
        return True
