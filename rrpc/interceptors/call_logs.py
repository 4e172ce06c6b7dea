"""A line in the log for each call, on either side."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from rrpc._call.chain import Steps
from rrpc.errors import StatusCode

from .base import ClientInterceptor, Interceptor, ServerInterceptor
from .outcomes import code_of, printable, short_message

__all__ = ["ClientLogging", "ServerLogging"]

_USUAL = (StatusCode.OK, StatusCode.CANCELLED, StatusCode.NOT_FOUND, StatusCode.ALREADY_EXISTS)
_GRAVE = (StatusCode.UNKNOWN, StatusCode.INTERNAL, StatusCode.DATA_LOSS)


class _Logging(Interceptor):
    def __init__(
        self, logger: logging.Logger | str = "rrpc.calls", *, levels: Mapping[StatusCode, int] | None = None
    ) -> None:
        self._log = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._levels = {code: _level(code) for code in StatusCode} | dict(levels or {})

    def stream(self, call: Any) -> Steps:
        began = perf_counter()
        counts = {"sent": 0, "received": 0}

        def counting(which: str) -> Any:
            def count(item: Any) -> Any:
                counts[which] += 1
                return item

            return count

        call.map_sent(counting("sent"))
        call.map_received(counting("received"))
        call.on_end(lambda error: self._ended(call, began, error, counts))
        return (yield call)

    def _ended(
        self, call: Any, began: float, error: BaseException | None, items: Mapping[str, int] | None = None
    ) -> None:
        code = code_of(error)
        level = self._levels[code]
        if not self._log.isEnabledFor(level):
            return
        duration_ms = round((perf_counter() - began) * 1e3, 3)
        method = printable(call.method)
        text = f"{method}: {code.name} in {duration_ms} ms"
        extra: dict[str, Any] = {
            "rpc_side": self.side,
            "rpc_method": method,
            "rpc_code": code.name,
            "rpc_duration_ms": duration_ms,
            "rpc_peer": call.peer,
        }
        if items is not None:
            text += f", {items['sent']} items sent and {items['received']} received"
            extra |= {f"rpc_items_{which}": count for which, count in items.items()}
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

    The record's fields ``rpc_side``, ``rpc_method``, ``rpc_code``, ``rpc_duration_ms``, ``rpc_peer``, ``rpc_error``,
    ``rpc_items_sent`` and ``rpc_items_received`` have the same for programs. ``levels`` says otherwise which level a
    status code has: OK, CANCELLED, NOT_FOUND and ALREADY_EXISTS are INFO; UNKNOWN, INTERNAL and DATA_LOSS are ERROR;
    the others are WARNING.
    """

    def unary(self, call: Any) -> Steps:
        """Logs a call without streams when it has ended."""
        began = perf_counter()
        try:
            result = yield call
        except BaseException as error:
            self._ended(call, began, error)
            raise
        self._ended(call, began, None)
        return result


class ServerLogging(_Logging, ServerInterceptor):
    """Logs each call that a server handles, as ``ClientLogging`` does, once it is answered."""

    def unary(self, call: Any) -> Steps:
        """Logs a call without streams when it has ended."""
        began = perf_counter()
        call.on_end(lambda error: self._ended(call, began, error))
        return (yield call)
