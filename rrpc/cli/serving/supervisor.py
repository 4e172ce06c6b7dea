"""Several processes behind one address: started, started again when they die, and ended together."""

from __future__ import annotations

import logging
import selectors
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from rrpc._server.redirector import Redirector
from rrpc.cli.common import BadInput, one_line

from .log_format import announce, announce_serving
from .newcomers import Newcomers
from .notify import Notifier
from .overview import Overview
from .process import Process
from .settings import Settings, guards_of, tls_options
from .signals import Signals

_DELAY_MIN, _DELAY_MAX = 0.1, 10.0
_STABLE_SECONDS = 10.0  # one that lived so long is started again at once
_PORT_MAX = 65535
_LATE_SECONDS = 10.0  # after the grace, for a process to say what still runs, and to end


def supervise(options: Settings, signals: Signals, arguments: Sequence[str] | None) -> int:
    """Runs the processes until a signal comes. Returns the exit code; raises BadInput or RpcError if none can start."""
    return _Supervisor(options, signals, arguments).run()


class _Supervisor:
    def __init__(self, options: Settings, signals: Signals, arguments: Sequence[str] | None) -> None:
        self._options = options
        self._signals = signals
        self._command = _command(arguments)
        self._notifier = Notifier()
        self._processes: dict[int, Process] = {}
        self._due: dict[int, float] = {}  # when the one of that number is started again
        self._delays: dict[int, float] = {}
        self._newcomers = Newcomers()
        self._serving = False
        self._kill_at: float | None = None  # once they have been told to end
        self._exit_code = 0
        self._overview = Overview(options, lambda: list(self._processes.values()))
        self._redirector = Redirector(
            any_user=options.any_user,
            allow_clients=options.allow_client,
            connections_max=options.connections_max,
            **tls_options(options),
        )
        last = self._port(len(options.listen) - 1, options.processes)
        if last > _PORT_MAX:
            raise BadInput(f"--process-ports {options.process_ports}: the last one would be {last}")
        self._bound = [self._redirector.listen(address) for address in options.listen]
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
        for number in range(1, self._options.processes + 1):
            self._start(number)
        while self._processes or self._due:
            for key, _ in self._selector.select(self._patience()):
                heed: Callable[[], None] = key.data
                heed()
            self._notifier.watchdog()
            self._on_time(time.monotonic())
        self._redirector.stop()
        return self._exit_code

    def _patience(self) -> float | None:
        times = list(self._due.values())
        if self._kill_at is not None:
            times.append(self._kill_at)
        if (asked := self._newcomers.due()) is not None:
            times.append(asked)
        waits = [max(0.0, min(times) - time.monotonic())] if times else []
        if self._notifier.watchdog_interval is not None:
            waits.append(self._notifier.watchdog_interval)
        return min(waits, default=None)

    def _start(self, number: int) -> None:
        listen = [
            Redirector.beside(bound, str(number), self._port(index, number), self._options.listen[index])
            for index, bound in enumerate(self._bound)
        ]
        process = Process(number, self._command, listen, self._options.processes, guards_of(self._options))
        self._processes[number] = process
        self._selector.register(process.channel, selectors.EVENT_READ, partial(self._on_word, process))
        self._selector.register(process.exit_fd, selectors.EVENT_READ, partial(self._on_exit, process))

    def _port(self, index: int, number: int) -> int:
        """Returns the port of process ``number`` for the address at ``index``; 0 means any port.

        Ports are numbered by address first, then by process.
        """
        first: int | None = self._options.process_ports
        return 0 if first is None else first + index * int(self._options.processes) + number - 1

    def _on_word(self, process: Process) -> None:
        if process.closed:
            return  # its end was noticed in the same round
        was_ready = process.was_ready
        if not process.hear():
            self._selector.unregister(process.channel)
        if process.was_ready and not was_ready and self._serving and self._kill_at is None:
            self._newcomers.add(process, list(self._processes.values()))
        self._update()

    def _update(self) -> None:
        """Clients are sent to those that take some, from when all have been ready once."""
        processes = list(self._processes.values())
        all_were = len(processes) == self._options.processes and all(one.was_ready for one in processes)
        if not self._serving and (not all_were or self._kill_at is not None):
            return
        first = self._newcomers.first(processes)
        for index, bound in enumerate(self._bound):
            self._redirector.redirect(bound, [one.addresses[index] for one in first])
        self._newcomers.spread(processes)
        if not self._serving:
            self._announce(processes[0].services)

    def _announce(self, services: str) -> None:
        """Last of all: whoever reads it may at once do what a server that is ready allows."""
        self._serving = True
        if self._options.config is not None or self._options.access_log is not None:
            self._signals.take_reloads()
        self._overview.ready(self._bound)
        announce_serving(self._options.log_format, services, self._bound, self._overview.url)
        self._notifier.ready(f"{services} on {', '.join(self._bound)}")

    def _on_exit(self, process: Process) -> None:
        self._selector.unregister(process.exit_fd)
        if process.channel in self._selector.get_map():
            self._selector.unregister(process.channel)
        how = process.close()
        del self._processes[process.number]
        self._newcomers.discard(process)
        if self._kill_at is not None:
            self._exit_code = self._exit_code or (1 if how else 0)
        elif not self._serving:
            self._give_up(process, how)
        else:
            self._start_again(process, how)
        self._update()

    def _give_up(self, process: Process, how: str) -> None:
        reason = process.error or f"process {process.number} {how or 'ended'} before it was ready"
        announce(self._options.log_format, "error", one_line(reason), one_line(reason))
        self._exit_code = 2
        self._end("giving up", 0.0)

    def _start_again(self, process: Process, how: str) -> None:
        now = time.monotonic()
        number = process.number
        delay = 0.0
        if now - process.started < _STABLE_SECONDS:
            delay = min(max(2 * self._delays.get(number, 0.0), _DELAY_MIN), _DELAY_MAX)
        self._delays[number] = delay
        self._due[number] = now + delay
        log = logging.getLogger("rrpc.serve")
        text = process.error or how or "ended"
        when = f"in {delay:g} s" if delay else "at once"
        log.warning("process %d (%d) %s; it is started again %s", number, process.pid, text, when)

    def _on_signal(self) -> None:
        told = self._signals.wait(0)
        if told == "end" and self._kill_at is None:
            self._end("finishing calls", self._options.drain_delay + self._options.grace)
        elif told == "reload":
            for process in self._processes.values():
                process.tell("reload")

    def _end(self, status: str, grace: float) -> None:
        self._overview.draining()
        self._notifier.stopping(status)
        self._due.clear()
        self._kill_at = time.monotonic() + grace + _LATE_SECONDS
        for process in self._processes.values():
            process.tell("end")

    def _on_time(self, now: float) -> None:
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._start(number)
        if self._newcomers.tend(now, list(self._processes.values())):
            self._update()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + _LATE_SECONDS
            for process in self._processes.values():
                text = f"process {process.number} ({process.pid}) didn't end and is killed"
                announce(self._options.log_format, "error", text, text)
                process.kill()


def _command(arguments: Sequence[str] | None) -> list[str]:
    """Returns the command line of this process, or one with ``arguments``."""
    if arguments is None:
        return [sys.executable, *sys.orig_argv[1:]]
    return [sys.executable, "-m", "rrpc.cli.serve", *arguments]
