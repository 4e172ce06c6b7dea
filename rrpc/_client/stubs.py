"""Methods of generated clients: one class per method, which ``stub`` puts into the client's class."""

# Any thread of the client's process may call a stub. What stubs work out (`_last`, `_binding`, plans) is replaced as
# a whole and never changed in place, so two threads at worst do the same work twice.

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

from rrpc import _core
from rrpc._call.chain import Chain
from rrpc._call.outgoing import CallOptions, Prepared, prepare
from rrpc._channel import Channel, Connection, Contract
from rrpc._fork import process_lock
from rrpc._interface import MISSING, Interface, Method, OutSpec, Parameter, Plan, target_of
from rrpc._options import deadline_after
from rrpc.errors import RpcError, goes_elsewhere
from rrpc.metadata import MetadataLike

from . import begin_call
from .blocking_driver import run
from .blocking_guard import loop_here, refuse_in_coroutine
from .futures import Future

_R = TypeVar("_R")
_M = TypeVar("_M", bound="RemoteMethod")
_ITERATOR: Any = Iterator
_modules = sys.modules
_OPTIONS = ("timeout", "metadata", "out")
"""Of a call, in the order in which ``_call`` takes them."""
# Stands for no connection: no real one is this object.
_UNBOUND: tuple[Any, ...] = (object(), None, b"")


class Caller(Protocol):
    """A client, blocking or not, as its methods need it."""

    rpc_fingerprints: ClassVar[dict[str, str]]
    _rpc_contract: ClassVar[Contract | None]
    _channel: Channel
    _contract: Contract | None
    _options: CallOptions


class RemoteMethod:
    """Base of all methods of a generated client, including streaming ones (``rrpc/_client/stream_stubs.py``).

    A subclass has ``rpc_name`` and defines ``__call__`` with the method's own parameters, then the keyword-only
    ``timeout`` and ``metadata`` (unless the method has a parameter of that name). Its annotations are the checks.
    """

    rpc_name: ClassVar[str]
    rpc_idempotent: ClassVar[bool] = False
    rpc_errors: ClassVar[tuple[type[RpcError], ...]] = ()
    """Errors that the method declares: they are raised as these classes."""
    _plan: ClassVar[Plan]
    _is_generated: ClassVar[bool]
    __name__: str
    __call__: Callable[..., Any]

    def __init__(self, client: Caller) -> None:
        cls = type(self)
        # The checks come from the class's annotations, which are read when a client first uses the method.
        _compile(cls)
        self.__name__ = cls.rpc_name.rpartition(".")[2]
        self._typed = cls._plan.errors.typed
        self._channel: Channel = client._channel
        self._contract: Contract | None = client._contract
        self._options: CallOptions = client._options
        self._loop_here = loop_here()
        # Of the connection of the last call: (it, encoder, wire name).
        self._last = _UNBOUND
        self._binding: _core.MethodBinding | None = None

    def __repr__(self) -> str:
        return f"<remote method {self.rpc_name}>"

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":  # of a DirectMethod, too, which inspect can't look into
            return inspect.signature(self.__call__)
        raise AttributeError(f"{self!r} has no attribute {name!r}")

    def direct(self) -> Any:
        """Returns what is called in this one's place where the core can make calls: it needs no Python for them."""
        return self

    def bound(self, connection: Connection) -> tuple[Any, ...]:
        """Returns (connection, encoder, wire name) for calls over the connection."""
        last = self._last
        return last if last[0] is connection else self._bind(connection)

    def _bind(self, connection: Connection) -> tuple[Any, ...]:
        key = self._contract, type(self)
        # Shared by all clients of the class over this connection.
        found = connection.bound.get(key)
        if found is None:
            agreement = connection.agreement(self._contract)
            found = agreement.encoder(self._plan), self.rpc_name.encode()
            connection.bound[key] = found
        self._last = last = (connection, *found)
        # A server with other parameters needs Python's encoder, so the core isn't told of this connection.
        if self._binding is not None and found[0] == self._plan.encode_arguments:
            self._binding.bind(connection, connection.core, found[1])
        return last


