"""Calls' ends, as the ready-made interceptors see and report them."""

# Runs where the call does; `on_end` may come on any thread.

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from rrpc._call.chain import Steps
from rrpc.errors import RpcError, StatusCode
from rrpc.observe import EndedCall

# Characters. The text may be a peer's.
_CHARS_MAX = 300
_OK = StatusCode.OK  # which takes longer to look up than to return


def until_end(call: Any, ended: Callable[..., object], begun: Any) -> Steps:
    """Makes the call, and once it has ended calls ``ended(call, begun, error)``; the error may be None."""
    # Such calls end after their yield: those with streams, and all at a server.
    if hasattr(call, "on_end"):
        call.on_end(partial(ended, call, begun))
        return (yield call)
    try:
        result = yield call
    except BaseException as error:
        ended(call, begun, error)
        raise
    ended(call, begun, None)
    return result


def count_items(call: Any, record: Any) -> None:
    """Counts the items of a call with streams in ``items_sent`` and ``items_received`` of ``record``."""

    def sent(item: Any) -> Any:
        record.items_sent += 1
        return item

    def received(item: Any) -> Any:
        record.items_received += 1
        return item

    call.map_sent(sent)
    call.map_received(received)


def ended_call(call: Any, error: BaseException | None, seen: EndedCall | None = None) -> EndedCall:
    """Returns the record of a call that has ended; it is ``seen``, if that counted the items."""
    ended = EndedCall(call.method) if seen is None else seen
    ended.peer, ended.code = call.peer, code_of(error)
    return ended


def code_of(error: BaseException | None) -> StatusCode:
    """The status code that a call's error travels with; OK without one."""
    if error is None:
        return _OK
    if isinstance(error, RpcError):
        return error.code
    # Not imported for this: where nobody has imported it, no task was cancelled.
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
    """Returns whether ``names`` has the method or its service."""
    return method in names or method.rpartition(".")[0] in names
