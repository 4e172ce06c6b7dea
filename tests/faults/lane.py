"""Carries cases out one after the other, between a client process and a server process."""

import os
import random
import select
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from fleet import Nursery, wait_until_gone
from lab import all_stopped
from processes import eventually

from .cases import CONNECTION_ENDS, QUIET, SILENT, STALLS, Case, stretched
from .corruption import corrupted
from .ends import PROGRAM
from .gate import Gate, Wire
from .judge import Judge
from .line import Line
from .metronome import Metronome
from .packet_wire import CABLES, PacketWire
from .shm_wire import ShmWire
from .tcp_wire import TcpWire

WIRES: dict[str, Callable[[Gate, str], Wire]] = {
    "shm": ShmWire,
    "tcp": TcpWire,
    **{name: lambda gate, _, cable=cable: PacketWire(gate, cable) for name, cable in CABLES.items()},  # type: ignore[misc]
}
ANSWER_SECONDS = stretched(30.0)  # nothing that a case waits for takes so long
DELAY_SECONDS = (0.005, 0.15)
TIMES = 3
PAST = stretched(0.8)  # how long a message is held whose call has less than that


class Process:
    """A client or a server, told what to do by a line."""

    def __init__(
        self, nursery: Nursery, listener: socket.socket, kind: str, style: str, namespace: str
    ) -> None:
        self.pid, _ = nursery.begin(f"{kind} {style} {listener.getsockname()} {namespace}")
        self._connection, _ = listener.accept()
        self.line = Line(self._connection)
        self._lives = True
        self.serves: tuple[str, Any] = ("", None)  # of a server: the transport, and its options

    def ask(self, **said: Any) -> dict[str, Any]:
        self.line.send(**said)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """To what it was told last."""
        said = self.line.receive(ANSWER_SECONDS)
        assert "broke" not in said, said["broke"]
        return said

    def has_answered(self) -> bool:
        return bool(select.select([self._connection], [], [], 0)[0])

    def kill(self) -> None:
        """At once; again for one that is gone does nothing."""
        if self._lives:
            self._lives = False
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            wait_until_gone(self.pid)
            self.line.close()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: all_stopped(self.pid))

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Ends:
    """Begins clients and servers, in a folder of their own.

    Args:
        environment: Variables that they have besides this process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rrpc-")
        self.folder = self._folder.name
        self._nursery = Nursery(PROGRAM, environment)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self.folder}/control.sock")
        self._listener.listen()
        self._listener.settimeout(ANSWER_SECONDS)
        self._lock = threading.Lock()
        self._living: list[Process] = []
        self._names = iter(range(1 << 40))

    def begin(self, kind: str, style: str, transport: str = "") -> Process:
        """A "client" of a style, or a "server"; where a transport's are, if its ends aren't in one network."""
        namespace = CABLES[transport].namespaces.get(kind, "-") if transport in CABLES else "-"
        with self._lock:
            process = Process(self._nursery, self._listener, kind, style, namespace)
            self._living.append(process)
        return process

    def listen(self, server: Process, transport: str, options: dict[str, float]) -> str:
        """Has the server listen at a new address, and gives that."""
        if transport == "shm":
            address = f"shm://{self.folder}/{next(self._names)}.sock"
        else:
            address = CABLES[transport].listen if transport in CABLES else f"{transport}://127.0.0.1:0"
        bound: str = server.ask(do="listen", address=address, options=options)["address"]
        return bound

    def close(self) -> None:
        for process in self._living:
            process.kill()
        self._nursery.close()
        self._listener.close()
        self._folder.cleanup()


class Lane:
    """One at a time; lanes beside each other have nothing in common but the machine."""

    def __init__(self, metronome: Metronome) -> None:
        self.metronome = metronome
        self.gate = Gate()
        self._ends = Ends()
        self._wires: dict[str, Wire] = {}
        self._clients: dict[tuple[str, str], Process] = {}
        self._servers: dict[str, Process] = {}

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._ends.close()

    def run(self, case: Case) -> list[str]:
        """Carries a case out; returns what was wrong. One that was only late is carried out again, at most twice."""
        for _ in range(TIMES):
            judge = self._run_once(case)
            if not judge.problems or not judge.only_late:
                break
        return judge.problems

    def _run_once(self, case: Case) -> Judge:
        judge = Judge(case, self.metronome.lateness)
        try:
            _Run(self, case, judge).carry_out()
        except (OSError, EOFError, TimeoutError, AssertionError) as error:
            judge.problem(f"the case broke off: {type(error).__name__}: {error}")
        if judge.problems:  # whatever is wrong with them mustn't be taken for the next case's
            self.end(*self._clients.values(), *self._servers.values())
        self.gate.open()
        self.wire(case.transport).cut()
        return judge

    def client(self, style: str, transport: str) -> Process:
        place = (style, transport if transport in CABLES else "")
        if place not in self._clients:
            self._clients[place] = self._ends.begin("client", *place)
        return self._clients[place]

    def server(self, transport: str, options: dict[str, float], anew: bool = False) -> Process:
        """One that listens; the transport's wire leads to it."""
        if transport not in self._servers:
            self._servers[transport] = self._ends.begin("server", "-", transport)
        server = self._servers[transport]
        if anew or server.serves != (transport, options):
            self.wire(transport).target = self._ends.listen(server, transport, options)
            server.serves = (transport, options)
        return server

    def end(self, *processes: Process) -> None:
        """Kills them; the next case begins others."""
        for process in processes:
            process.kill()
            self._clients = {place: each for place, each in self._clients.items() if each is not process}
            self._servers = {name: each for name, each in self._servers.items() if each is not process}

    def wire(self, transport: str) -> Wire:
        if transport not in self._wires:
            self._wires[transport] = WIRES[transport](self.gate, self._ends.folder)
        return self._wires[transport]


