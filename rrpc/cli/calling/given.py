"""Arguments as the command line has them: ``name=value``, values as JSON, bare text or ``@file``."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rrpc.cli.common import BadInput
from rrpc.schema.canonical_read import BadData

from .from_json import alternatives, from_json, unwrapped

_NPY = b"\x93NUMPY"
_TEXT_KINDS = {str, decimal.Decimal, uuid.UUID, datetime.datetime, datetime.date, datetime.time}
_BINARY_KINDS = (bytes, bytearray, memoryview)


def split(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the positional arguments and the named ones.

    Raises BadInput for a positional argument after a named one, and for a name that is given twice.
    """
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            if named:
                raise BadInput(f"{argument}: what has no name goes before what has one")
            positional.append(argument)
        elif name in named:
            raise BadInput(f"{name} is given twice")
        else:
            named[name] = text
    return positional, named


def value_of(argument: str, text: str, annotation: Any = Any) -> Any:
    """The value that ``text`` stands for; ``argument`` is how the line shows it. Raises BadInput."""
    kind = unwrapped(annotation)
    try:
        return _file(text[1:], kind) if text.startswith("@") else _typed(text, kind)
    except BadData as error:
        path = f"{argument.partition('=')[0]}{error.path}" if error.path else argument
        raise BadInput(f"{path}: {error.args[0]}") from None


def _typed(text: str, kind: Any) -> Any:
    if kind in _TEXT_KINDS:
        return from_json(_unquoted(text), kind)
    if kind in _BINARY_KINDS and not text.startswith("{"):
        return kind(text.encode())
    try:
        data = _json(text)
    except ValueError:
        return from_json(text, kind)
    try:
        return from_json(data, kind)
    except BadData as error:
        # A text that looks like JSON, as where one of "1" and "2" is wanted.
        try:
            return from_json(text, kind)
        except BadData:
            raise error from None


def _unquoted(text: str) -> str:
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        try:
            return str(_json(text))
        except ValueError:
            pass
    return text


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise BadInput("JSON nested too deep") from None


def _file(name: str, kind: Any) -> Any:
    shown = f"@{name}"
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise BadInput(f"{shown}: {error.strerror}") from None
    if content.startswith(_NPY) or name.endswith(".npy"):
        return _array(content, shown)
    if name.endswith(".json"):
        return _from_json_file(content, kind, shown)
    if kind is Any and name == "-":
        try:
            return _json(content)
        except ValueError:
            return content
    kinds = [unwrapped(item) for item in alternatives(kind)] or [kind]
    binary = next((item for item in kinds if item in _BINARY_KINDS), bytes if kind is Any else None)
    if binary is not None:
        return binary(content)
    if str in kinds:
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise BadInput(f"{shown}: no UTF-8 text") from None
    return _from_json_file(content, kind, shown)


def _array(content: bytes, shown: str) -> Any:
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise BadInput(f"{shown}: no .npy file of numbers: {str(error).splitlines()[0]}") from None


def _from_json_file(content: bytes, kind: Any, shown: str) -> Any:
    try:
        data = _json(content)
    except ValueError as error:
        raise BadInput(f"{shown}: no JSON: {error}") from None
    try:
        return from_json(data, kind)
    except BadData as error:
        raise BadInput(f"{shown}: {error}") from None
