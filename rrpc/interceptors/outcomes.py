"""Status codes and messages that the ready-made interceptors report for a call's outcome."""

from __future__ import annotations

import sys

from rrpc.errors import RpcError, StatusCode

__all__ = ["code_of", "printable", "short_message", "within"]

_CHARS_MAX = 300


def code_of(error: BaseException | None) -> StatusCode:
    """The status code that a call's error travels with; OK without one."""
    if error is None:
        return StatusCode.OK
    if isinstance(error, RpcError):
        return error.code
    asyncio = sys.modules.get("asyncio")
    if isinstance(error, GeneratorExit) or (
        asyncio is not None and isinstance(error, asyncio.CancelledError)
    ):
        return StatusCode.CANCELLED
    return StatusCode.UNKNOWN if isinstance(error, Exception) else StatusCode.INTERNAL


def short_message(error: BaseException) -> str:
    """Returns the error as one short printable line for logs and spans, whatever text a peer put in it."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return printable(
        text if isinstance(error, RpcError) else f"{type(error).__name__}: {text}".removesuffix(": ")
    )


def printable(text: str) -> str:
    """Short, in one line, without control characters."""
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= _CHARS_MAX else f"{shown[: _CHARS_MAX - 3]}..."


def within(method: str, names: frozenset[str]) -> bool:
    """Whether ``names`` has the method or its service."""
    return method in names or method.rpartition(".")[0] in names
