"""Keeps a server from listening in clear where other machines reach it, unless its operator wants that."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from rrpc.cli.common import BadInput

_CLEAR = ("rrpc", "tcp", "verbs", "verbs+tcp")


def refuse_clear_text(addresses: Iterable[str], tls: bool, insecure: bool) -> None:
    """Raises BadInput for the first address at which other machines could call in clear.

    Args:
        addresses: where the server is to listen.
        tls: whether the server has a certificate, so that clients of every address but shm:// begin with TLS.
        insecure: whether the operator accepts clear text.
    """
    if insecure or tls:
        return
    for address in addresses:
        scheme, _, place = address.partition("://")
        if scheme not in _CLEAR:
            continue
        host, colon, port = place.partition("?")[0].rpartition(":")
        if not colon or not port.isdigit():
            continue  # listening says what is wrong with it
        if not _loopback_only(host.strip("[]")):
            raise BadInput(
                f"{address} is reached by other machines, and whoever reaches it could call and read along: "
                "give --tls-cert and --tls-key, or --insecure where the network is trusted"
            )


def _loopback_only(host: str) -> bool:
    if not host:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False  # it may be resolved in a moment, to whatever
    return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)
