"""Instances of classes with fields, as they are sent: dataclasses, attrs classes, Pydantic models.

attrs and Pydantic are told by what their classes have, so that neither is imported here.
"""

from __future__ import annotations

import dataclasses
from typing import Any


def fields_in(value: Any) -> dict[str, Any]:
    """Returns the fields of an instance of such a class by the names under which they are sent.

    attrs fields go by the name that their constructor takes, those of a Pydantic model as its own ``model_dump``
    gives them.
    """
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if has_attrs(kind):
        return {field.alias: getattr(value, field.name) for field in kind.__attrs_attrs__ if field.init}
    dumped: dict[str, Any] = value.model_dump(round_trip=True, by_alias=True)
    return dumped


def has_fields(kind: Any) -> bool:
    """Returns whether instances of ``kind`` are sent as their fields."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or has_attrs(kind) or is_model(kind))


def has_attrs(kind: Any) -> bool:
    """Returns whether ``kind`` is a class that attrs made."""
    # In the class itself: a subclass inherits the attribute although attrs hasn't made it.
    return isinstance(kind, type) and "__attrs_attrs__" in kind.__dict__


def is_model(kind: Any) -> bool:
    """Returns whether ``kind`` is a class of Pydantic's models."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_dump")
