"""The blocking server: listens, and has workers run the handlers of its services."""

# Any thread may make, start and stop a server; handlers run in its workers, and its event loop if there are async
# ones. `authorize` and `health` may be used while it serves, by handlers too.

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from rrpc import _core
from rrpc._call.registry import upper
from rrpc._channel.versions import introduce
from rrpc._interface import Interface
from rrpc._options import check_names, merged
from rrpc.errors import AddressInUse, AlreadyExists
from rrpc.interceptors import ServerInterceptor, checked
from rrpc.observe import ObservedCore, Observer

from .authorization import Authorization, compile_clients, compile_policy, log_denials
from .dispatch import Dispatch
from .health import Health
from .interception import intercept
from .served_stream import ServedStreams
from .worker import Worker
from .worker_pool import Workers

# Bounds the async handlers that run at a time where `max_concurrency` isn't given.
_ASYNC_CALLS_MAX = 1024


class BaseServer:
    """The server of both styles. Its methods that wait have an underscore: each style has its own in their place."""

    def __init__(
        self,
        *services: object,
        listen: str | Sequence[str] = (),
        workers: int = 4,
        max_concurrency: int | None = None,
        max_queue: int | None = None,
        tracebacks: bool = False,
        observer: Observer | None = None,
        interceptors: Sequence[ServerInterceptor] = (),
        authorization: Authorization | None = None,
        builtin: bool = True,
        **options: Any,
    ) -> None:
        _check_counts(workers, max_concurrency, max_queue)
        workers = workers if max_concurrency is None else min(workers, max_concurrency)
        if not services:
            raise TypeError("a server needs a service")
        around = checked(interceptors, ServerInterceptor)
        if observer is not None and not callable(observer):
            raise TypeError(
                f"observer must be a function of an rrpc.observe.ServedCall, not {observer!r:.60}"
            )
        check_names(options, BaseServer.__init__)
        self._dispatch = Dispatch(services)
        alone = self._dispatch.is_async()
        """Then all handlers are the event loop's, those of the built-in services too."""
        workers = 0 if alone else workers
        self.health = Health(self._dispatch.names)
        """Answers of ``rrpc.Health``; set them by ``server.health.set("Nearest", False)``."""
        self._listen = _addresses(listen)
        # It knows how many the workers are, so that a call which one of them is about to take doesn't count as waiting.
        every = merged(compile_clients({**options, "max_concurrency": workers, "max_queue": max_queue}))
        self._core = _core.Server(every)
        self._dispatch.metadata_bytes_max = every["metadata_bytes_max"]
        log_denials(self._core)
        self._workers = Workers(self._core, workers, builtin and not alone, _workers_cpus(every))
        self.authorization: Authorization | None = None
        """Rules about who may call what; ``authorize`` changes them."""
        self.addresses: list[str] = []
        """Addresses that the server listens on, with the real ports, in the order asked for."""
        self.unanswered: list[str] = []
        """The methods whose handlers ran when ``drain`` gave up."""
        self._over = threading.Event()
        self.unfetched = 0
        """Results that clients hadn't fetched when ``drain`` gave up."""
        apart = self._dispatch.add_builtin(upper().builtin_services(self, workers)) if builtin else []
        if alone:
            self._dispatch.change(apart, upper().run_in_loop)
        self._methods = [name.decode() for name in (*self._dispatch.handlers, *self._dispatch.streams)]
        self._tokens = any(one.names_callers for one in around)
        self.authorize(authorization)  # after the built-in services, whose methods rules may name
        intercept(self._dispatch, around)  # replaces the dict of handlers: what keeps it is made below
        handlers, streams = self._dispatch.handlers, self._dispatch.streams
        core = self._core if observer is None else ObservedCore(self._core, observer, handlers, streams)
        self._streams = ServedStreams(core, self._dispatch, tracebacks, self._workers.lend)
        self._core.add_to_hello(introduce(self.interfaces()))
        self._core.serve_apart(apart)  # so that Health answers while all workers are in handlers
        self.async_handlers = self._make_async_handlers(core, alone, max_concurrency, tracebacks)
        """Runs the ``async def`` handlers, if there are any. ``rrpc.aio.Server`` opens it in its loop."""

    def _worker(self, builtin: bool) -> Worker:
        streams = self._streams
        return Worker(streams.core, self._dispatch, streams.tracebacks, streams, builtin)

    def _make_async_handlers(
        self, core: Any, alone: bool, most: int | None, tracebacks: bool
    ) -> AsyncHandlers | None:
        handlers = {**self._dispatch.handlers, **self._dispatch.streams}
        methods = [name for name, handler in handlers.items() if handler.is_async]
        if not methods:
            return None
        most = _ASYNC_CALLS_MAX if most is None else most
        made: AsyncHandlers = upper().async_handlers(core, self._dispatch, methods, alone, most, tracebacks)
        return made

    def authorize(self, authorization: Authorization | None) -> None:
        """Sets who may call what, from the next call on; calls that run go on. None takes the rules back.

        Raises:
            TypeError: It is no ``rrpc.Authorization``.
            ValueError: A rule matches nothing that is served here, or asks for tokens where no interceptor checks
                them. The rules stay as they were.
        """
        if authorization is not None:
            if not isinstance(authorization, Authorization):
                raise TypeError(f"authorization must be an rrpc.Authorization, not {authorization!r:.60}")
            authorization.check_names(self._methods)
        self._core.set_policy(compile_policy(self._dispatch.allowed, authorization, self._tokens))
        self.authorization = authorization

    def _listen_on(self, address: str) -> str:
        try:
            bound = self._core.listen(address)
        except AlreadyExists as error:
            raise AddressInUse(error.message) from None
        self.addresses.append(bound)
        return bound

    def _start(self) -> None:
        if self.started:
            raise RuntimeError("the server has been started already")
        if self.async_handlers is not None:
            self.async_handlers.open()
        try:
            self._begin()
        except BaseException:
            self._stop(None)  # the event loop's thread, above all, which would keep the process
            raise
        _started.add(self)

    def _begin(self) -> None:
        for address in self._listen:
            self._listen_on(address)
        self._workers.start(self._worker)  # the server stays while its threads do

    @property
    def started(self) -> bool:
        """Whether ``start`` was called."""
        return self._workers.started

    def _wait(self, timeout: float | None) -> bool:
        return self._over.wait(timeout) if self._workers.count == 0 else self._workers.join(timeout)

    def tls_problem(self) -> str:
        """Returns why changed certificates can't be used, so that the old ones still are; "" if all is well."""
        return self._core.tls_state()[0]

    def tls_refusals(self) -> tuple[int, str]:
        """Returns how many TLS handshakes came to nothing, and the last client's address with the reason."""
        return self._core.tls_state()[1:]

    def stop_listening(self) -> None:
        """No new clients: connecting fails from now on. Those that are connected go on; ``listen`` ends it."""
        self._core.stop_listening()

    def _drain(self, grace: float | None) -> bool:
        # Health says so before the core refuses calls.
        self.health.drain()
        calls, self.unfetched = self._core.drain(grace)
        self.unanswered = self.running()  # before they are told that nobody waits for them any more
        self._end()
        if self.async_handlers is not None:
            self.async_handlers.close(0.0)  # its thread would keep the process
        return calls == self.unfetched == 0

    def send_away(self, count: int) -> int:
        """Tell ``count`` of the clients, those connected longest, to connect again; returns how many were told.

        Their calls under way go on. Clients that were told before don't count.
        """
        _at_least(0, count=count)
        return self._core.send_away(count, "its clients are spread over more processes")

    def _stop(self, timeout: float | None) -> bool:
        self.health.drain()
        self._end()
        ended = self.async_handlers is None or self.async_handlers.close(timeout)
        return self._wait(timeout) and ended

    def _end(self) -> None:
        self._core.stop()
        self._over.set()

    def running(self) -> list[str]:
        """The methods whose handlers run at this moment."""
        names = self._workers.running()
        return sorted(names if self.async_handlers is None else [*names, *self.async_handlers.running()])

    def interfaces(self) -> list[Interface]:
        """Returns the interfaces of all services, the built-in ones last."""
        return list(self._dispatch.interfaces.values())

    def stats(self) -> dict[str, int]:
        """Returns the current numbers of ``connections`` and ``calls_running``.

        ``calls_waiting`` counts those running calls that wait for a worker. ``rrpc.stats`` counts transfers.
        """
        return self._core.stats()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} can't be pickled or copied: start one in each process "
            "(rrpc-serve --processes does that)"
        )

    @property
    def services(self) -> str:
        """The names of the services, separated by commas; the built-in ones aren't among them."""
        return ", ".join(self._dispatch.names)


