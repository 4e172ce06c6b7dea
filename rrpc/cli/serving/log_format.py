"""The log on stderr, as text or as JSON objects, and what rrpc-serve says of itself."""

from __future__ import annotations

import datetime
import json
import logging
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def utc(seconds: float) -> str:
    """RFC 3339, with microseconds."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """An object in a line; what was given as ``extra=`` is among its members."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as a line of JSON."""
        line: dict[str, Any] = {
            "time": utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, _ = record.exc_info
            line["exception"] = kind.__qualname__
            line["traceback"] = "".join(traceback.format_exception(kind, error, record.exc_info[2]))
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logging(log_format: str, level: str) -> None:
    """Sends the log to stderr, as text or as a JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(text))
    logging.basicConfig(handlers=[handler])
    set_level(level)


def set_level(level: str) -> None:
    """Sets the level from which the log has messages."""
    logging.getLogger().setLevel(level.upper())


def announce(log_format: str, level: str, message: str, text: str, **fields: object) -> None:
    """Say ``text`` of the process itself, whatever the log level: on stdout, or on stderr from a warning on.

    As JSON it is ``message`` with ``fields``.
    """
    if log_format == "json":
        head = {"time": utc(time.time()), "level": level, "logger": "rrpc.serve", "message": message}
        text = json.dumps(head | fields, ensure_ascii=False)
    else:
        text = f"rrpc-serve: {text}"
    print(text, file=sys.stdout if level == "info" else sys.stderr, flush=True)


def announce_serving(log_format: str, services: str, addresses: Sequence[str], metrics_url: str) -> None:
    """The start-up lines: a server listens."""
    for address in addresses:
        text = f"{services} on {address}"
        announce(log_format, "info", "serving", text, services=services, address=address)
    if metrics_url:
        url = f"{metrics_url}/metrics"
        announce(log_format, "info", "metrics", f"metrics at {url}", url=url)
