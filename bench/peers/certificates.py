"""Certificates of the peers that speak TLS: those of the C++ tests, which both ends of each peer use alike."""

from pathlib import Path

__all__ = ["AUTHORITY", "certificate", "key"]

_FOLDER = Path(__file__).parents[2] / "cpp" / "tests" / "certificates"

AUTHORITY = _FOLDER / "authority.pem"


def certificate(whose: str) -> Path:
    """Returns the path of the certificate of "server" or "client"."""
    return _FOLDER / f"{whose}.pem"


def key(whose: str) -> Path:
    """Returns the path of the key of "server" or "client"."""
    return _FOLDER / f"{whose}.key"
