"""Clients: the base of generated ones, usable untyped too, and the futures their calls give."""

from __future__ import annotations

import functools
import inspect
import threading
import typing
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar, overload

from . import _core
from .codec import decode
from .errors import RpcError
from .options import merged
from .service import Interface, Method, OutSpec, Parameter, Plan, untyped_request
from .versions import Agreement, agree

__all__ = ["Client", "Future", "UnaryMethod", "connect", "stub"]

_T = TypeVar("_T")
_C = TypeVar("_C", bound="Client")
_R = TypeVar("_R")
_M = TypeVar("_M", bound="UnaryMethod[Any]")
_futures_lock = threading.Lock()
_BY_NAME = Agreement()


class Future(Generic[_T]):
    """A call in flight. Method names and meaning are those of :class:`concurrent.futures.Future`.

    Waiting drives the connection. A failed call raises its :class:`RpcError`, a cancelled one
    :class:`Cancelled`; TimeoutError (not an RpcError) means that it isn't done yet.
    """

    __slots__ = ("__weakref__", "_call", "_callbacks", "_decode", "_error", "_out", "_value")

    def __init__(self, call: _core.Call, decode: Callable[..., _T], out: Any = None) -> None:
        self._call = call
        self._decode: Callable[..., _T] | None = decode
        self._out = out
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[_T]], object]] | None = None

    def result(self, timeout: float | None = None) -> _T:
        """The call's result, waiting for it at most ``timeout`` seconds."""
        decode = self._decode
        if decode is not None:
            try:
                payload, blocks = self._call.result(timeout)
                self._end(decode(payload, blocks, self._out), None)
            except RpcError as error:
                self._end(None, error)
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the traceback would hold the future, and that its connection, until a collection
        return self._value

    def _end(self, value: Any, error: RpcError | None) -> None:
        with _futures_lock:
            if self._decode is not None:  # else another thread was first: all get the same value
                self._value: _T = value
                self._error = error
                self._decode = self._out = None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What :meth:`result` would raise, or None."""
        try:
            self.result(timeout)
        except RpcError as error:
            return error
        return None

    def done(self) -> bool:
        """Whether the call has ended, in whatever way."""
        return self._call.done()

    def running(self) -> bool:
        """Whether the call has not ended."""
        return not self._call.done()

    def cancel(self) -> bool:
        """Cancel the call; False if it had ended."""
        return self._call.cancel()

    def cancelled(self) -> bool:
        """Whether the call ended by :meth:`cancel`."""
        return self._call.cancelled()

    def add_done_callback(self, callback: Callable[[Future[_T]], object]) -> None:
        """Have ``callback(self)`` called once the call has ended, on whatever thread; at once if it has."""
        with _futures_lock:
            first = self._callbacks is None
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if first or self._call.done():
            self._call.on_done(self._run_callbacks) if first else self._run_callbacks()

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "finished" if self.done() else "running"
        return f"<rrpc.Future at {id(self):#x}, {state}>"

    def _run_callbacks(self) -> None:
        with _futures_lock:
            callbacks, self._callbacks = self._callbacks or [], []
        for callback in callbacks:
            self._run(callback)

    def _run(self, callback: Callable[[Future[_T]], object]) -> None:
        try:
            callback(self)
        except Exception:
            import logging

            logging.getLogger("rrpc.client").exception("a done callback raised")


class Client:
    """A connection to a server.

    ``address`` is ``rrpc://host:port`` (the best way both ends share, out of those that the option
    ``transports`` lists), or ``shm://``, ``verbs://``, ``tcp://`` to insist on one. ``timeout`` is the
    default for calls, in seconds; None sets no deadline. ``poll`` is "adaptive", "busy" or "event". Other
    ``options`` are the transport's; a name that isn't one raises TypeError. Raises Unavailable or
    DeadlineExceeded when there is no connection within ``connect_timeout`` seconds; a generated client raises
    FailedPrecondition where the server's version of the interface doesn't fit its own.

    A client may be used from many threads. After a fork the child needs a client of its own.
    """

    rpc_fingerprints: ClassVar[dict[str, str]] = {}
    """Of a generated client: the interface of each service, by its name."""

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = None,
        connect_timeout: float | None = 10.0,
        poll: str = "adaptive",
        **options: Any,
    ) -> None:
        if not isinstance(address, str):
            raise TypeError(f"address must be a str such as rrpc://host:port, not {type(address).__name__}")
        self._timeout = timeout
        self._address = address
        end = None if connect_timeout is None else monotonic() + connect_timeout
        self._core = _core.Client(address, merged({"poll": poll, **options}), connect_timeout)
        self._agreement = self._agree(end) if self.rpc_fingerprints else _BY_NAME
        if address.startswith("rrpc://"):
            _log_choice(self._core)

    def _agree(self, end: float | None) -> Agreement:
        """Compare the interfaces at both ends, until ``end`` by the clock."""

        def describe(service: str) -> Any:
            payload, _ = untyped_request((service,), {}, None)
            left = None if end is None else max(0.0, end - monotonic())
            return decode(*self._core.call(b"rrpc.Reflection.describe", payload, None, None, left))

        own = functools.partial(_interface_of, type(self))
        try:
            return agree(self.rpc_fingerprints, self._core.peer_hello(), describe, own, self._address)
        except BaseException:
            self._core.close()
            raise

    @property
    def address(self) -> str:
        """The address given to the constructor."""
        return self._address

    def call(
        self, method: str, /, *args: Any, timeout: float | None = None, out: Any = None, **kwargs: Any
    ) -> Any:
        """Call ``"Service.method"`` without a generated client; the server checks the arguments.

        A dataclass in the result comes as a dict, an enum as its value. ``out`` is a writable C-contiguous
        array that the one array of the result with its dtype and shape is written into.
        """
        payload, buffers, memory = _untyped(args, kwargs, out)
        wait = self._timeout if timeout is None else timeout
        reply, blocks = self._core.call(_wire_name(method), payload, buffers, memory, wait)
        return decode(reply, blocks, out)

    def start(
        self, method: str, /, *args: Any, timeout: float | None = None, out: Any = None, **kwargs: Any
    ) -> Future[Any]:
        """As :meth:`call`, without waiting for the result."""
        payload, buffers, memory = _untyped(args, kwargs, out)
        wait = self._timeout if timeout is None else timeout
        call = self._core.start(_wire_name(method), payload, buffers, memory, wait)
        return Future(call, decode, out)

    def info(self) -> dict[str, Any]:
        """Facts of the connection: address, transport, bulk_method, exposure, peer, adapter (verbs), state, why_not.

        ``exposure`` is what keeps the peer to the arrays that are passed to it: "memory window" or "registration
        per call" by an adapter, "checked" in software. ``why_not`` has a reason for each transport not used.
        ``sent_on_to`` is the address of the process that answers, where several have one address.
        """
        return self._core.info()

    def stats(self) -> dict[str, int]:
        """What moved over this connection; keys as in :func:`rrpc.stats`."""
        return self._core.stats()

    def close(self, timeout: float | None = None) -> None:
        """End the connection; calls in flight fail with Unavailable. Closing twice does nothing."""
        self._core.close(timeout)

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"


def connect(
    address: str,
    *,
    timeout: float | None = None,
    connect_timeout: float | None = 10.0,
    poll: str = "adaptive",
    **options: Any,
) -> Client:
    """A plain :class:`Client`, for calls by name."""
    return Client(address, timeout=timeout, connect_timeout=connect_timeout, poll=poll, **options)


def _log_choice(core: _core.Client) -> None:
    import logging

    logger = logging.getLogger("rrpc")
    if logger.isEnabledFor(logging.DEBUG):
        info = core.info()
        why_not = "".join(f"; not {name}: {reason}" for name, reason in info["why_not"].items())
        logger.debug("%s: over %s%s", info["address"], info["transport"], why_not)


def _wire_name(method: str) -> bytes:
    if not isinstance(method, str):
        raise TypeError(f"the method must be a str such as 'Service.method', not {type(method).__name__}")
    return method.encode(errors="replace")


def _untyped(args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> tuple[bytes, list[Any] | None, Any]:
    spec = None if out is None else OutSpec.of(out)
    payload, message = untyped_request(args, kwargs, spec)
    return payload, message or None, _memory_of(out)


def _memory_of(out: Any) -> Any:
    """What the core writes into; an array without bytes needs no writing."""
    return None if out is None or not out.nbytes else out


class UnaryMethod(Generic[_R]):
    """The base of a generated client's methods: callable, with ``start`` for a future.

    A subclass has ``rpc_name`` and defines ``__call__`` with the method's own parameters, then the
    keyword-only ``timeout`` and, where the result has an array, ``out``. Its annotations are the checks.
    """

    rpc_name: ClassVar[str]
    _plan: ClassVar[Plan]
    __name__: str

    def __init__(self, client: Client) -> None:
        cls = type(self)
        _compile(cls)
        self._encode = client._agreement.encoder(cls._plan)
        self._decode = cls._plan.decode_result
        self._name = client._agreement.wire_name(cls.rpc_name)
        self.__name__ = cls.rpc_name.rpartition(".")[2]
        self._timeout = client._timeout
        self._core_call = client._core.call
        self._core_start = client._core.start

    def __repr__(self) -> str:
        return f"<remote method {self.rpc_name}>"

    def _call(self, arguments: tuple[Any, ...], timeout: float | None, out: Any = None) -> _R:
        if out is not None:
            return self._start(arguments, timeout, out).result()
        payload, buffers = self._encode(arguments)
        reply, blocks = self._core_call(
            self._name, payload, buffers or None, None, self._timeout if timeout is None else timeout
        )
        result: _R = self._decode(reply, blocks, None, buffers.sizes)
        return result

    def _start(self, arguments: tuple[Any, ...], timeout: float | None, out: Any = None) -> Future[_R]:
        payload, buffers = self._encode(arguments, None if out is None else OutSpec.of(out))
        wait = self._timeout if timeout is None else timeout
        call = self._core_start(self._name, payload, buffers or None, _memory_of(out), wait)
        decode = self._decode
        if buffers.sizes is not None:
            decode = functools.partial(decode, sizes=buffers.sizes)
        return Future(call, decode, out)


def _compile(cls: type[UnaryMethod[Any]]) -> Plan:
    if "_plan" not in cls.__dict__:
        cls._plan = _plan_of(cls)
    return cls._plan


def _plan_of(cls: type[UnaryMethod[Any]]) -> Plan:
    """From the signature of ``__call__``."""
    function = cls.__dict__["__call__"]
    hints = typing.get_type_hints(function, include_extras=True)
    _, *parameters = inspect.signature(function).parameters.values()
    described = [
        Parameter(p.name, hints[p.name], p.default, p.kind is p.KEYWORD_ONLY, p.kind is p.POSITIONAL_ONLY)
        for p in parameters
        if p.name not in ("timeout", "out")
    ]
    return Plan(cls.rpc_name, described, hints["return"])


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
    def __get__(self, client: Client, owner: type) -> _M: ...
    def __get__(self, client: Client | None, owner: type) -> Callable[..., Any] | _M:
        if client is None:
            return self._function()
        bound = self.kind(client)
        client.__dict__[self._name] = bound  # from now on found without coming here
        return bound

    def _function(self) -> Callable[..., Any]:
        """What a class shows of its methods: for help(), inspect and mocks."""
        name = self._name

        @functools.wraps(self.kind.__call__)
        def function(client: Client, /, *args: Any, **kwargs: Any) -> Any:
            return getattr(client, name)(*args, **kwargs)

        function.__name__ = name
        return function


def _interface_of(cls: type[Client], service: str) -> Interface:
    """What the class's methods say of the interface of a service."""
    methods: dict[str, Method] = {}
    for member in [member for base in reversed(cls.__mro__) for member in base.__dict__.values()]:
        if isinstance(member, _Stub) and member.kind.rpc_name.rpartition(".")[0] == service:
            plan = _compile(member.kind)
            function = member.kind.__dict__["__call__"]
            result = typing.get_type_hints(function, include_extras=True)["return"]
            methods[plan.name.rpartition(".")[2]] = Method(plan.name, "", plan.declared, result, function)
    return Interface(service, "", methods)


def stub(kind: type[_M]) -> _Stub[_M]:
    """Put a method's class into a client class; for generated code."""
    return _Stub(kind)
