"""The errors rrpc raises: one class per status code, all of them ``RpcError``.

A handler that raises one of these has it raised again, same class and message, on the caller's side.
Any other exception in a handler reaches the caller as ``RemoteError``.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

__all__ = [
    "Aborted",
    "AddressInUse",
    "AlreadyExists",
    "Cancelled",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "ProtocolError",
    "RemoteError",
    "ResourceExhausted",
    "RpcError",
    "StatusCode",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "class_of",
    "goes_elsewhere",
    "unsent",
]


class StatusCode(enum.IntEnum):
    """Status codes of calls; names and numbers are those of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A call that failed. ``code`` says how, ``message`` says why in one line or a few.

    ``details`` are for programs: what a handler gives with ``raise rrpc.NotFound("no such row", details={"row": 7})``
    the caller has in ``error.details``. Values are what arguments may be, without large arrays and buffers.
    """

    code: ClassVar[StatusCode] = StatusCode.UNKNOWN
    metadata: Mapping[str, Any] = MappingProxyType({})
    """Metadata that the server sent with the error."""
    not_executed: bool = False
    """Whether it is certain that no handler has seen the call: making it again does nothing twice."""

    _declared: str = ""  # the name under which the interface declares it
    _answered: bool = False  # by a handler or an interceptor: its connection takes other calls

    def __init__(self, message: str = "", *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = {} if details is None else dict(details)

    def __str__(self) -> str:
        return self.message or self.code.name


class Cancelled(RpcError):
    """The caller cancelled the call."""

    code = StatusCode.CANCELLED


class Unknown(RpcError):
    """The call failed and nothing better is known."""

    code = StatusCode.UNKNOWN


class InvalidArgument(RpcError, TypeError, ValueError):
    """An argument has the wrong type, dtype, shape or value, is missing, or can't be sent.

    One status code covers what Python splits in two, so this is a TypeError and a ValueError.
    """

    code = StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(RpcError, TimeoutError):
    """The call, or the connection it waited for, did not finish within its timeout."""

    code = StatusCode.DEADLINE_EXCEEDED


class NotFound(RpcError):
    """The requested thing doesn't exist."""

    code = StatusCode.NOT_FOUND


class AlreadyExists(RpcError):
    """The thing to be created already exists."""

    code = StatusCode.ALREADY_EXISTS


class AddressInUse(AlreadyExists, OSError):
    """The address to listen on is taken. As of a socket it is an OSError too, with ``errno.EADDRINUSE``."""

    def __init__(self, message: str = "", *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, details=details)
        self.errno, self.strerror = errno.EADDRINUSE, message


class PermissionDenied(RpcError):
    """The caller is known and may not do this."""

    code = StatusCode.PERMISSION_DENIED


class ResourceExhausted(RpcError):
    """A limit was hit; the message names it."""

    code = StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(RpcError):
    """The system isn't in the state the call needs."""

    code = StatusCode.FAILED_PRECONDITION


class Aborted(RpcError):
    """The call gave way to another one."""

    code = StatusCode.ABORTED


class OutOfRange(RpcError):
    """The call went past the valid range."""

    code = StatusCode.OUT_OF_RANGE


class Unimplemented(RpcError):
    """The server has no such service or method."""

    code = StatusCode.UNIMPLEMENTED


class Internal(RpcError):
    """An invariant didn't hold."""

    code = StatusCode.INTERNAL


class Unavailable(RpcError, ConnectionError):
    """The peer can't be reached, went away, or takes no new calls. Trying again may help."""

    code = StatusCode.UNAVAILABLE


class DataLoss(RpcError):
    """Data is lost or damaged beyond repair."""

    code = StatusCode.DATA_LOSS


class Unauthenticated(RpcError):
    """The caller didn't prove who it is."""

    code = StatusCode.UNAUTHENTICATED


class ProtocolError(Internal):
    """The peer sent bytes that mean nothing in this protocol."""


class RemoteError(Unknown):
    """A handler raised an exception that isn't an ``RpcError``.

    ``type_name`` is the exception's class as the server names it, ``message`` its text, and
    ``remote_traceback`` the server's traceback where the server allows that, else None.
    """

    def __init__(self, type_name: str, message: str = "", remote_traceback: str | None = None) -> None:
        super().__init__(message)
        self.args = (type_name, message, remote_traceback)
        self.type_name = type_name
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        line = f"{self.type_name}: {self.message}" if self.message else self.type_name
        if self.remote_traceback is None:
            return line
        return f"{line}\n\nOn the server:\n{self.remote_traceback.rstrip()}"


_E = TypeVar("_E", bound=RpcError)


def unsent(error: _E) -> _E:
    """``error``, of a call that never left."""
    error.not_executed = True
    return error


def goes_elsewhere(error: RpcError) -> bool:
    """Returns whether to make the call over another connection: this one takes none, and no handler saw the call."""
    return isinstance(error, Unavailable) and error.not_executed and not error._answered


def class_of(code: int) -> type[RpcError]:
    """The class of a status code; ``Unknown`` for one that nobody knows."""
    return _CLASSES.get(code, Unknown)


_CLASSES = {int(cls.code): cls for cls in RpcError.__subclasses__()}
