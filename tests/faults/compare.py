"""``python -m tests.faults.compare``: the same faults, done to rrpc over tcp and to grpcio by one man in the middle.

Where ucxx is installed, it takes part in those that need no man in the middle: its transports choose their own ways.

What is asked of each is what docs/reliability.md promises: waits that end in time, with an error that fits, a client
that calls again once the fault is over, and no files left open.
"""

import argparse
import importlib.util
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The modules of the tests import each other by name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

from faults.line import Line
from faults.metronome import Metronome
from faults.relay import DOWN, UP, Relay

COLUMNS = [(system, style) for system in ("rrpc", "grpcio") for style in ("blocking", "asyncio")]
DIRECT = ("ucxx",)  # without a man in the middle
if importlib.util.find_spec("ucxx"):
    COLUMNS.append(("ucxx", "asyncio"))
DEADLINE = 0.6
LATE = 0.1
DEAD = 1.0
KEEPALIVE = 2.0  # what both are told: after 1 s without a word a probe, which may take 1 s
AGAIN = 5.0
STOPPED = 1.0
BUSY = 0.5  # the most that a busy machine excuses
UNDER_WAY = 0.02  # after so long a direct call is with its handler, which takes 50 ms
CLIENTS_TRIED = 5
ENDLESS = 6.0  # a wait that goes on for longer ends with the fault


@dataclass(frozen=True)
class Fault:
    """A row: what is done to a call, when so many bytes have passed in a direction, and the codes that fit."""

    name: str
    action: str
    call: str
    direction: int
    after_bytes: int
    timeout: float | None
    codes: tuple[str, ...]

    @property
    def within(self) -> float:
        """Seconds: of a wait with a deadline from its begin, of another one from the fault."""
        if self.timeout is not None:
            return self.timeout + LATE
        return DEAD + (KEEPALIVE if self.action in ("silence", "stop") else 0.0)

    def fits(self, system: str) -> bool:
        """Whether it can be done to that system."""
        return system not in DIRECT or (self.action in ("kill", "stop") and self.after_bytes == 0)


_LOST = ("UNAVAILABLE",)
_LATE = ("DEADLINE_EXCEEDED", "UNAVAILABLE")
_DAMAGED = ("UNAVAILABLE", "INTERNAL", "OK", "INVALID_ARGUMENT", "UNKNOWN", "DEADLINE_EXCEEDED")
MEBIBYTE = 1 << 20
FAULTS = [
    Fault("server killed, call under way", "kill", "small", UP, 0, None, _LOST),
    Fault("server killed amid an argument", "kill", "argument", UP, MEBIBYTE, None, _LOST),
    Fault("server killed amid a result", "kill", "result", DOWN, MEBIBYTE, None, _LOST),
    Fault("server stopped for 1 s, deadline", "stop", "small", UP, 0, DEADLINE, _LATE),
    Fault("server stopped, no deadline, keep-alive 1 s + 1 s", "stop", "small", UP, 0, None, _LOST),
    Fault("connection cut, call under way", "cut", "small", UP, 0, None, _LOST),
    Fault("connection cut amid an argument", "cut", "argument", UP, MEBIBYTE, None, _LOST),
    Fault("reset amid a result", "reset", "result", DOWN, MEBIBYTE, None, _LOST),
    Fault("silence, deadline", "silence", "small", UP, 0, DEADLINE, _LATE),
    Fault("silence amid a result, deadline", "silence", "result", DOWN, MEBIBYTE, DEADLINE, _LATE),
    Fault("silence, no deadline, keep-alive 1 s + 1 s", "silence", "small", UP, 0, None, _LOST),
    Fault("delay past the deadline", "delay", "small", DOWN, 0, DEADLINE, _LATE),
    Fault("a bit flipped in an argument", "flip", "argument", UP, MEBIBYTE, 5.0, _DAMAGED),
]


@dataclass
class Cell:
    """What came of the cases of a row for one column."""

    passed: int = 0
    cases: int = 0
    waits: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    texts: Counter[str] = field(default_factory=Counter)
    damaged_results: int = 0

    def __str__(self) -> str:
        if not self.cases:
            return "–"
        wait, again = (
            f"{statistics.median(each) * 1e3:.0f}" if each else "-" for each in (self.waits, self.again)
        )
        return f"{self.passed}/{self.cases}, {wait} ms, {again} ms"


