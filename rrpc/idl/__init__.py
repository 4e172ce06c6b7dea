"""Interfaces as text: today the Python clients that rrpc-gen writes."""

from .emit_python import emit_clients

__all__ = ["emit_clients"]
