"""rrpc-serve: run services until a signal, then finish what runs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rrpc import RpcError, Server, set_pool_limit
from rrpc.service import AnnotationError

from .common import BadInput, Parser, debugging, find_service, problem
from .construct import construct

__all__ = ["main"]

DEFAULT_ADDRESS = "rrpc://127.0.0.1:7471"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    stop = _Stop()
    options = _parser().parse_args(arguments)
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


def _parser() -> Parser:
    parser = Parser(prog="rrpc-serve", description="Serve one or more services.")
    add = parser.add_argument
    add("services", nargs="+", metavar="module:Service", help="a class decorated with @rrpc.service")
    add(
        "--listen",
        action="append",
        metavar="ADDRESS",
        help=f"where to listen; may be repeated (default: {DEFAULT_ADDRESS})",
    )
    add("--workers", type=_positive, default=4, metavar="N", help="handlers that run at a time (default: 4)")
    add(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a constructor argument; Service.NAME=VALUE with several services",
    )
    add(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long running calls may take to end after a signal (default: 30)",
    )
    add("--tracebacks", action="store_true", help="send tracebacks of handlers' exceptions to callers")
    add(
        "--log-level",
        default="warning",
        choices=["debug", "info", "warning", "error", "critical"],
        help="what to log on stderr (default: warning)",
    )
    add("--pool-limit", type=_size, metavar="BYTES", help="most registered memory, such as 512M or 4G")
    add(
        "--transports",
        metavar="LIST",
        help="what clients of rrpc:// addresses may use (default: shm,verbs,tcp)",
    )
    add("--any-user", action="store_true", help="let other users of this host connect over shared memory")
    add(
        "--shared-receive-slots",
        type=_positive,
        metavar="N",
        help="receive slots that all connections over verbs share, for servers with hundreds of clients "
        "(default: a ring for each connection)",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise ValueError(text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()]


_positive.__name__, _size.__name__ = "positive number", "size"  # argparse shows them in its errors


def _start(options: Any) -> Server:
    found = [find_service(target) for target in options.services]
    names = [interface.name for _, interface in found]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise BadInput(f"two services are called {repeated.pop()}")
    if options.pool_limit is not None:
        set_pool_limit(options.pool_limit)
    classes = [(interface.name, cls) for cls, interface in found]
    core_options: dict[str, Any] = {"any_user": options.any_user, "transports": options.transports}
    if options.shared_receive_slots is not None:
        core_options["shared_receive_slots"] = options.shared_receive_slots
    server = Server(
        *construct(classes, options.arg),
        listen=options.listen or [DEFAULT_ADDRESS],
        workers=options.workers,
        tracebacks=options.tracebacks,
        **core_options,
    )
    try:
        return server.start()
    except BaseException:
        server.stop(timeout=1.0)
        raise


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