def _nothing() -> None: ...


class Process:
    """A client or a server."""

    def __init__(self, kind: str, system: str, style: str, port: int) -> None:
        ours, theirs = socket.socketpair()
        ends = str(Path(__file__).with_name("compare_ends.py"))
        self._process = subprocess.Popen(
            [sys.executable, ends, kind, system, style, str(theirs.fileno()), str(port)],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self._line = Line(ours)
        self.said = self._line.receive(30)

    def ask(self, **said: Any) -> dict[str, Any]:
        self.begin(**said)
        return self.answer(30)

    def begin(self, **said: Any) -> None:
        self._line.send(**said)

    def answer(self, timeout: float) -> dict[str, Any]:
        return self._line.receive(timeout)

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> int:
        """Returns how it ended: minus the signal's number."""
        self._process.kill()
        self._line.close()
        return self._process.wait()


class Lane:
    """A client and a server of one column, with the relay between them."""

    def __init__(self, system: str, style: str, metronome: Metronome, seed: int) -> None:
        self._system, self._style = system, style
        self._metronome = metronome
        self._chance = random.Random(seed)
        self._relay = Relay()
        self._begin_server(0)
        self._resume: Callable[[], None] = _nothing
        self.ended: Counter[int] = Counter()
        """Clients that ended by themselves, by their status."""
        self._begin_client()

    def _begin_client(self) -> None:
        port = self._relay.target if self._system in DIRECT else self._relay.port
        for _ in range(CLIENTS_TRIED):
            self._client = Process("client", self._system, self._style, port)
            try:
                self._calls_again(30.0)
            except (EOFError, ConnectionError):
                self.ended[self._client.kill()] += 1
            else:
                return
        raise RuntimeError(f"clients of {self._system} {self._style} end at once: {self.ended}")

    def _begin_server(self, port: int) -> None:
        if self._system in DIRECT:  # whose listeners don't take a port again at once
            port = 0
        self._server = Process("server", self._system, self._style, port)
        self._relay.target = self._server.said["port"]

    def _begin_again(self) -> None:
        self._begin_server(self._relay.target)
        if self._system in DIRECT:
            self._client.ask(do="move", port=self._relay.target)

    def close(self) -> None:
        self._client.kill()
        self._server.kill()
        self._relay.close()

    def _calls_again(self, within: float) -> float | None:
        """Returns after how many seconds a call was answered; None: not in time."""
        start = time.monotonic()
        while time.monotonic() < start + within:
            if self._client.ask(do="call", name="small", timeout=1.0).get("right"):
                return time.monotonic() - start
            time.sleep(0.01)
        return None

    def carry_out(self, fault: Fault, cell: Cell) -> None:
        """One case."""
        try:
            self._carry_out(fault, cell)
        except (EOFError, ConnectionError):
            self._end_fault()
            status = self._client.kill()
            self.ended[status] += 1
            ended = f"the client's process ended with {status}"
            cell.cases += 1
            cell.texts[ended] += 1
            cell.wrong.append(f"{self._system} {self._style}, {fault.name}: {ended}")
            self._begin_client()

    def _end_fault(self) -> None:
        resume, self._resume = self._resume, _nothing
        resume()

    def _carry_out(self, fault: Fault, cell: Cell) -> None:
        files = self._client.ask(do="look")["files"]
        trap = self._relay.set_trap(fault.direction, fault.after_bytes)
        begun = time.monotonic()
        self._client.begin(do="call", name=fault.call, timeout=fault.timeout)
        if self._system in DIRECT:
            time.sleep(UNDER_WAY)
        else:
            sprung = trap.sprung.wait(10)
            assert sprung, "no byte came"
        struck = time.monotonic()
        self._resume = self._strike(fault, trap)
        said = self._answer(ENDLESS)
        self._end_fault()
        said = said or self._client.answer(60)
        again = self._calls_again(AGAIN)
        self._judge(fault, cell, said, begun if fault.timeout is not None else struck, again, files)

    def _answer(self, timeout: float) -> dict[str, Any] | None:
        try:
            return self._client.answer(timeout)
        except TimeoutError:
            return None

    def _strike(self, fault: Fault, trap: Any) -> Callable[[], None]:
        """Does the fault; returns what is to be done once the call has ended."""
        if fault.action == "kill":
            self._server.kill()
            trap.go_on.set()
            return self._begin_again
        if fault.action == "stop":
            self._server.signal(signal.SIGSTOP)
            trap.go_on.set()
            if fault.timeout is None:
                return lambda: self._server.signal(signal.SIGCONT)
            timer = threading.Timer(STOPPED, self._server.signal, [signal.SIGCONT])
            timer.start()
            return timer.join
        if fault.action == "delay":
            timer = threading.Timer(2 * DEADLINE, trap.go_on.set)
            timer.start()
            return timer.join
        if fault.action == "silence":
            self._relay.silence(True)
            trap.go_on.set()
            return lambda: self._relay.silence(False)
        if fault.action == "flip":
            self._relay.flip_a_bit(self._chance)
        else:
            self._relay.cut(reset=fault.action == "reset")
        trap.go_on.set()
        return _nothing

    def _judge(
        self, fault: Fault, cell: Cell, said: dict[str, Any], start: float, again: float | None, files: int
    ) -> None:
        wait = said["ended"] - start
        late = self._metronome.lateness(start, said["ended"])
        wrong = []
        if fault.action != "flip" and wait > fault.within + min(4 * late, BUSY):
            wrong.append(f"the wait took {wait:.2f} s")
        if said["code"] not in fault.codes:
            wrong.append(f"{said['code']}: {said['text']}")
        if again is None:
            wrong.append(f"the client didn't call again within {AGAIN:.0f} s")
        else:
            cell.again.append(again)
        left = self._client.ask(do="look")["files"] - files
        if left > 4:
            wrong.append(f"{left} files more are open")
        damaged = said["code"] == "OK" and not said["right"]
        cell.damaged_results += damaged
        cell.cases += 1
        cell.passed += not wrong
        cell.waits.append(wait)
        cell.texts[f"{said['code']}: {said['text'][:100]}"] += 1
        cell.wrong += [f"{self._system} {self._style}, {fault.name}: {each}" for each in wrong]


def table(cells: dict[tuple[str, tuple[str, str]], Cell], faults: Sequence[Fault]) -> str:
    """In Markdown."""
    lines = [
        "| | " + " | ".join(" ".join(column) for column in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    lines += [
        f"| {fault.name} | " + " | ".join(str(cells[fault.name, column]) for column in COLUMNS) + " |"
        for fault in faults
    ]
    return "\n".join(lines)


def run(cases: int, seed: int, faults: Sequence[Fault]) -> dict[tuple[str, tuple[str, str]], Cell]:
    """All columns beside each other, so that the machine treats them alike."""
    metronome = Metronome()
    cells = {(fault.name, column): Cell() for fault in faults for column in COLUMNS}
    failed: list[BaseException] = []

    def column(which: tuple[str, str]) -> None:
        try:
            lane = Lane(*which, metronome, seed)
            try:
                for _ in range(cases):
                    for fault in faults:
                        if fault.fits(which[0]):
                            lane.carry_out(fault, cells[fault.name, which])
            finally:
                lane.close()
                if lane.ended:
                    print(f"{' '.join(which)}: clients ended by themselves, with {dict(lane.ended)}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=column, args=(which,)) for which in COLUMNS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metronome.close()
    if failed:
        raise failed[0]
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.compare", description=__doc__)
    parser.add_argument("--cases", type=int, default=12, help="of each row in each column (12)")
    parser.add_argument("--seed", type=int, default=1, help="of the flipped bits (1)")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    given = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if given.only in fault.name]
    cells = run(given.cases, given.seed, faults)
    print(table(cells, faults))
    for (name, which), cell in cells.items():
        for text, count in cell.texts.most_common(2):
            print(f"{' '.join(which)}, {name}: {count} x {text}")
    for cell in cells.values():
        for wrong in cell.wrong:
            print("WRONG", wrong)
    for which in COLUMNS:
        damaged = sum(cell.damaged_results for (_, other), cell in cells.items() if other == which)
        print(f"{' '.join(which)}: {damaged} results were damaged, and nobody noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
