"""Dispatch of calls: the handlers of a server's services, by the method's name."""

# A server fills its `Dispatch` while it is made. Workers and the event loop only read it afterwards, without a lock.

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterable, Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any

from rrpc._interface import RECEIVES, SENDS, Interface, Method, Plan
from rrpc._interface.decorators import allowed_by, interface_of
from rrpc.codec import CompiledPlan
from rrpc.errors import InvalidArgument, Unimplemented

Direct = tuple[Callable[..., Any], CompiledPlan, tuple[str, ...]]
"""A handler, its plan, and the names of its last arguments, which it takes by keyword only."""

_KINDS = {
    0: "arguments and gives one result",
    SENDS: "a stream and gives one result",
    RECEIVES: "arguments and gives a stream",
    SENDS | RECEIVES: "a stream and gives one",
}


class Handler:
    """One method of a service that is served.

    A worker calls ``decode(payload, blocks)``, ``function(*arguments)`` and ``encode(result, out, sizes)``. What is
    to stand around handlers (interceptors) replaces them when the server is made, so that it costs nothing where
    there is none.
    """

    __slots__ = ("_given", "around", "decode", "encode", "function", "is_async", "method", "plan")

    def __init__(self, method: Method, function: Callable[..., Any]) -> None:
        self.method = method
        """Name, result, ``idempotent`` and what else the interface says."""
        self.plan = Plan(method.name, method.parameters, method.result)
        self.decode = self.plan.decode_arguments
        self.encode = self.plan.encode_result
        self._given = function
        self.function = _positional(self.plan, function)
        """Takes the arguments by position."""
        if (name := method.stream_parameter) is not None:
            plan = self.plan
            self.function = lambda *values, stream: _positional(plan, partial(function, **{name: stream}))(
                *values
            )
        self.around: Callable[[Any], Any] | None = None
        """Of a call with streams: takes the ``streams.ServedStream``, whose ``begin()`` calls the function."""
        self.is_async = _is_async(method, function)

    def direct(self, in_loop: bool) -> Direct | None:
        """Returns what the core needs to carry calls out by itself; None where Python has a part in them.

        ``in_loop`` says whether an event loop's calls are meant, or a worker's.
        """
        plan = self.plan
        # Tests for equality, since each access makes another bound method. Whatever replaced one of them must run.
        unchanged = self.decode == plan.decode_arguments and self.encode == plan.encode_result
        fits = inspect.iscoroutinefunction(self._given) if in_loop else not self.is_async
        if not unchanged or not fits or plan.compiled is None:
            return None
        return self._given, plan.compiled, plan.names[plan.positional_count :]