class UnaryMethod(RemoteMethod, Generic[_R]):
    """The base of those without streams: callable, with ``start`` for a future.

    Where the result has an array, ``out`` is the last of the keywords.
    """

    _is_async: ClassVar[bool] = False
    """Whether it is called in event loops, and its calls are awaited."""

    def __init__(self, client: Caller) -> None:
        super().__init__(client)
        self._decode = self._plan.decode_result
        self._go_course: Callable[[Chain], Any] = run
        """Makes a call by its course, and returns its result or, in event loops, its future."""

    def direct(self) -> Any:
        """Returns a ``_core.DirectMethod``, which has this one's attributes and leaves to it what isn't plain."""
        compiled = self._plan.compiled
        if compiled is None or not self._options.plain or not _hands_over(type(self)):
            return self
        parameters = self._plan.parameters
        taken = inspect.signature(self.__call__).parameters.keys() - set(self._plan.names)
        self._binding = _core.MethodBinding(
            compiled,
            tuple(None if p.positional_only else sys.intern(p.name) for p in parameters),
            self._plan.positional_count,
            tuple(... if p.default is MISSING else p.default for p in parameters),
            frozenset(map(sys.intern, taken)),
            self._channel,
            self._options.timeout,
            self._options.packed,
        )
        return _core.DirectMethod(self, self._binding, self._is_async)

    def _call(
        self,
        arguments: tuple[Any, ...],
        timeout: float | None,
        metadata: MetadataLike | None = None,
        out: Any = None,
    ) -> _R:
        # Two cheap looks on each call: no loop can run before somebody has imported asyncio.
        if self._loop_here is None and "asyncio" in _modules:
            self._loop_here = loop_here()  # it was imported after the method was first used
        if self._loop_here is not None and self._loop_here() is not None:
            refuse_in_coroutine(f"{self.rpc_name}()", "the method of the asyncio client", 2)
        value: _R = begin_call.call(self._prepare(arguments, timeout, metadata, out))
        return value

    def _otherwise(
        self, error: RpcError, arguments: tuple[Any, ...], left: float | None, metadata: MetadataLike | None
    ) -> _R:
        """Makes the call of a ``DirectMethod`` that failed with ``error`` elsewhere, where that is right."""
        if not goes_elsewhere(error):
            try:
                raise self._typed(error) from None
            finally:
                del error  # what is raised knows this frame
        # The core's call was plain until here; what is left of its time is the deadline of the course.
        value: _R = self._go_course(self.within(arguments, left, metadata).course())
        return value

    def _decode_direct(self, payload: bytes, blocks: list[Any] | None, arguments: tuple[Any, ...]) -> _R:
        """Decodes the result of a ``DirectMethod`` call where Python is to do it."""
        return self.decoder(arguments)(payload, blocks)

    def _start(
        self,
        arguments: tuple[Any, ...],
        timeout: float | None,
        metadata: MetadataLike | None = None,
        out: Any = None,
    ) -> Future[_R]:
        return begin_call.start(self._prepare(arguments, timeout, metadata, out))

    def _prepare(
        self, arguments: tuple[Any, ...], timeout: float | None, metadata: MetadataLike | None, out: Any
    ) -> Prepared:
        request = _Request(self, arguments, None if out is None else target_of(out))
        return prepare(self._channel, request, self._options, timeout, metadata)

    def within(
        self, arguments: tuple[Any, ...], left: float | None, metadata: MetadataLike | None
    ) -> Prepared:
        """Prepares a call for which the core has ``left`` seconds left, and which isn't plain any more."""
        request, deadline = _Request(self, arguments, None), deadline_after(left)
        return Prepared(self._channel, request, self._options, deadline, metadata)

    def decoder(self, arguments: tuple[Any, ...]) -> Callable[..., _R]:
        """Returns what decodes the reply to a call with these arguments, given payload and blocks."""
        sizes = self._plan.sizes_of(arguments)
        return self._decode if sizes is None else functools.partial(self._decode, sizes=sizes)

    def _start_otherwise(
        self, error: RpcError, arguments: tuple[Any, ...], left: float | None, metadata: MetadataLike | None
    ) -> Future[_R]:
        """Starts a call elsewhere that a ``DirectMethod`` couldn't start, where that is right."""
        if not goes_elsewhere(error):
            try:
                raise error
            finally:
                del error  # what is raised knows this frame
        return begin_call.start_course(self.within(arguments, left, metadata).course())


