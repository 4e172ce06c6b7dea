"""Privacy of connections: whether others can read what goes over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_private(info: Mapping[str, Any]) -> bool:
    """Returns whether nobody on the way can read what goes over a connection, by its ``info``.

    Shared memory is private, and so is what is encrypted. Unprotected TCP, the loopback interface included, isn't, nor
    is RDMA whose peer has only proved its identity.
    """
    security = str(info.get("security", "none"))
    return security in ("same host", "encrypt") or security.startswith("TLS")
