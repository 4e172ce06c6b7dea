"""The options that clients and servers share."""

from __future__ import annotations

from typing import Any

from . import _core

__all__ = ["merged"]


def merged(given: dict[str, Any]) -> dict[str, Any]:
    """The core's options with ``given`` ones in their places; TypeError for a name that isn't one."""
    options = _core.default_options()
    for name in given:
        if name not in options:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(sorted(options))}")
    return options | given