class _Request:
    """A call of a stub."""

    __slots__ = ("arguments", "out", "stub")

    def __init__(self, stub: UnaryMethod[Any], arguments: tuple[Any, ...], out: Any) -> None:
        self.stub = stub
        self.arguments = arguments
        self.out = out

    @property
    def method(self) -> str:
        return self.stub.rpc_name

    @property
    def idempotent(self) -> bool:
        return self.stub.rpc_idempotent

    def encode(self, connection: Connection) -> tuple[bytes, bytes, Any]:
        _, encode, name = self.stub.bound(connection)
        payload, message = encode(self.arguments, None if self.out is None else OutSpec.of(self.out))
        return name, payload, message

    def decode(self, payload: bytes, blocks: list[Any] | None, message: Any) -> Any:
        return self.stub._decode(payload, blocks, self.out, message.sizes)

    def decoder(self, message: Any) -> Callable[[bytes, Any], Any]:
        stub = self.stub
        if self.out is None and message.sizes is None:
            return stub._decode
        return functools.partial(stub._decode, out=self.out, sizes=message.sizes)

    def error(self, error: RpcError) -> RpcError:
        return self.stub._typed(error)

    def named(self) -> Mapping[str | int, Any]:
        return dict(zip(self.stub._plan.names, self.arguments, strict=True))

    def check(self, result: Any) -> Any:
        return self.stub._plan.check_result(result, self.arguments)


def _hands_over(cls: type[UnaryMethod[Any]]) -> bool:
    """Returns whether calls do no more than hand their arguments over, as generated methods do.

    Somebody's own ``__call__`` or ``start`` that does more must run.
    """
    known = cls.__dict__.get("_is_generated")
    if known is None:
        if cls._is_async:
            known = _is_generated(cls, "__call__", "await {}._start", "async ")
        else:
            known = _is_generated(cls, "__call__", "{}._call") and _is_generated(cls, "start", "{}._start")
        cls._is_generated = known
    return bool(known)


def _is_generated(cls: type[RemoteMethod], method: str, callee: str, kind: str = "") -> bool:
    """Compares a method's code with what its body would be compiled to."""
    function = getattr(cls, method, None)
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    positional, keywords = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:keywords]
    given = [name for name in _OPTIONS if name in names and name not in cls._plan.names]
    if given != list(_OPTIONS[: len(given)]):
        return False
    star = ["*"] if keywords > positional else []
    parameters = ", ".join([*names[:positional], *star, *names[positional:]])
    arguments = "".join(f"{name}, " for name in cls._plan.names)
    call = f"{callee.format(names[0])}(({arguments}), {', '.join(given)})"
    doc = "" if function.__doc__ is None else f"{function.__doc__!r}; "
    for body in (f"return {call}", call):  # the second one where there is no result
        made: dict[str, Any] = {}
        # The text holds names and the docstring of a class in this process, nothing that a peer sent.
        exec(f"{kind}def made({parameters}): {doc}{body}", {}, made)
        if _same(code, made["made"].__code__):
            return True
    return False


def _same(one: types.CodeType, other: types.CodeType) -> bool:
    return (one.co_code, one.co_names, one.co_consts) == (other.co_code, other.co_names, other.co_consts)


