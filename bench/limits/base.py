"""A limit: a name, what it bounds, and how it is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Results = list[dict[str, Any]]


def always() -> str:
    return ""


@dataclass(frozen=True)
class Limit:
    """``measure`` runs in a process of its own and gives [{"case": ..., "metrics": {...}}]."""

    name: str
    bounds: Literal["echo", "array"]
    measure: Callable[[float, list[float]], Results]
    missing: Callable[[], str] = always
