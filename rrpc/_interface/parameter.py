"""Parameters of a service's methods."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Final

MISSING: Final = inspect.Parameter.empty
"""The default of a parameter without one."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method; ``default`` is ``MISSING`` where there is none."""

    name: str
    annotation: Any
    default: Any = MISSING
    keyword_only: bool = False
    positional_only: bool = False
