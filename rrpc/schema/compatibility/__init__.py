"""Compatibility of two versions of an interface: their changes, and which peers notice them."""

from .changes import compare, compare_services, obstacles
from .comparison import Broken, Change

__all__ = ["Broken", "Change", "compare", "compare_services", "obstacles"]
