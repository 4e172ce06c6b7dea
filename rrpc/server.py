"""The server: worker threads that take requests from the core, run handlers and reply."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from . import _core
from .errors import (
    PROTOCOL_KEY,
    TRACEBACK_KEY,
    TYPE_KEY,
    InvalidArgument,
    ProtocolError,
    RemoteError,
    RpcError,
    StatusCode,
    Unimplemented,
)
from .health import Health
from .observe import ObservedCore, Observer
from .options import merged
from .service import Interface, Plan, interface_of
from .versions import introduce

__all__ = ["Server", "serve", "use_builtin"]

_MESSAGE_CHARS = 16_384
_TRACEBACK_CHARS = 65_536


class Server:
    """Serves instances of service classes.

    ``listen`` is an address or several; ``workers`` is how many handlers run at a time, and ``max_concurrency``
    bounds it from above; with ``max_queue`` no more than so many calls wait for that, others are refused with
    ResourceExhausted; with ``tracebacks`` a handler's exception carries its traceback to the caller; ``observer``
    is called by the workers, after each reply, with a :class:`rrpc.observe.ServedCall`; ``builtin`` has it serve
    ``rrpc.Health``, ``rrpc.Reflection`` and ``rrpc.Stats`` too (see :mod:`rrpc.std`). Other ``options`` as for
    :class:`Client`.
    As a context manager it starts, and stops at the end.
    """

    def __init__(
        self,
        *services: object,
        listen: str | Sequence[str] = (),
        workers: int = 4,
        max_concurrency: int | None = None,
        max_queue: int | None = None,
        tracebacks: bool = False,
        observer: Observer | None = None,
        builtin: bool = True,
        **options: Any,
    ) -> None:
        _at_least(1, workers=workers, max_concurrency=max_concurrency)
        _at_least(0, max_queue=max_queue)
        workers = workers if max_concurrency is None else min(workers, max_concurrency)
        if not services:
            raise TypeError("a server needs a service")
        self._dispatch, self._interfaces = _dispatch(services)
        self._names = list(self._interfaces)
        self.health = Health(self._names)
        """What ``rrpc.Health`` answers: ``server.health.set("Nearest", False)``."""
        self._tracebacks = tracebacks
        self._observer = observer
        self._listen = [listen] if isinstance(listen, str) else list(listen)
        self._running: list[bytes | None] = [None] * workers
        self._threads: list[threading.Thread] = []
        # It knows how many the workers are, so that a call which one of them is about to take doesn't count as waiting.
        self._core = _core.Server(merged({**options, "max_concurrency": workers, "max_queue": max_queue}))
        self.addresses: list[str] = []
        """What the server really listens on, in the order asked for."""
        self.unfetched = 0
        """Results that clients hadn't fetched when :meth:`drain` gave up."""
        if builtin:
            self._add_builtin(_make_builtin(self, workers))
        hello, names = introduce(self.interfaces())
        self._core.add_to_hello(hello)
        self._core.name_methods(names)

    def _add_builtin(self, services: Sequence[object]) -> None:
        dispatch, interfaces = _dispatch(services)
        # A service of the user's that has the name goes first.
        interfaces = {name: found for name, found in interfaces.items() if name not in self._interfaces}
        self._dispatch = dispatch | self._dispatch
        self._interfaces |= interfaces

    def listen(self, address: str) -> str:
        """Listen on one more address; gives the one really bound. Raises InvalidArgument or Unavailable."""
        bound = self._core.listen(address)
        self.addresses.append(bound)
        return bound

    def start(self) -> Server:
        """Listen, and take calls from now on."""
        if self._threads:
            raise RuntimeError("the server has been started already")
        for address in self._listen:
            self.listen(address)
        for index in range(len(self._running)):
            thread = threading.Thread(target=self._work, args=(index,), name=f"rrpc-worker-{index}")
            self._threads.append(thread)
            thread.start()
        _started.add(self)
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every worker has ended; False if they haven't within ``timeout`` seconds."""
        from time import monotonic

        end = None if timeout is None else monotonic() + timeout
        # A handler that stops its own server can't wait for itself.
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(None if end is None else max(0.0, end - monotonic()))
        return not any(thread.is_alive() for thread in others)

    def drain(self, grace: float | None = None) -> bool:
        """Refuse new calls, let running ones end and results be fetched; True if all that within ``grace`` seconds."""
        self.health.drain()
        calls, self.unfetched = self._core.drain(grace)
        return calls == self.unfetched == 0

    def stop(self, timeout: float | None = None) -> bool:
        """Close everything now, calls in progress included; True if every handler has returned.

        Handlers can't be interrupted: without ``timeout`` this waits for them.
        """
        self.health.drain()
        self._core.stop()
        return self.wait(timeout)

    def running(self) -> list[str]:
        """The methods whose handlers run at this moment."""
        return sorted(name.decode() for name in self._running if name is not None)

    def interfaces(self) -> list[Interface]:
        """Of every service, the built-in ones last."""
        return list(self._interfaces.values())

    def stats(self) -> dict[str, int]:
        """How many there are now: ``connections``, ``calls_running`` and, of those, ``calls_waiting`` for a worker.

        What moved: :func:`rrpc.stats`.
        """
        return self._core.stats()

    def __enter__(self) -> Server:
        return self if self._threads else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _work(self, index: int) -> None:
        """One worker. While it waits it must hold no request's memory: the pool needs that back."""
        dispatch, running = self._dispatch, self._running
        core: _core.Server | ObservedCore = self._core
        if self._observer is not None:
            core = ObservedCore(self._core, self._observer, dispatch)
        request = core.next()
        while request is not None or not core.stopped():
            if request is None:
                request = core.next()
                continue
            handle, name, payload, blocks, *_ = request
            request = arguments = result = None
            running[index] = name
            try:
                plan, function = dispatch[name]
                arguments, out, sizes = plan.decode_arguments(payload, blocks)
                if out is not None:
                    _check_memory(core, handle, out)
                result = function(*arguments)
                payload, buffers = plan.encode_result(result, out, sizes)
                if buffers:
                    core.reply(handle, payload, buffers, buffers.out_index)
            except BaseException as error:  # SystemExit too: a worker outlives its handlers
                blocks = arguments = result = buffers = None
                self._fail(core, handle, name, error)
            else:
                blocks = arguments = result = None
                running[index] = None
                if not buffers:
                    request = core.reply_next(handle, payload)
                    continue
                buffers = None
            running[index] = None
            request = core.next()

    def _fail(
        self, core: _core.Server | ObservedCore, handle: int, name: bytes, error: BaseException
    ) -> None:
        shown = name.decode(errors="replace")
        if isinstance(error, KeyError) and name not in self._dispatch:
            error = self._unimplemented(shown)
        code, message, details = self._status(shown, error)
        packed = msgpack.packb(details, unicode_errors="replace") if details else b""
        core.reply_error(handle, code, message[:_MESSAGE_CHARS], packed)

    def _status(self, name: str, error: BaseException) -> tuple[int, str, dict[str, Any]]:
        """Code, message and details of the reply for what a call raised."""
        if isinstance(error, RemoteError):  # from a call the handler made itself
            details = {TYPE_KEY: error.type_name}
            if self._tracebacks and error.remote_traceback:
                details[TRACEBACK_KEY] = error.remote_traceback[-_TRACEBACK_CHARS:]
            return int(error.code), error.message, details
        if isinstance(error, RpcError):
            return (
                int(error.code),
                str(error),
                {PROTOCOL_KEY: True} if isinstance(error, ProtocolError) else {},
            )
        _log(name, error)
        kind = type(error)
        type_name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        if not isinstance(error, Exception):
            return int(StatusCode.INTERNAL), f"{name}(): the handler raised {type_name}", {}
        details = {TYPE_KEY: type_name}
        if self._tracebacks:
            details[TRACEBACK_KEY] = _format(error)[-_TRACEBACK_CHARS:]
        return int(StatusCode.UNKNOWN), _text(error), details

    def _unimplemented(self, name: str) -> Unimplemented:
        if name.startswith("\0"):
            return Unimplemented("the method's id is none of this server's: connect again")
        service, _, method = name.rpartition(".")
        if service in self._interfaces:
            if method in self._interfaces[service].methods:
                return Unimplemented(f"{name}(): this release of rrpc has no streams")
            there = ", ".join(self._interfaces[service].methods)
            return Unimplemented(f"{service} has no method {method[:80]!r}; it has {there}")
        if not service:
            return Unimplemented(f"{name[:80]!r} names no service: write {self._names[0]}.method")
        return Unimplemented(
            f"there is no service {service[:80]!r} here (asked for {name[:80]!r}); there is {self.services}"
        )

    @property
    def services(self) -> str:
        """The names of the services, separated by commas; the built-in ones aren't among them."""
        return ", ".join(self._names)