class _Run:
    """One case in a lane."""

    def __init__(self, lane: Lane, case: Case, judge: Judge) -> None:
        self._lane, self._case, self.judge = lane, case, judge
        self._chance = case.chance()
        self._step = case.at()
        self._sender, self._message = self._chance.choice(self._step.stops)
        self._number = self._chance.randint(1, self._step.times)
        self._deadline = self._drawn_deadline(self._chance)
        self._options = dict(QUIET) if case.action in SILENT or case.transport in STALLS else {}
        self._client = lane.client(case.style, case.transport)
        self._server = lane.server(case.transport, self._options, anew=case.step == "GOAWAY")
        self._wire = lane.wire(case.transport)

    def _drawn_deadline(self, chance: random.Random) -> float | None:
        action = self._case.action
        if action == "delay past the deadline":
            return stretched(0.5)
        if action == "corrupt bits":
            return stretched(1.0)
        if self._case.step == "HELLO" and action in SILENT:
            return stretched(0.5)
        return chance.choice((None, stretched(0.3)) if action in SILENT else (None, None, stretched(5.0)))

    def carry_out(self) -> None:
        self._begin()
        reached = self._lane.gate.reached(ANSWER_SECONDS, self._client.has_answered)
        self.judge.fault_at = time.monotonic()
        self._faults[self._case.action.split()[0]](self)
        self._let_go_on()
        if self._case.action != "kill client":
            waits = self._client.answer()["waits"]
            self.judge.waits(waits)
            if not reached and not any(wait["error"] == "DeadlineExceeded" for wait in waits):
                self.judge.problem(f"{self._message} number {self._number} of the {self._sender} never came")
            self._after(connected=not waits[0]["error"])
        self._settle()

    def _begin(self) -> None:
        """Has the client do what the fault comes amid."""
        gate = self._lane.gate
        gate.open()
        connect = {"do": "connect", "address": self._wire.address, "options": self._options}
        if self._case.step == "HELLO":
            gate.arm(self._sender, self._message, 1)
            self._client.line.send(**connect, timeout=self._deadline or stretched(5.0))
            return
        self.judge.all_right(self._client.ask(**connect, timeout=stretched(10.0))["waits"])
        assert not self.judge.problems, "without a fault yet"
        holds = self._case.action in CONNECTION_ENDS
        if holds:
            self.judge.all_right(self._client.ask(do="hold")["waits"])
        gate.arm(self._sender, self._message, self._number)
        self._client.line.send(do="op", what=self._step.op, timeout=self._deadline, times=self._step.times)
        if self._case.step == "GOAWAY":
            eventually(
                lambda: any("waits_to" in method for method in self._server.ask(do="running")["running"])
            )
            self._server.ask(do="drain")
            self._server.serves = ("", None)

    def _let_go_on(self) -> None:
        """Ends the call amid which the server drains."""
        if self._case.step == "GOAWAY" and self._case.action not in ("kill server", "stop server"):
            self._server.ask(do="go_on")

    def _kill(self) -> None:
        victim = self._server if self._case.action == "kill server" else self._client
        self._lane.end(victim)
        self._lane.gate.open()

    def _stop(self) -> None:
        victim, other = self._client, self._server
        if self._case.action == "stop server":
            victim, other = other, victim
        victim.stop()
        self._lane.gate.open()
        self._let_go_on()
        if victim is self._server:
            eventually(other.has_answered, ANSWER_SECONDS)
        elif self._case.step != "HELLO":
            self.judge.server_settled(other.ask(do="settle", within=10.0, files=False))
        else:
            time.sleep(self._chance.uniform(0.0, 0.6))
        victim.resume()
        if self._case.step == "GOAWAY":
            self._server.ask(do="go_on")
        self.judge.resumed_at = time.monotonic()

    def _cut(self) -> None:
        self._wire.cut(reset=self._case.action == "reset")
        self._lane.gate.open()

    def _silence(self) -> None:
        self._lane.gate.mute()
        self._let_go_on()
        eventually(self._client.has_answered, ANSWER_SECONDS)
        if self._case.step != "HELLO":
            self.judge.server_settled(self._server.ask(do="settle", within=10.0, files=False))
        self._cut()

    def _delay(self) -> None:
        past = self._case.action == "delay past the deadline"
        time.sleep(PAST if past else self._chance.uniform(*DELAY_SECONDS))
        self._lane.gate.open()
        self.judge.fault_at = time.monotonic()

    def _corrupt(self) -> None:
        self._lane.gate.open(corrupted(self._case.action, self._message, self._chance))

    _faults: ClassVar[dict[str, Callable[["_Run"], None]]] = {
        "kill": _kill,
        "stop": _stop,
        "cut": _cut,
        "reset": _cut,
        "silence": _silence,
        "delay": _delay,
        "corrupt": _corrupt,
    }

    def _after(self, connected: bool) -> None:
        """The client goes on, over a new connection if need be; so does a new client."""
        if self._case.step == "GOAWAY" or self._case.action == "kill server":
            self._server = self._lane.server(self._case.transport, self._options, anew=True)
        if self._case.action in SILENT:  # so quick a keep-alive takes a busy machine for a dead peer
            self._server = self._lane.server(self._case.transport, {}, anew=True)
        if connected:
            first = self._client.ask(do="again")["waits"]
            self.judge.again(first, self._client.ask(do="again")["waits"])
        self.judge.waits(self._client.ask(do="close")["waits"])
        fresh = self._client.ask(
            do="connect", address=self._wire.address, options={}, timeout=stretched(10.0)
        )
        self.judge.all_right(fresh["waits"])
        assert fresh["waits"][0]["right"], f"a new client isn't served: {fresh['waits'][0]['message']}"
        self.judge.all_right(self._client.ask(do="again")["waits"])
        self._client.ask(do="close")

    def _settle(self) -> None:
        """Nothing is left where a process survives."""
        if self._case.action == "kill client":
            self.judge.server_settled(self._server.ask(do="settle", within=10.0, files=False))
            return
        self.judge.settled("client", self._client.ask(do="settle", within=10.0))
        self.judge.settled("server", self._server.ask(do="settle", within=10.0))