class Server(BaseServer):
    """Serves instances of service classes. As a context manager it starts, and stops at the end.

    Args:
        *services: Instances of classes decorated with ``rrpc.service``, at least one.
        listen: An address, or several.
        workers: Threads that run synchronous handlers: so many run at a time.
        max_concurrency: Bounds ``workers`` from above, and the ``async def`` handlers that run at a time.
        max_queue: Calls that may wait for a worker; others are refused with ResourceExhausted. None: no limit.
        tracebacks: Whether a handler's exception carries its traceback to the caller.
        observer: Called by the workers, after each reply, with a ``rrpc.observe.ServedCall``.
        interceptors: ``ServerInterceptor`` objects around each handler, the outermost first.
        authorization: Who may call which services and methods; None: everybody who can connect, but for methods with
            an ``allow`` of their own.
        builtin: Whether it serves ``rrpc.Health``, ``rrpc.Reflection`` and ``rrpc.Stats`` too (see ``rrpc.std``).
        **options: Those of the transport, as for ``Client``, and ``rate_limit`` (calls a second that are taken),
            ``rate_burst`` (calls that may come at once), ``allow_clients`` (principals, such as ``group:ml``: who may
            connect), ``pollers`` and others: see ``docs/transports.md``.

    Raises:
        TypeError: An argument isn't of the type that it must be, or there is no option of that name.
        ValueError: ``workers``, ``max_concurrency`` or ``max_queue`` is too small, two services have one name, or a
            principal or a rule's name isn't known here.
        InvalidArgument: Another option can't have that value.
        AnnotationError: A service's annotations can't be served.
    """

    def start(self) -> Server:
        """Listen, and take calls from now on. Where it can't, it has stopped."""
        self._start()
        return self

    def listen(self, address: str) -> str:
        """Listen on one more address; gives the one really bound; else InvalidArgument, AddressInUse, Unavailable."""
        return self._listen_on(address)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has ended, and every worker; False if they haven't within ``timeout`` seconds."""
        return self._wait(timeout)

    def drain(self, grace: float | None = None) -> bool:
        """Refuse new calls, let running ones end and results be fetched; True if all that within ``grace`` seconds.

        The server has ended then; ``async def`` handlers that were left over get CancelledError, others aren't
        waited for.
        """
        return self._drain(grace)

    def stop(self, timeout: float | None = None) -> bool:
        """Close everything now, calls in progress included; True if every handler has returned.

        Handlers can't be interrupted: without ``timeout`` this waits for them.
        """
        return self._stop(timeout)

    def __enter__(self) -> Server:
        return self if self.started else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def serve(
    *services: object, listen: str | Sequence[str] = "rrpc://127.0.0.1:7471", workers: int = 4, **options: Any
) -> Server:
    """Starts a ``Server``. Stop it with ``stop()``, or use it in a ``with`` statement.

    Args:
        *services: Instances of classes decorated with ``rrpc.service``.
        listen: An address, or several. Port 0 takes a free one, which ``addresses`` of the server names.
        workers: Threads that run synchronous handlers.
        **options: All others of ``Server``.

    Returns:
        The server, which takes calls.

    Raises:
        AddressInUse: Somebody else listens there.
        InvalidArgument: An address has no such form, or an option can't have that value.
        Unavailable: The transport can't be used here.
        TypeError: As ``Server`` does.
        ValueError: As ``Server`` does.
        AnnotationError: As ``Server`` does.
    """
    return Server(*services, listen=listen, workers=workers, **options).start()


