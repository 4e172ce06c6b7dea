"""A line in the log for each call, on either side."""

# A call is logged where it ends, which may be any thread.

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Any

from rrpc._call.chain import Steps
from rrpc.errors import StatusCode
from rrpc.observe import EndedCall

from .base import ClientInterceptor, Interceptor, ServerInterceptor
from .outcomes import code_of, count_items, ended_call, printable, short_message, until_end

_USUAL = (StatusCode.OK, StatusCode.CANCELLED, StatusCode.NOT_FOUND, StatusCode.ALREADY_EXISTS)
_GRAVE = (StatusCode.UNKNOWN, StatusCode.INTERNAL, StatusCode.DATA_LOSS)


class _Logging(Interceptor):
    def __init__(
        self, logger: logging.Logger | str = "rrpc.calls", *, levels: Mapping[StatusCode, int] | None = None
    ) -> None:
        self._log = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._levels = {code: _level(code) for code in StatusCode} | dict(levels or {})

    def unary(self, call: Any) -> Steps:
        """Logs a call without streams when it has ended."""
        return until_end(call, self._ended, perf_counter())

    def stream(self, call: Any) -> Steps:
        """Logs a call with streams when it has ended."""
        seen = EndedCall(call.method)
        count_items(call, seen)
        return (yield from until_end(call, partial(self._ended, seen=seen), perf_counter()))

    def _ended(self, call: Any, began: float, error: BaseException | None, seen: Any = None) -> None:
        # Comes first, so that a call that isn't logged costs little.
        level = self._levels[code_of(error)]
        if not self._log.isEnabledFor(level):
            return
        ended = ended_call(call, error, seen)
        duration_ms = round((perf_counter() - began) * 1e3, 3)
        method = printable(ended.method)
        text = f"{method}: {ended.status} in {duration_ms} ms"
        extra: dict[str, Any] = {
            "rpc_side": self.side,
            "rpc_method": method,
            "rpc_code": ended.status,
            "rpc_duration_ms": duration_ms,
            "rpc_peer": ended.peer,
            "rpc_identity": ended.identity,
        }
        if ended.identity:
            text += f" for {printable(ended.identity)}"
        if seen is not None:
            text += f", {seen.items_sent} items sent and {seen.items_received} received"
            extra |= {"rpc_items_sent": seen.items_sent, "rpc_items_received": seen.items_received}
        if error is not None:
            extra["rpc_error"] = short_message(error)
            text += f": {extra['rpc_error']}"
        self._log.log(level, "%s %s", self.side, text, extra=extra)


def _level(code: StatusCode) -> int:
    if code in _USUAL:
        return logging.INFO
    return logging.ERROR if code in _GRAVE else logging.WARNING


class ClientLogging(_Logging, ClientInterceptor):
    """Logs each call that a client makes: method, status code, milliseconds, and of an error its message.

    The record's fields ``rpc_side``, ``rpc_method``, ``rpc_code``, ``rpc_duration_ms``, ``rpc_peer``, ``rpc_identity``,
    ``rpc_error``, ``rpc_items_sent`` and ``rpc_items_received`` have the same for programs.

    Args:
        logger: The logger that takes the records, or its name.
        levels: Levels of status codes, where they aren't these: OK, CANCELLED, NOT_FOUND and ALREADY_EXISTS are INFO;
            UNKNOWN, INTERNAL and DATA_LOSS are ERROR; the others are WARNING.
    """


class ServerLogging(_Logging, ServerInterceptor):
    """Logs each call that a server handles, once it is answered; the arguments are those of ``ClientLogging``."""
