"""Errors that interfaces declare: classes with fields, which reach the caller as what they are."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc.codec import Record
from rrpc.errors import Internal, ProtocolError, RemoteError, RpcError

from .checks import compile_check
from .mismatch import Mismatch
from .records import RecordCheck

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python has it from 3.11 on, and nothing but type checkers looks at it

    def dataclass_transform(**facts: Any) -> Any:
        return lambda decorator: decorator


_E = TypeVar("_E", bound=type[RpcError])
OF_EVERY_ERROR = frozenset(name for name in dir(RpcError) if name[0] != "_")
OF_EVERY_ERROR |= {"details", "message", "add_note"}  # the last only from Python 3.11 on
"""What isn't the name of a field."""


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def error(cls: _E, /) -> _E:
    """Makes a subclass of a status's class, such as ``rrpc.NotFound``, an error that methods may declare.

    ::

        @rrpc.error
        class NotTrained(rrpc.FailedPrecondition):
            missing: int

    Its annotated attributes are its fields, as a dataclass has them. A method marked with
    ``@rrpc.method(throws=[NotTrained])`` may raise ``NotTrained(missing=3)``, and its caller catches just that. The
    message is what ``__str__`` gives, or made of the docstring and the fields.
    """
    if not (isinstance(cls, type) and issubclass(cls, RpcError)) or issubclass(
        cls, (RemoteError, ProtocolError)
    ):
        raise TypeError(
            f"@rrpc.error goes on a subclass of a status's class such as rrpc.NotFound, not on {cls!r}"
        )
    if "__init__" in cls.__dict__:
        raise TypeError(f"{cls.__name__}: @rrpc.error makes __init__ of the fields; leave it out")
    # Exceptions are told apart by identity, as Python's own are.
    made: Any = dataclasses.dataclass(eq=False)(cls)
    for field in dataclasses.fields(made):
        if field.name in OF_EVERY_ERROR:
            raise TypeError(f"{cls.__name__}: every error has {field.name!r} itself; choose another name")
    made.__init__ = _constructor(made.__init__)
    made.__reduce__ = _reduce
    if cls.__str__ is RpcError.__str__:
        made.__str__ = _str
    made._declared = cls.__name__
    return typing.cast("_E", made)


def _constructor(make: Any) -> Any:
    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **fields: Any) -> None:
        RpcError.__init__(self)
        make(self, *args, **fields)
        self.details = _fields(self)
        self.message = str(self)

    return __init__


def _reduce(self: Any) -> Any:
    # Past __init__, which would make details and message anew.
    return _blank, (type(self),), self.__dict__


def _blank(cls: type[RpcError]) -> RpcError:
    return cls.__new__(cls)


def _str(self: Any) -> str:
    return self.message or _default_message(self)


def _default_message(error: RpcError) -> str:
    doc = type(error).__doc__ or ""
    first = "" if doc.startswith(f"{type(error).__name__}(") else doc.strip().partition("\n")[0].rstrip(". ")
    fields = ", ".join(f"{name}={value!r:.80}" for name, value in _fields(error).items())
    return f"{first or type(error).__name__}{f' ({fields})' if fields else ''}"


def _fields(error: Any) -> dict[str, Any]:
    return {field.name: getattr(error, field.name) for field in dataclasses.fields(error) if field.init}


def is_declared(cls: Any) -> bool:
    """Returns whether it is a class that ``error`` has made."""
    return isinstance(cls, type) and issubclass(cls, RpcError) and bool(cls._declared)


@functools.lru_cache(maxsize=1024)
def _check(cls: Any) -> RecordCheck:
    return RecordCheck(cls, compile_check)


def declared(error: RpcError) -> tuple[str, dict[str, Any]]:
    """Returns the data sent with an error's code and message: its name, and its fields or details.

    The name is empty if the error has none. Raises Internal if a field doesn't match its annotation.
    """
    cls: Any = type(error)
    if not is_declared(cls):
        return error._declared, error.details
    try:
        return cls._declared, _fields(_check(cls)(error))
    except Mismatch as mismatch:
        raise Internal(f"the error {cls.__name__}{mismatch.path} isn't as declared: {mismatch}") from None


class DeclaredErrors:
    """The classes that one method declares."""

    def __init__(self, classes: Iterable[type[RpcError]]) -> None:
        self._classes = {cls.__name__: cls for cls in classes}

    def typed(self, error: RpcError) -> RpcError:
        """``error`` as the class that it is declared as. One that isn't, or doesn't fit, stays what it is."""
        cls: Any = self._classes.get(error._declared)
        # Name and code are the peer's, which may send a pair that doesn't go together.
        if cls is None or cls.code is not error.code or isinstance(error, cls):
            return error
        fields = Record(error.details)
        fields.type_name = cls.__name__
        try:
            typed: RpcError = _check(cls)(fields)
        except Mismatch:
            return error
        typed.message, typed.metadata, typed.not_executed = error.message, error.metadata, error.not_executed
        typed._answered = error._answered
        return typed
