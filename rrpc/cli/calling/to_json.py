"""Results to JSON, and their arrays and bytes to files."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rrpc.codec import numpy_kind

_INLINE_ITEMS = 100
_INLINE_BYTES = 1024
_WIDTH = 100


class Files:
    """Takes the arrays (and in a folder the bytes) of a result, and writes each into a file.

    ``target`` is a folder, or a ``.npy`` file for a result with one array.
    """

    def __init__(self, target: Path, folder: bool) -> None:
        self._target = target
        self._folder = folder
        self._count = 0

    def array(self, value: Any, path: str) -> dict[str, Any]:
        """Save it; gives what stands in its place."""
        self._count += 1
        if self._count > 1 and not self._folder:
            raise ValueError(f"the result has several arrays: give a folder, {self._target.with_suffix('')}/")
        file = self._place(path, ".npy")
        with file.open("wb") as out:  # np.save would append .npy to other names
            np.save(out, value, allow_pickle=False)
        return {"dtype": str(value.dtype), "shape": list(value.shape), "file": str(file)}

    def binary(self, value: bytes, path: str) -> dict[str, Any] | None:
        """Saves bytes as ``array`` saves an array; returns None if the target isn't a folder."""
        if not self._folder:
            return None
        file = self._place(path, ".bin")
        file.write_bytes(value)
        return {"bytes": len(value), "file": str(file)}

    def end(self) -> None:
        """ValueError if there was nothing to write."""
        if not self._count and not self._folder:
            raise ValueError("the result has no array")

    def _place(self, path: str, suffix: str) -> Path:
        if not self._folder:
            return self._target
        self._target.mkdir(parents=True, exist_ok=True)
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in path.lstrip("."))
        return self._target / f"{safe or 'result'}{suffix}"


def to_json(value: Any, files: Files | None = None, whole: bool = False) -> Any:
    """Converts a value for ``json.dumps``. Large arrays and bytes are only described, unless ``whole``."""
    return _Writer(files, whole).json(value, "")


class _Writer:
    def __init__(self, files: Files | None, whole: bool) -> None:
        self._files = files
        self._whole = whole

    def json(self, value: Any, path: str) -> Any:
        convert = _CONVERSIONS.get(type(value))
        if convert is not None:
            return convert(value)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._binary(bytes(value), path)
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, np.generic):
            return self.json(value.item(), path)
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Any:
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return {name: self.json(getattr(value, name), f"{path}.{name}") for name in names}
        if isinstance(value, dict):
            return self._mapping(value, path)
        if isinstance(value, (set, frozenset)):
            items = [self.json(item, path) for item in value]
            return sorted(items, key=lambda item: (type(item).__name__, str(item)))
        if isinstance(value, (list, tuple)):
            return [self.json(item, f"{path}.{i}") for i, item in enumerate(value)]
        return str(value)

    def _mapping(self, value: dict[Any, Any], path: str) -> Any:
        """An object, or a list of pairs where keys aren't texts."""
        items = [(key, self.json(item, f"{path}.{key}")) for key, item in value.items()]
        if all(isinstance(key, str) for key in value):
            return dict(items)
        return [[self.json(key, path), item] for key, item in items]

    def _array(self, value: Any, path: str) -> dict[str, Any]:
        if self._files is not None:
            return self._files.array(value, path)
        shown = {"dtype": str(value.dtype), "shape": list(value.shape)}
        if (exact := numpy_kind(value.dtype.type)) is not value.dtype.type:
            value = value.astype(exact)
        if self._whole or value.size <= _INLINE_ITEMS:
            return shown | {"data": _nested(value.tolist())}
        return shown | _summary(value)

    def _binary(self, value: bytes, path: str) -> Any:
        placed = self._files.binary(value, path) if self._files is not None else None
        if placed is not None:
            return placed
        if self._whole or len(value) <= _INLINE_BYTES:
            return {"base64": base64.b64encode(value).decode()}
        return {"bytes": len(value), "first": {"base64": base64.b64encode(value[:48]).decode()}}


def _summary(value: Any) -> dict[str, Any]:
    """Returns the first items of a large array, and the minimum and maximum of real numbers."""
    first = {"first": _nested(value.reshape(-1)[:6].tolist())}
    if value.dtype.kind not in "iuf":
        return first
    return first | {"min": _nested(value.min().item()), "max": _nested(value.max().item())}


def _nested(value: Any) -> Any:
    if isinstance(value, list):
        return [_nested(item) for item in value]
    convert = _CONVERSIONS.get(type(value))
    return convert(value) if convert is not None else to_json(value)


def _number(value: float) -> Any:
    """JSON has no word for those that aren't finite: they go as texts."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _same(value: Any) -> Any:
    return value


_CONVERSIONS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((type(None), bool, int, str), _same),
    float: _number,
    complex: lambda value: [_number(value.real), _number(value.imag)],
    **dict.fromkeys((datetime.datetime, datetime.date, datetime.time), lambda value: value.isoformat()),
    datetime.timedelta: lambda value: value.total_seconds(),
    **dict.fromkeys((decimal.Decimal, uuid.UUID), str),
}


def pretty(value: Any, indent: str = "") -> str:
    """JSON for people: what fits a line stands on one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= _WIDTH or not isinstance(value, (dict, list)) or not value:
        return line
    inner = f"{indent}  "
    if isinstance(value, dict):
        items = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {pretty(item, inner)}"
            for key, item in value.items()
        ]
    else:
        items = [f"{inner}{pretty(item, inner)}" for item in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([start, ",\n".join(items), indent + end])
