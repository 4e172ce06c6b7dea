"""rrpc-serve: run services until a signal, then finish what runs."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType

from rrpc import RpcError, Server, set_pool_limit
from rrpc.service import AnnotationError, Interface

from .common import BadInput, debugging, find_service, problem
from .construct import construct, distribute
from .serving.settings import Settings, core_options, settings

__all__ = ["main"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    stop = _Stop()
    try:
        options = settings(arguments)
        if options.print_config:
            from .serving.show import as_toml

            print(as_toml(options), end="")
            return 0
    except BadInput as error:
        return problem("rrpc-serve", error)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    _raise_descriptor_limit()
    try:
        server = _start(options)
    except (BadInput, AnnotationError, RpcError, TypeError, ValueError, OSError) as error:
        if options.tracebacks and not debugging():
            traceback.print_exception(type(error), error, error.__traceback__)
        return problem("rrpc-serve", error)
    for address in server.addresses:
        print(f"rrpc-serve: {server.services} on {address}", flush=True)
    stop.wait()
    return _drain(server, options.grace)


def _raise_descriptor_limit() -> None:
    """A connection takes three descriptors; the usual soft limit would end at some three hundred clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # hard may be infinite, which a kernel may refuse
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _start(options: Settings) -> Server:
    found = [_find(options, target) for target in options.services]
    names = [interface.name for _, interface in found]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise BadInput(f"two services are called {repeated.pop()}")
    if options.pool_limit is not None:
        set_pool_limit(options.pool_limit)
    tables = [options.service_arguments.get(target, {}) for target in options.services]
    given = distribute(names, options.arg, tables)
    server = Server(
        *[construct(interface.name, cls, given[interface.name]) for cls, interface in found],
        listen=options.listen,
        workers=options.workers,
        tracebacks=options.tracebacks,
        **core_options(options),
    )
    try:
        return server.start()
    except BaseException:
        server.stop(timeout=1.0)
        raise


def _find(options: Settings, target: str) -> tuple[type, Interface]:
    try:
        return find_service(target)
    except BadInput as error:
        if target not in options.service_where:
            raise
        raise BadInput(f"{options.service_where[target]()}: {error}") from error


class _Stop:
    """The first signal sets it; a second one ends the process at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            os._exit(128 + number)
        self._event.set()

    def wait(self) -> None:
        self._event.wait()


def _drain(server: Server, grace: float) -> int:
    """Finish what runs. In a thread of its own, so that this one sees the second signal."""
    ended: list[bool] = []
    finished = threading.Event()

    def drain() -> None:
        try:
            ended.append(server.drain(grace))
        finally:
            finished.set()

    threading.Thread(target=drain, name="rrpc-drain", daemon=True).start()
    end = time.monotonic() + grace
    finished.wait(grace + 5.0)
    # A call that was given up has ended for its caller; its handler may run on.
    if ended == [True] and server.stop(max(0.5, end - time.monotonic())):
        return 0
    still = ", ".join(server.running()) or "calls that haven't been answered"
    print(f"rrpc-serve: still running after {grace:g} s: {still}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)  # a handler can't be interrupted, and the interpreter would wait for it


if __name__ == "__main__":
    sys.exit(main())
