"""The side of --reload that serves: it imports the services, waits until it may begin, and ends with its supervisor.

Both talk in lines of JSON over a socket: "loaded" or "failed" with the files that made up the services, then
"go" from the supervisor, then "serving" with the addresses.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_VARIABLE = "RRPC_SERVE_SUPERVISOR"


class Channel:
    """Lines of JSON over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._pending = b""

    def fileno(self) -> int:
        """Returns the descriptor, for ``select``."""
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """The other end may be gone, which ``receive`` tells."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where there will be none."""
        while b"\n" not in self._pending:
            try:
                more = self._socket.recv(65536)
            except OSError:
                return None
            if not more:
                return None
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

    @staticmethod
    def environment(fd: int) -> dict[str, str]:
        """Returns the environment for the child process that has the other end, ``fd``."""
        return {**os.environ, _VARIABLE: str(fd), "PYTHONDONTWRITEBYTECODE": "1"}


class Standby:
    """The end of the channel in a process that a supervisor has started."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @classmethod
    def found(cls) -> Standby | None:
        """Returns the standby that this process is, or None."""
        fd = os.environ.pop(_VARIABLE, "")
        if not fd:
            return None
        sock = socket.socket(fileno=int(fd))
        sock.set_inheritable(False)
        return cls(Channel(sock))

    def load(self, load: Callable[[], object]) -> None:
        """Import the services by ``load()``, whose error is the supervisor's too."""
        try:
            load()
        except BaseException as error:
            self._channel.send(state="failed", files=sorted({*user_files(), *_files_of(error)}))
            raise
        self._channel.send(state="loaded", files=sorted(user_files()))

    def wait(self, listen: Sequence[str]) -> list[str]:
        """Wait for the turn to serve; gives where to listen, which is where it was before if the same is asked for."""
        message = self._channel.receive()
        if message is None:
            sys.exit(0)
        threading.Thread(target=self._end_with_supervisor, name="rrpc-supervisor", daemon=True).start()
        return list(message["bound"] if message["asked"] == list(listen) else listen)

    def serving(self, asked: Sequence[str], bound: Sequence[str]) -> None:
        """Tells the supervisor that this process serves, and where."""
        self._channel.send(state="serving", asked=list(asked), bound=list(bound))

    def _end_with_supervisor(self) -> None:
        self._channel.receive()
        os.kill(os.getpid(), signal.SIGTERM)


def user_files() -> Iterator[str]:
    """The files of all modules that aren't Python's, installed or rrpc's own."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    others = tuple(f"{os.path.realpath(path)}{os.sep}" for path in (*map(sysconfig.get_path, names), package))
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and not os.path.realpath(file).startswith(others) and os.path.isfile(file):
            yield os.path.abspath(file)


def _files_of(error: BaseException | None) -> Iterator[str]:
    """Yields the files in the tracebacks of an error and of its causes.

    A module whose import failed is no longer in ``sys.modules``, so ``user_files`` misses its file.
    """
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            yield os.path.abspath(error.filename)
        for frame in traceback.extract_tb(error.__traceback__):
            if os.path.isfile(frame.filename):
                yield os.path.abspath(frame.filename)
        error = error.__cause__ or error.__context__
