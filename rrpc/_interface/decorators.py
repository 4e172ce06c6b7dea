"""The decorators ``service`` and ``method``, and the interface that they make of a class."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from rrpc.errors import RpcError

from .interface import Interface, Method, check_override, describe_method
from .principals import principal_texts

_C = TypeVar("_C", bound=type)
_F = TypeVar("_F", bound=Callable[..., Any])

_METHOD_MARK = "__rrpc_method__"
_INTERFACE = "__rrpc_interface__"
_ALLOW = "__rrpc_allow__"


@overload
def method(function: _F, /) -> _F: ...
@overload
def method(
    *, idempotent: bool = False, throws: Sequence[type[RpcError]] = (), allow: Iterable[str] | None = None
) -> Callable[[_F], _F]: ...
def method(
    function: Any = None,
    /,
    *,
    idempotent: bool = False,
    throws: Sequence[type[RpcError]] = (),
    allow: Iterable[str] | None = None,
) -> Any:
    """Mark a method of a service as one that clients may call.

    Args:
        function: The method.
        idempotent: Whether calling it twice does no more than once.
        throws: Errors that callers should be ready for, classes made with ``error``; any other error may come too.
        allow: The principals that may call it, such as ``["user:alice", "group:ml"]``; others get PermissionDenied,
            and the handler doesn't run. An empty list lets nobody in. None: what the service says, or else everybody.
            See ``docs/authorization.md``.

    Raises:
        TypeError: The decorator isn't on an instance method, or ``allow`` isn't a list.
        ValueError: ``allow`` has something that isn't a principal.
    """

    def mark(function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod, property)) or not hasattr(function, "__dict__"):
            inner = getattr(function, "fget", None) or getattr(function, "__func__", function)
            name = getattr(inner, "__qualname__", "").rpartition("<locals>.")[2]
            where = f"{name}: " if name else ""
            raise TypeError(f"{where}@rrpc.method goes on plain methods, not on {type(function).__name__}")
        setattr(function, _METHOD_MARK, {"idempotent": idempotent, "throws": tuple(throws)})
        if allow is not None:
            setattr(function, _ALLOW, principal_texts(allow, f"{function.__qualname__}()"))
        return function

    return mark if function is None else mark(function)


@overload
def service(cls: _C, /) -> _C: ...
@overload
def service(*, name: str | None = None, allow: Iterable[str] | None = None) -> Callable[[_C], _C]: ...
def service(cls: Any = None, /, *, name: str | None = None, allow: Iterable[str] | None = None) -> Any:
    """Make a class a service. Its methods are those marked with ``method``, inherited and overridden ones included.

    Args:
        cls: The class.
        name: The service's name on the wire; the class's own name by default.
        allow: The principals that may call its methods, but for those methods that have an ``allow`` of their own.

    Raises:
        TypeError: A method can't be called remotely, or ``allow`` isn't a list.
        ValueError: ``allow`` has something that isn't a principal.
    """

    def decorate(decorated: Any) -> Any:
        made = _decorate(decorated, name)
        if allow is not None:
            setattr(made, _ALLOW, principal_texts(allow, f"service {made.__name__}"))
        return made

    return decorate if cls is None else decorate(cls)


def allowed_by(cls: type, member: str) -> tuple[str, ...] | None:
    """Returns the principals that the code lets call a method of a service class; None: everybody.

    The innermost ``allow`` wins: that of the method in the class, then in its bases, then that of the service.
    """
    # `__dict__` and not getattr(): a method that overrides another has the mark of the nearest class that set one.
    of_methods = (getattr(base.__dict__.get(member), _ALLOW, None) for base in cls.__mro__)
    of_services = (base.__dict__.get(_ALLOW) for base in cls.__mro__)
    return next((allow for allow in (*of_methods, *of_services) if allow is not None), None)


def _decorate(cls: Any, name: str | None) -> Any:
    if not isinstance(cls, type):
        raise TypeError(f"@rrpc.service goes on a class, not on {type(cls).__name__}")
    name = cls.__name__ if name is None else name
    if not all(part.isidentifier() for part in name.split(".")):
        raise TypeError(f"a service can't be called {name!r}: use letters, digits, _ and dots")
    methods: dict[str, Method] = {}
    for member in _member_names(cls):
        found = getattr(cls, member)
        # getattr() gives the function within a staticmethod; the class's dict has the decorator's object.
        static = cls.__dict__.get(member)
        mark = _mark_of(cls, member)
        if isinstance(static, (staticmethod, classmethod)) and mark is not None:
            raise TypeError(
                f"{name}.{member}: @rrpc.method goes on plain methods, not on {type(static).__name__}"
            )
        if mark is not None:
            methods[member] = describe_method(name, member, found, **mark)
    if not methods:
        raise TypeError(f"{name} has no method marked with @rrpc.method")
    doc = cls.__doc__ or ""
    setattr(cls, _INTERFACE, Interface(name, _clean(doc), methods))
    return cls


def _mark_of(cls: type, member: str) -> dict[str, Any] | None:
    """Returns the options given to ``method`` for this member; None if it isn't marked.

    A method that overrides a marked method needs no mark of its own.
    """
    marks = (getattr(getattr(base, member, None), _METHOD_MARK, None) for base in cls.__mro__)
    return next((mark for mark in marks if mark is not None), None)


def _member_names(cls: type) -> list[str]:
    """Returns a class's member names in the order of their definition, base classes first."""
    return list(dict.fromkeys(member for base in reversed(cls.__mro__) for member in base.__dict__))


def _clean(doc: str) -> str:
    import inspect

    return inspect.cleandoc(doc)


def interface_of(thing: Any) -> Interface | None:
    """The interface of a service class or of its instance; None if it isn't a service.

    A class that isn't decorated itself is the service that it inherits from. TypeError where it can't be:
    it inherits several, or marks methods of its own.
    """
    cls = thing if isinstance(thing, type) else type(thing)
    interfaces = {base: base.__dict__[_INTERFACE] for base in cls.__mro__ if _INTERFACE in base.__dict__}
    if not interfaces:
        return None
    # In the order of the MRO, so the nearest class comes first.
    nearest, interface = next(iter(interfaces.items()))
    if nearest is not cls:
        _check_inherited(cls, nearest, interfaces)
    return typing.cast(Interface, interface)


def _check_inherited(cls: type, nearest: type, interfaces: dict[type, Interface]) -> None:
    interface = interfaces[nearest]
    apart = [other.name for base, other in interfaces.items() if not issubclass(nearest, base)]
    if apart:
        names = " and ".join([interface.name, *apart])
        raise TypeError(f"{cls.__name__} inherits from the services {names}: decorate it with @rrpc.service")
    for member in _member_names(cls):
        if member not in interface.methods and hasattr(getattr(cls, member, None), _METHOD_MARK):
            raise TypeError(
                f"{cls.__name__}.{member} is marked with @rrpc.method, but {cls.__name__} isn't decorated "
                f"with @rrpc.service and so no more than {interface.name}"
            )
    for member, method in interface.methods.items():
        found = getattr(cls, member)
        if found is not method.function:
            check_override(f"{cls.__name__}.{member}()", method, found)