_publishing = process_lock()


def _compile(cls: type[RemoteMethod]) -> Plan:
    """Returns the class's plan. All stubs have the same one, as connections remember what they work out by it."""
    if "_plan" not in cls.__dict__:
        plan = _plan_of(cls)
        with _publishing:
            if "_plan" not in cls.__dict__:  # another thread may have been quicker
                cls._plan = plan
    return cls._plan


def _plan_of(cls: type[RemoteMethod]) -> Plan:
    """Makes the plan from the signature of ``__call__``."""
    function = cls.__dict__["__call__"]
    hints = typing.get_type_hints(function, include_extras=True)
    _, *parameters = inspect.signature(function).parameters.values()
    own = itertools.takewhile(lambda p: p.name != "timeout", parameters)  # the caller's options come last
    described = [
        Parameter(p.name, hints[p.name], p.default, p.kind is p.KEYWORD_ONLY, p.kind is p.POSITIONAL_ONLY)
        for p in own
    ]
    return Plan(cls.rpc_name, described, _result(hints["return"]), cls.rpc_errors)


def _result(hint: Any) -> Any:
    """Returns the interface's result type: ``Iterator[T]`` for a stream of T, otherwise ``hint``."""
    if not getattr(typing.get_origin(hint), "gives_items", False):
        return hint
    return _ITERATOR[typing.get_args(hint)[0]]


class _Stub(Generic[_M]):
    """A method in a client class: a function of (client, ...) from the class, a callable from a client."""

    def __init__(self, kind: type[_M]) -> None:
        self.kind = kind
        self.__doc__ = kind.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        # Python's own errors for missing and unexpected arguments then name the method as the user does.
        for function, shown in (("__call__", name), ("start", f"{name}.start")):
            if function in self.kind.__dict__:
                self.kind.__dict__[function].__qualname__ = f"{owner.__name__}.{shown}"

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: object, owner: type) -> _M: ...
    def __get__(self, client: Any, owner: type) -> Callable[..., Any] | _M:
        if client is None:
            return self._function()
        found = self.kind(client).direct()
        if (
            inspect.getattr_static(owner, self._name) is self
        ):  # else a subclass has its own, which comes here by super()
            client.__dict__[self._name] = found  # from now on found without coming here
        return typing.cast(_M, found)

    def _function(self) -> Callable[..., Any]:
        """Makes the function that the class shows as the method, for help(), inspect and mocks."""
        name = self._name

        @functools.wraps(self.kind.__call__)
        def function(client: object, /, *args: Any, **kwargs: Any) -> Any:
            return getattr(client, name)(*args, **kwargs)

        function.__name__ = name
        return function


def contract_of(cls: type[Caller]) -> Contract | None:
    """Returns the contract that a client's connections must agree on; None without fingerprints."""
    if not cls.rpc_fingerprints:
        return None
    found: Contract | None = cls.__dict__.get("_rpc_contract")
    if found is None:
        found = cls._rpc_contract = Contract(cls.rpc_fingerprints, functools.partial(_interface_of, cls))
    return found


def _interface_of(cls: type[Caller], service: str) -> Interface:
    """Builds the interface of a service from the methods of the client's class."""
    methods: dict[str, Method] = {}
    for member in [member for base in reversed(cls.__mro__) for member in base.__dict__.values()]:
        # A client class may have the methods of several services.
        if isinstance(member, _Stub) and member.kind.rpc_name.rpartition(".")[0] == service:
            plan = _compile(member.kind)
            function = member.kind.__dict__["__call__"]
            result = _result(typing.get_type_hints(function, include_extras=True)["return"])
            methods[plan.name.rpartition(".")[2]] = Method(
                plan.name, "", plan.declared, result, function, errors=member.kind.rpc_errors
            )
    return Interface(service, "", methods)


def stub(kind: type[_M]) -> _Stub[_M]:
    """Put a method's class into a client class; for generated code."""
    return _Stub(kind)
