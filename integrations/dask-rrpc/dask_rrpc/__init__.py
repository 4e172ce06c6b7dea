"""Dask's messages over rrpc: ``Client(protocol="rrpc")``, ``dask worker rrpc://scheduler:8786``."""

from .backend import RrpcBackend
from .security import Security

__all__ = ["RrpcBackend", "Security"]
