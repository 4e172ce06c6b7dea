"""Compatibility of two versions of an interface: their changes, and which peers notice them."""

# Clients call this while they connect to a server of another version, and so do the tools. A `Comparison` belongs to
# one thread.

from .changes import compare, compare_services, obstacles
from .comparison import Broken, Change

__all__ = ["Broken", "Change", "compare", "compare_services", "obstacles"]