def _workers_cpus(options: dict[str, Any]) -> Sequence[int]:
    """Returns the processors of the node that the workers run on, if they are what polls; none: they run anywhere."""
    node: tuple[int, list[int]] | None = options["numa_node"]
    return () if node is None or options["pollers"] > 1 else node[1]


def _check_counts(workers: int, max_concurrency: int | None, max_queue: int | None) -> None:
    _at_least(1, workers=workers)
    if max_concurrency is not None:
        _at_least(1, max_concurrency=max_concurrency)
    if max_queue is not None:
        _at_least(0, max_queue=max_queue)


def _at_least(least: int, **given: int) -> None:
    for name, count in given.items():
        if not isinstance(count, int):
            raise TypeError(f"{name} must be an int, not {count!r:.60}")
        if count < least:
            raise ValueError(f"{name} must be at least {least}, not {count}")


def _addresses(listen: Any) -> list[str]:
    addresses = [listen] if isinstance(listen, str) else listen
    if not isinstance(addresses, (list, tuple)) or not all(isinstance(one, str) for one in addresses):
        raise TypeError(
            f"listen must be an address such as rrpc://host:port, or a list of them, not {listen!r:.60}"
        )
    return list(addresses)


def _stop_all() -> None:
    for server in list(_started):
        server._end()
        if server.async_handlers is not None:
            server.async_handlers.close(0.0)


class AsyncHandlers(Protocol):
    """Runs the ``async def`` handlers of a server in an event loop."""

    def open(self) -> None:
        """Opens it in a loop of its own, before the server listens; nothing if it is open."""

    def open_here(self) -> None:
        """Opens it in the running event loop, before the server listens."""

    async def close_here(self) -> None:
        """Cancels the running handlers if it was opened by ``open_here``, and waits for them."""

    def running(self) -> list[str]:
        """The methods whose handlers run at this moment."""

    def close(self, timeout: float | None) -> bool:
        """Cancels the handlers in a loop of its own, once the server has stopped. Returns False if they take longer."""


_started: weakref.WeakSet[BaseServer] = weakref.WeakSet()
# The interpreter's end waits for the workers before it runs what atexit has; who wants to serve for good calls wait().
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]