def serve(
    *services: object, listen: str | Sequence[str] = "rrpc://127.0.0.1:7471", workers: int = 4, **options: Any
) -> Server:
    """Start a :class:`Server`; stop it with ``stop()`` or use it in a ``with`` statement."""
    return Server(*services, listen=listen, workers=workers, **options).start()


def _at_least(least: int, **given: int | None) -> None:
    for name, count in given.items():
        if count is not None and count < least:
            raise ValueError(f"{name} must be at least {least}, not {count}")


def _dispatch(
    services: Sequence[object],
) -> tuple[dict[bytes, tuple[Plan, Callable[..., Any]]], dict[str, Interface]]:
    dispatch: dict[bytes, tuple[Plan, Callable[..., Any]]] = {}
    interfaces: dict[str, Interface] = {}
    for instance in services:
        interface = interface_of(instance)
        if interface is None:
            raise TypeError(f"{type(instance).__name__} is no service: decorate its class with @rrpc.service")
        if isinstance(instance, type):
            raise TypeError(f"pass an instance, {instance.__name__}(...), not the class")
        if interface.name in interfaces:
            raise ValueError(f"two services are called {interface.name}")
        interfaces[interface.name] = interface
        for name, method in interface.resolved().methods.items():
            if method.kind:
                continue
            plan = Plan(method.name, method.parameters, method.result)
            dispatch[method.name.encode()] = plan, _positional(plan, getattr(instance, name))
    return dispatch, interfaces