class Dispatch:
    """The handlers by wire name, and the interfaces that they are of. ``builtin`` services are named last."""

    def __init__(self, services: Sequence[object]) -> None:
        self.handlers: dict[bytes, Handler] = {}
        self.streams: dict[bytes, Handler] = {}
        """Handlers of the methods that have a stream; the others are in ``handlers``."""
        self.missing_stream: Callable[[bytes, int], Any] | None = None
        """What gives that which stands for a method with streams that isn't there; takes its name and its kind."""
        self.interfaces: dict[str, Interface] = {}
        self.allowed: dict[str, tuple[str, ...]] = {}
        """The principals of the methods that the code restricts, by the methods' names."""
        self._add(services)
        self.names = list(self.interfaces)
        """Names of the services, without the built-in ones."""
        self.metadata_bytes_max = 0
        """Of a reply, as the server's options have it."""

    def add_builtin(self, services: Sequence[object]) -> list[bytes]:
        """A service of the user's that has the name of one goes first. Gives the names of the methods added."""
        return self._add([service for service in services if _interface(service).name not in self.interfaces])

    def direct(self, in_loop: bool = False) -> dict[bytes, Direct]:
        """Returns what ``Handler.direct`` gives of the unary methods, by their names."""
        # A handler with interceptors has no `direct`: its calls always go through Python.
        found = {
            name: getattr(handler, "direct", lambda _: None)(in_loop)
            for name, handler in self.handlers.items()
        }
        return {name: direct for name, direct in found.items() if direct is not None}

    def change(self, names: Sequence[bytes], change: Callable[[Handler], None]) -> None:
        """Changes the handlers with these names."""
        for name in names:
            change(self.handlers.get(name) or self.streams[name])

    def is_async(self) -> bool:
        """Returns whether all handlers are for an event loop."""
        return all(handler.is_async for handler in (*self.handlers.values(), *self.streams.values()))

    def _add(self, services: Sequence[object]) -> list[bytes]:
        added = []
        for instance in services:
            interface = _interface(instance)
            if interface.name in self.interfaces:
                raise ValueError(f"two services are called {interface.name}")
            self.interfaces[interface.name] = interface
            for name, method in interface.resolved().methods.items():
                group = self.streams if method.kind else self.handlers
                group[method.name.encode()] = Handler(method, getattr(instance, name))
                allowed = allowed_by(type(instance), name)
                if allowed is not None:
                    self.allowed[method.name] = allowed
                added.append(method.name.encode())
        return added

    def stream_of(self, name: bytes, kind: int) -> Handler:
        """The handler of a call with streams, or what stands for one that isn't there; raises Unimplemented."""
        handler = self.streams.get(name)
        if handler is not None and handler.plan.kind == kind:
            return handler
        if self.missing_stream is None:
            raise self.unimplemented(name.decode(errors="replace"), kind)
        missing: Handler = self.missing_stream(name, kind)
        return missing

    def traced(self, handler: Any, context: Any, stamps: tuple[int, int, int] | None) -> Any:
        """The handler, or what stands in its place for a call whose caller asks where its time goes."""
        part = self.trace(context, stamps)
        return handler if part is None else part.around(handler)

    def trace(self, context: Any, stamps: tuple[int, int, int] | None) -> Any:
        """Returns the recorder of a traced call's times, or None if the caller doesn't ask for them."""
        reached_ns = monotonic_ns()  # before the import, which takes its time once
        from rrpc.tracing.server_recorder import traced_call

        return traced_call(context, stamps, reached_ns, self.metadata_bytes_max)

    def unimplemented(self, name: str, kind: int = 0) -> Unimplemented:
        """The error for a name that no handler for such calls has."""
        service, _, method = name.rpartition(".")
        if service in self.interfaces:
            if method in self.interfaces[service].methods:
                here = self.streams[name.encode()].plan.kind if name.encode() in self.streams else 0
                how = _how_to_call(name, here)
                # 6 is SENDS | RECEIVES; a request's kind has other bits too.
                return Unimplemented(
                    f"{name}() takes {_KINDS[here]}; the call has {_KINDS[kind & 6]}: use {how}"
                )
            there = ", ".join(self.interfaces[service].methods)
            # The caller chose the name, which may be of any length.
            return Unimplemented(f"{service} has no method {method[:80]!r}; it has {there}")
        if not service:
            return Unimplemented(f"{name[:80]!r} names no service: write {self.names[0]}.method")
        there = ", ".join(self.names)
        return Unimplemented(
            f"there is no service {service[:80]!r} here (asked for {name[:80]!r}); there is {there}"
        )


def check_memory(core: Any, handle: int, out: Any) -> None:
    """Raises InvalidArgument if the memory that the caller offers doesn't have the size of its ``out=``."""
    offered = core.out_bytes(handle)  # 0 where the caller fetches the result into it itself
    if offered not in (0, out.nbytes):
        raise InvalidArgument(f"out= is {out}, but the memory offered has {offered} bytes")


def _how_to_call(name: str, kind: int) -> str:
    """Returns the Python code by which a client without a stub calls a method with these streams."""
    if not kind:
        return f"client.call({name!r}, ...)"
    options = ", sends=True" * bool(kind & SENDS) + ", receives=False" * (not kind & RECEIVES)
    return (
        f"rrpc.open_stream(client, {name!r}{options})"
        if kind & SENDS
        else f"rrpc.open_stream(client, {name!r}, ...)"
    )


def _interface(instance: object) -> Interface:
    interface = interface_of(instance)
    if interface is None and isinstance(instance, str):
        raise TypeError(f"{instance[:80]!r} is no service; an address is given as listen=")
    if interface is None and isinstance(instance, (list, tuple)):
        raise TypeError(f"pass services one by one, not as a {type(instance).__name__}: *services")
    if interface is None:
        raise TypeError(f"{type(instance).__name__} is no service: decorate its class with @rrpc.service")
    if isinstance(instance, type):
        raise TypeError(f"pass an instance, {instance.__name__}(...), not the class")
    return interface


def _is_async(method: Method, function: Callable[..., Any]) -> bool:
    """Returns whether a handler is for an event loop, as is a function that returns another's async iterator."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return True
    origin = typing.get_origin(method.result)
    gives_async = isinstance(origin, type) and issubclass(origin, AsyncIterable)
    return gives_async and not inspect.isgeneratorfunction(function)


def _positional(plan: Plan, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, taking keyword-only arguments by position too."""
    count = plan.positional_count
    if count == len(plan.names):
        return function
    names = plan.names[count:]
    return lambda *values: function(*values[:count], **dict(zip(names, values[count:], strict=True)))
