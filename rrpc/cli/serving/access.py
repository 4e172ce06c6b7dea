"""The access log: a line for each call."""

from __future__ import annotations

import json
import logging
import os
import time

from rrpc.cli.common import BadInput
from rrpc.observe import ServedCall

from .log_format import utc

_METHOD_CHARS = 200


class AccessLog:
    """Appends to a file ("-": stdout) with one write for each call, so that several processes may share it."""

    def __init__(self, path: str, log_format: str) -> None:
        self._path = path
        self._line = _as_json if log_format == "json" else _as_text
        self._complained = False
        self._fd = self._open()

    def __call__(self, call: ServedCall) -> None:
        """Writes the line of a call. A failure to write is logged once."""
        line = self._line(time.time(), call)
        try:
            os.write(self._fd, f"{line}\n".encode(errors="replace"))
        except OSError as error:  # a full disk is no reason to fail calls
            if not self._complained:
                logging.getLogger("rrpc.serve").error("the access log %s: %s", self._path, error)
            self._complained = True

    def reopen(self) -> None:
        """After the file was moved away: go on in a new one. The old one stays in use where that fails."""
        if self._path == "-":
            return
        try:
            fresh = self._open()
        except BadInput as error:
            logging.getLogger("rrpc.serve").error("%s", error)
            return
        os.dup2(fresh, self._fd)  # a worker may be writing to it
        os.close(fresh)
        self._complained = False

    def _open(self) -> int:
        if self._path == "-":
            return 1
        try:
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise BadInput(f"--access-log {self._path}: {error.strerror}") from None


def _as_json(now: float, call: ServedCall) -> str:
    line = {
        "time": utc(now),
        "peer": call.peer,
        "identity": call.identity,
        "method": call.method[:_METHOD_CHARS],
        "code": call.status,
        "duration_ms": _ms(call.total_ns),
        "fetch_ms": _ms(call.fetch_ns),
        "queue_ms": _ms(call.queue_ns),
        "handler_ms": _ms(call.handler_ns),
        "request_bytes": call.request_bytes,
        "request_bytes_read": call.request_bytes_read,
        "reply_bytes": call.reply_bytes,
        "reply_bytes_lifted": call.reply_bytes_lifted,
        "items_received": call.items_received,
        "items_sent": call.items_sent,
    }
    return json.dumps(line)


def _as_text(now: float, call: ServedCall) -> str:
    items = f" items={call.items_received}+{call.items_sent}"
    who = f" who={_word(call.identity)}" if call.identity else ""
    return (
        f"{utc(now)} {_word(call.peer)} {_word(call.method[:_METHOD_CHARS])} {call.status} {_ms(call.total_ns)}ms"
        f" fetch={_ms(call.fetch_ns)}ms queue={_ms(call.queue_ns)}ms handler={_ms(call.handler_ns)}ms"
        f" in={call.request_bytes}+{call.request_bytes_read} out={call.reply_bytes}+{call.reply_bytes_lifted}"
        f"{items if call.items_received or call.items_sent else ''}{who}"
    )


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)


def _word(text: str) -> str:
    """One field of the line, whatever a stranger put in it."""
    return text if text.isprintable() and text and " " not in text and '"' not in text else json.dumps(text)