def _positional(plan: Plan, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, taking keyword-only arguments by position too."""
    count = plan.positional_count
    if count == len(plan.names):
        return function
    names = plan.names[count:]
    return lambda *values: function(*values[:count], **dict(zip(names, values[count:], strict=True)))


def _check_memory(core: _core.Server | ObservedCore, handle: int, out: Any) -> None:
    offered = core.out_bytes(handle)  # 0 where the caller fetches the result into it itself
    if offered not in (0, out.nbytes):
        raise InvalidArgument(f"out= is {out}, but the memory offered has {offered} bytes")


def _log(name: str, error: BaseException) -> None:
    import logging

    logging.getLogger("rrpc.server").error("%s() raised", name, exc_info=error)


def _format(error: BaseException) -> str:
    """The traceback from the handler on; the worker's own frame says nothing."""
    import traceback

    start = error.__traceback__
    lines = traceback.format_exception(type(error), error, start.tb_next if start is not None else None)
    return "".join(lines)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message can't be shown)"


def _stop_all() -> None:
    for server in list(_started):
        server._core.stop()


def use_builtin(make: Callable[[Server, int], Sequence[object]]) -> None:
    """What makes the built-in services of a server with so many workers; they are of a layer above this one."""
    global _make_builtin
    _make_builtin = make


def _no_builtin(server: Server, workers: int) -> Sequence[object]:
    return ()


_make_builtin: Callable[[Server, int], Sequence[object]] = _no_builtin
_started: weakref.WeakSet[Server] = weakref.WeakSet()
# The interpreter's end waits for the workers before it runs what atexit has; who wants to serve for good calls wait().
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]
