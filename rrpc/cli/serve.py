"""rrpc-serve: run services until a signal, then finish what runs."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Sequence

from rrpc import RpcError, Server, prefault_pool, set_pool_idle_timeout, set_pool_limit
from rrpc._interface import AnnotationError, Interface
from rrpc._server.authorization import PolicyError

from .common import BadInput, command, debugging, find_service, one_line, problem
from .construct import construct, distribute
from .interceptor_option import interceptors
from .serving.assignment import Assignment
from .serving.certificates import Certificates
from .serving.clear_text import refuse_clear_text
from .serving.heap import RestingHeap, use_one_arena
from .serving.log_format import announce, announce_serving, set_up_logging
from .serving.notify import Notifier
from .serving.observing import Observing
from .serving.placement import place
from .serving.reloading import policy_problem, reload
from .serving.settings import Settings, core_options, settings, where
from .serving.signals import Signals
from .serving.standby import Standby


@command("rrpc-serve")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    use_one_arena()
    signals = Signals()
    assignment = Assignment.found()
    try:
        options = settings(arguments)
        if options.reload and options.processes > 1:
            raise BadInput("--reload is for one process: leave --processes out")
        if options.print_config:
            from .serving.show_settings import as_toml

            print(as_toml(options), end="")
            return 0
        if assignment is None:
            refuse_clear_text(options.listen, options.tls_cert is not None, options.insecure)
    except BadInput as error:
        return problem("rrpc-serve", error)
    set_up_logging(options.log_format, options.log_level)
    if options.reload:
        from .serving.reload import Supervisor

        return Supervisor(options, arguments, signals).run()
    _raise_descriptor_limit()
    try:
        if assignment is None and options.processes > 1:
            from .serving.supervisor import supervise

            return supervise(options, signals, arguments)
        place(options.cpus, options.numa_node)
        standby = Standby.found()
        asked = options.listen
        if standby is not None:
            standby.load(lambda: [_find(options, target) for target in options.services])
            options.listen = standby.wait(asked)
        observing = Observing(options, supervised=assignment is not None)
        if assignment is not None:
            assignment.take(options, signals, observing.numbers)
        server = _start(options, observing)
        if standby is not None:
            standby.serving(asked, server.addresses)
    except (BadInput, AnnotationError, RpcError, TypeError, ValueError, OSError) as error:
        return _refuse(options, assignment, error)
    return _serve(server, options, observing, signals, arguments, assignment)


def _refuse(options: Settings, assignment: Assignment | None, error: Exception) -> int:
    if options.tracebacks and not debugging():
        traceback.print_exception(type(error), error, error.__traceback__)
    if isinstance(error, RpcError) and (found := where(options, error)):
        error = BadInput(f"{found}: {error}")
    if isinstance(error, PolicyError):
        error = policy_problem(options, error)
    if assignment is not None:
        assignment.tell(error=one_line(str(error)))
        return 2
    if options.log_format == "text":
        return problem("rrpc-serve", error)
    announce(options.log_format, "error", one_line(str(error)), "")
    return 2


def _raise_descriptor_limit() -> None:
    """A connection takes three descriptors; the usual soft limit would end at some three hundred clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # hard may be infinite, which a kernel may refuse
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _start(options: Settings, observing: Observing) -> Server:
    found = [_find(options, target) for target in options.services]
    names = [interface.name for _, interface in found]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise BadInput(f"two services are called {repeated.pop()}")
    if options.pool_limit is not None:
        set_pool_limit(options.pool_limit)
    set_pool_idle_timeout(options.pool_idle_timeout)
    if options.pool_prefault is not None:
        prefault_pool(options.pool_prefault)
    tables = [options.service_arguments.get(target, {}) for target in options.services]
    given = distribute(names, options.arg, tables)
    server = Server(
        *[construct(interface.name, cls, given[interface.name]) for cls, interface in found],
        listen=options.listen,
        workers=options.workers,
        tracebacks=options.tracebacks,
        builtin=options.builtin,
        interceptors=interceptors(options),
        authorization=options.authorization,
        observer=observing.observer,
        **core_options(options),
    )
    try:
        server.start()
        observing.ready(server)
    except BaseException:
        server.stop(timeout=1.0)
        raise
    return server


def _find(options: Settings, target: str) -> tuple[type, Interface]:
    try:
        return find_service(target)
    except BadInput as error:
        if target not in options.service_where:
            raise
        raise BadInput(f"{options.service_where[target]()}: {error}") from error


def _serve(
    server: Server,
    options: Settings,
    observing: Observing,
    signals: Signals,
    arguments: Sequence[str] | None,
    assignment: Assignment | None,
) -> int:
    """Serves until a signal comes. Returns the exit code."""
    notifier = Notifier()
    if options.config is not None or options.access_log is not None:
        signals.take_reloads()  # before anybody is told that this serves: a SIGHUP may follow at once
    if assignment is not None:
        assignment.serve(server)
    else:
        announce_serving(options.log_format, server.services, server.addresses, observing.url)
    status = f"{server.services} on {', '.join(server.addresses)}"
    notifier.ready(status)
    heap = RestingHeap(options.pool_idle_timeout)
    certificates = Certificates(server, options.tls_cert is not None)
    due = (heap.due_in, certificates.due_in)
    while (told := signals.wait(_soonest(notifier.watchdog_interval, *(each() for each in due)))) != "end":
        heap.tend()
        certificates.tend()
        if told == "reload":
            notifier.reloading()
            observing.reopen()
            reload(arguments, server)
            notifier.ready(status)
        notifier.watchdog()
    observing.draining()
    notifier.stopping("finishing calls")
    end = time.monotonic() + options.drain_delay
    while (left := end - time.monotonic()) > 0:
        signals.wait(min(left, notifier.watchdog_interval or left))
        notifier.watchdog()
    if assignment is not None:
        assignment.tell(addresses=[])
    return _drain(server, options, notifier, signals)


def _soonest(*seconds: float | None) -> float | None:
    """Returns the smallest number of seconds; None stands for never."""
    return min((each for each in seconds if each is not None), default=None)


def _drain(server: Server, options: Settings, notifier: Notifier, signals: Signals) -> int:
    """Finish what runs. In a thread of its own, so that this one sees the second signal."""
    ended: list[bool] = []
    finished = threading.Event()

    def drain() -> None:
        try:
            ended.append(server.drain(options.grace))
        finally:
            finished.set()
            signals.wake()

    threading.Thread(target=drain, name="rrpc-drain", daemon=True).start()
    end = time.monotonic() + options.grace
    # Not in finished.wait(), which sleeps on if another thread takes the signal, or if it comes just before the sleep.
    while not finished.is_set() and (left := end + 5.0 - time.monotonic()) > 0:
        signals.wait(min(left, notifier.watchdog_interval or left))
        notifier.watchdog()
    # A call that was given up has ended for its caller; its handler may run on.
    if ended == [True] and server.stop(max(0.5, end - time.monotonic())):
        return 0
    still = server.unanswered or server.running()
    if server.unfetched:
        still.append(f"results that clients haven't fetched: {server.unfetched}")
    shown = ", ".join(still) or "calls that haven't been answered"
    text = f"still running after {options.grace:g} s: {shown}"
    announce(options.log_format, "error", "still running after the grace period", text, left=still)
    sys.stdout.flush()
    os._exit(1)  # a handler can't be interrupted, and the interpreter would wait for it


if __name__ == "__main__":
    sys.exit(main())
