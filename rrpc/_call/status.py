"""Conversion of a call's exception to a status code, message and details for the wire, and back."""

# `status_of` and `conclude` run on a server, in the worker or loop that has run the handler. `from_status` runs in
# whichever thread the core raises an error in; all that it is given is the peer's, and may be of any type.

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from rrpc._interface.declared_errors import declared
from rrpc.codec import Message, Refused, decode, encode
from rrpc.errors import Internal, ProtocolError, RemoteError, RpcError, StatusCode, Unavailable, class_of
from rrpc.metadata import unpack

if TYPE_CHECKING:
    from .context import Context

# In characters. A handler's exception may have a text of any length.
_MESSAGE_CHARS = 16_384
_TRACEBACK_CHARS = 65_536

# Keys of the map that travels beside code and message; what the user calls details is one entry of it.
_TYPE, _TRACEBACK, _PROTOCOL, _DETAILS, _DECLARED = "type", "traceback", "protocol", "details", "error"
_ANSWERED = "answered"


class Status(NamedTuple):
    """Status that a server sends for a failed call."""

    code: int
    message: str
    facts: bytes
    """Type, traceback and details, encoded; empty where there are none."""


def status_of(method: str, error: BaseException, tracebacks: bool = False, own_frames: int = 1) -> Status:
    """The status for what the handler of ``method`` raised; logged is what isn't an ``RpcError``, and Internal.

    Tracebacks leave out the first ``own_frames``: those that called the handler, and not the user's.
    """
    if isinstance(error, RemoteError):  # from a call that the handler made itself
        return _status(
            error.code, error.message, _origin(error.type_name, error.remote_traceback, tracebacks)
        )
    if isinstance(error, RpcError):
        facts: dict[str, Any] = {_PROTOCOL: True} if isinstance(error, ProtocolError) else {}
        try:
            name, details = declared(error)
        except Internal as fault:
            _log("%s(): %s", method, fault)
            return _status(fault.code, f"{method}(): {fault}", {})
        facts |= {_DECLARED: name} if name else {}
        facts |= {_DETAILS: details} if details else {}
        facts |= {_ANSWERED: True} if isinstance(error, Unavailable) else {}
        if type(error) is Internal:  # the server's own mistake, a result that isn't as declared above all
            _log("%s() fails with INTERNAL: %s", method, error)
        return _status(error.code, str(error), facts, method)
    _log("%s() raised", method, exc_info=error)
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if not isinstance(error, Exception):
        return _status(StatusCode.INTERNAL, f"{method}(): the handler raised {name}", {})
    return _status(StatusCode.UNKNOWN, _text(error), _origin(name, _format(error, own_frames), tracebacks))


def conclude(context: Context, error: BaseException | None, instead: tuple[int, str] | None) -> None:
    """Ends the context of a call that was answered with ``error`` or a result, and tells its interceptors.

    ``instead`` is the error that the core sent in place of that answer. It is logged where the server is the cause.
    """
    context.end()
    if instead is not None:
        error = from_status(*instead)
        if error.code not in (StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED):
            _log("%s(): the result can't be sent: %s", context.method, error)
    if context.on_end is not None:
        context.on_end(error)


def _status(code: StatusCode, message: str, facts: dict[str, Any], method: str = "") -> Status:
    return Status(int(code), _sendable(message[:_MESSAGE_CHARS]), _encode(facts, method) if facts else b"")


def _origin(type_name: str, traceback: str | None, shown: bool) -> dict[str, Any]:
    origin = {_TYPE: type_name}
    if shown and traceback:
        # The end of a traceback is kept, as the error and the innermost frames are there.
        origin[_TRACEBACK] = _sendable(traceback[-_TRACEBACK_CHARS:])
    return origin


def _sendable(text: str) -> str:
    """Replaces lone surrogates, which can't be sent."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _encode(facts: dict[str, Any], method: str) -> bytes:
    message = Message()
    try:
        encoded = encode(facts, message)
        # A status has no buffers beside it: what would be sent as one can't go with it.
        reason = "it has a buffer of 16 KiB or more" if message else ""
    except Refused as refused:
        reason = "".join([*refused.path, ": ", refused.reason])
    if not reason:
        return encoded
    _log("%s(): the details of its error can't be sent and are left out: %s", method, reason)
    facts.pop(_DETAILS)
    return encode(facts, Message()) if facts else b""


def _format(error: BaseException, own_frames: int) -> str:
    """The traceback from the handler on."""
    import traceback

    start = error.__traceback__
    for _ in range(own_frames):
        start = None if start is None else start.tb_next
    lines = traceback.format_exception(type(error), error, start)
    return "".join(lines)


def _text(error: BaseException) -> str:
    # `__str__` may be the user's code.
    try:
        return str(error)
    except Exception:
        return "(its message can't be shown)"


def from_status(
    code: int,
    message: str,
    protocol_error: bool = False,
    facts: bytes = b"",
    metadata: bytes = b"",
    not_executed: bool = False,
) -> RpcError:
    """The exception for a status; a code that nobody knows becomes ``Unknown``."""
    error = _error(code, message, protocol_error, _decode(facts) if facts else {})
    error.not_executed = not_executed
    if metadata:
        with suppress(ProtocolError):  # whatever the peer put there, its code and message still count
            error.metadata = unpack(metadata)
    return error


def _error(code: int, message: str, protocol_error: bool, facts: dict[Any, Any]) -> RpcError:
    if protocol_error or facts.get(_PROTOCOL) is True:
        return ProtocolError(message)
    type_name = facts.get(_TYPE)
    if isinstance(type_name, str):
        traceback = facts.get(_TRACEBACK)
        return RemoteError(type_name, message, traceback if isinstance(traceback, str) else None)
    error = class_of(code)(message)
    details, name = facts.get(_DETAILS), facts.get(_DECLARED)
    # An entry of the wrong type is left out: code and message count all the same.
    if isinstance(details, dict):
        error.details = details
    if isinstance(name, str):
        error._declared = name
    # Set where a handler raised Unavailable itself: such an error is no sign that the connection or the server is lost.
    error._answered = facts.get(_ANSWERED) is True
    return error


def _decode(facts: bytes) -> dict[Any, Any]:
    try:
        decoded = decode(facts)
    except ProtocolError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _log(text: str, *facts: object, exc_info: BaseException | None = None) -> None:
    import logging

    logging.getLogger("rrpc.server").error(text, *facts, exc_info=exc_info)
