"""The certificates that Ray secures its own connections with, as rrpc takes them."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["certificates"]

VARIABLES = {
    "tls_cert": "RAY_TLS_SERVER_CERT",
    "tls_key": "RAY_TLS_SERVER_KEY",
    "tls_ca": "RAY_TLS_CA_CERT",
}


def certificates() -> dict[str, Any]:
    """Returns the options for TLS of clients and servers; none where ``RAY_USE_TLS`` isn't set.

    Names in certificates aren't looked at, as Ray doesn't: who has one of the authority belongs to the cluster.

    Raises:
        ValueError: ``RAY_USE_TLS`` is set, and one of the files isn't named.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return {}
    missing = [variable for variable in VARIABLES.values() if not os.environ.get(variable)]
    if missing:
        raise ValueError(f"RAY_USE_TLS is set, and {' and '.join(missing)} should name a file in PEM form")
    return {option: os.environ[variable] for option, variable in VARIABLES.items()} | {"tls_peer_name": "*"}
