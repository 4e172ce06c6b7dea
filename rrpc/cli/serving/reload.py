"""--reload: a supervisor that starts the server anew when the files that it is made of change."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from .log_format import announce
from .notify import Notifier
from .settings import Settings
from .signals import Signals
from .standby import Channel

_LOOK_SECONDS = 0.2
_Signature = tuple[int, int, int] | None


class _Server:
    """A child process that serves, or waits for its turn to."""

    def __init__(self, arguments: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        self.loaded = False
        self._draining = False
        self.started_ns = time.time_ns()
        self.channel = Channel(ours)
        with theirs:
            # A group of its own: Ctrl-C is for the supervisor, a second SIGINT would end the child at once.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rrpc.cli.serve", *arguments, "--no-reload"],
                pass_fds=[theirs.fileno()],
                env=Channel.environment(theirs.fileno()),
                start_new_session=True,
            )

    def drain(self) -> None:
        """Tells the process to drain, only once: a second signal would end it at once."""
        if not self._draining:
            self.process.terminate()
        self._draining = True


class Supervisor:
    """Runs one server at a time. A new one imports its modules first; only then the old one drains and gives way."""

    def __init__(self, options: Settings, arguments: Sequence[str] | None, signals: Signals) -> None:
        self._arguments = list(sys.argv[1:] if arguments is None else arguments)
        self._format: str = options.log_format
        self._signals = signals
        self._notifier = Notifier()
        self._files = _Files(options.config)
        self._serving: _Server | None = None
        self._next: _Server | None = None
        self._asked: list[str] = []
        self._bound: list[str] = []

    def run(self) -> int:
        """Serves until a signal comes. Returns the exit code."""
        self._begin()
        while True:
            servers = {s.channel.fileno(): s for s in (self._serving, self._next) if s is not None}
            ready, _, _ = select.select([self._signals.fileno(), *servers], [], [], _LOOK_SECONDS)
            if self._signals.fileno() in ready and self._signals.wait(0) == "end":
                return self._end()
            for fd, server in servers.items():
                if fd in ready:
                    self._hear(server)
                elif server.process.poll() is not None:  # and what it started has the socket still
                    self._on_end(server)
            self._notifier.watchdog()
            if changed := self._files.changed():
                self._say("info", "reloading", f"{os.path.relpath(changed)} changed: reloading", file=changed)
                self._notifier.reloading()
                self._begin()

    def _begin(self) -> None:
        if self._next is not None:
            self._discard(self._next)
        self._files.settle()
        self._next = _Server(self._arguments)

    def _hear(self, server: _Server) -> None:
        message = server.channel.receive()
        if message is None:
            self._on_end(server)
        elif message["state"] == "serving":
            self._asked, self._bound = message["asked"], message["bound"]
            self._notifier.ready(f"on {', '.join(self._bound)}")
        else:
            failed = message["state"] == "failed"
            self._files.watch(message["files"], server.started_ns, folders=failed)
            if not failed and server is self._next:
                server.loaded = True
                self._give_way()

    def _give_way(self) -> None:
        """The old server drains; when it is gone the new one, which waits, goes on."""
        if self._serving is not None:
            self._serving.drain()
        elif self._next is not None:
            self._next.channel.send(asked=self._asked, bound=self._bound)
            self._serving, self._next = self._next, None

    def _on_end(self, server: _Server) -> None:
        code = server.process.wait()
        server.channel.close()
        if server is self._next:
            self._next = None
            still = "the old one goes on" if self._serving is not None else "nothing serves"
            self._waiting(f"the new server can't start, {still}", code)
            return
        self._serving = None
        if self._next is None:
            self._waiting("the server ended", code)
        elif self._next.loaded:
            self._give_way()

    def _waiting(self, what: str, code: int) -> None:
        self._say("error", what, f"{what} (exit code {code}); waiting for a change", code=code)

    def _discard(self, server: _Server) -> None:
        """Kills a server that serves nothing yet."""
        server.process.kill()
        server.process.wait()
        server.channel.close()
        self._next = None

    def _end(self) -> int:
        self._notifier.stopping("finishing calls")
        if self._next is not None:
            self._discard(self._next)
        if self._serving is None:
            return 0
        self._serving.drain()
        return self._serving.process.wait()

    def _say(self, level: str, message: str, text: str, **fields: Any) -> None:
        announce(self._format, level, message, text, **fields)


class _Files:
    """The files whose change matters, and how they looked when the last server was started."""

    def __init__(self, config: str | None) -> None:
        self._config = [os.path.abspath(config)] if config is not None else []
        self._paths: set[str] = set(self._config)
        self._folders: set[str] = set()
        self._seen: dict[str, _Signature] = {}
        self._last: dict[str, _Signature] = {}

    def watch(self, files: Iterable[str], since_ns: int, *, folders: bool) -> None:
        """``files`` from now on, as they were at ``since_ns``; with ``folders`` also what is new beside them."""
        self._paths |= {*files, *self._config}
        self._folders = {os.path.dirname(path) for path in self._paths} | {os.getcwd()} if folders else set()
        seen: dict[str, _Signature] = {}
        for path, signature in self._look().items():
            late = signature is not None and signature[0] > since_ns  # read before it was changed, maybe
            seen[path] = self._seen.get(path, None if late else signature)
        self._seen = seen

    def settle(self) -> None:
        """Records the current state of the files as the one that the next server is made of."""
        self._seen = self._look()

    def changed(self) -> str | None:
        """A file that has changed and then rested: editors write in several steps."""
        now, before = self._look(), self._last
        self._last = now
        if now != before:
            return None
        return next((path for path in now if now[path] != self._seen.get(path)), None)

    def _look(self) -> dict[str, _Signature]:
        paths = set(self._paths)
        for folder in self._folders:
            with contextlib.suppress(OSError):
                paths |= {os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".py")}
        return {path: _signature(path) for path in paths}


def _signature(path: str) -> _Signature:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
