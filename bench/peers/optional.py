"""Packages that a peer may need and a machine may lack."""

import importlib
import importlib.util
from typing import Any


def missing_packages(*names: str) -> str:
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def load(name: str) -> Any:
    return importlib.import_module(name)
