"""What is run: each workload, over each of its subjects (peers and limits), in interleaved rounds."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from bench.budgets import BUDGETS
from bench.client import MODES, Job, Task
from bench.limits import LIMITS
from bench.peers import PEERS
from bench.processes import Child, ChildFailedError, cpu_seconds, memory_kib
from bench.settings import TURNS, Settings, turns_case

Metrics = dict[str, float]


@dataclass(frozen=True)
class Record:
    """One measurement of one subject in one round."""

    workload: str
    case: str
    subject: str
    round: int
    metrics: Metrics


@dataclass(frozen=True)
class Workload:
    key: str
    title: str
    task: Task

    @property
    def bounds(self) -> str:
        """Which of the limits belong beside it."""
        return {"unary": "echo", "argument": "array", "result": "array"}.get(self.task, "")

    def peers(self) -> list[str]:
        if self.task in BUDGETS:
            return [BUDGETS[self.task][0]]
        if self.task in ("ways", "traced", "lent"):
            return ["rrpc shm"]
        if self.task == "turns":
            return ["rrpc shm", "rrpc tcp"]
        if self.task == "streams":
            return [name for name, peer in PEERS.items() if peer.streams]
        if MODES[self.task] == "aio":
            return [name for name, peer in PEERS.items() if peer.asyncio]
        if self.task in ("connections", "idle"):
            return [name for name, peer in PEERS.items() if peer.small_calls and peer.many_connections]
        arrays = MODES[self.task] != "echo"
        return [name for name, peer in PEERS.items() if (peer.arrays if arrays else peer.small_calls)]

    def limits(self) -> list[str]:
        return [name for name, limit in LIMITS.items() if limit.bounds == self.bounds]

    def rounds(self, settings: Settings) -> int:
        if self.task in ("argument", "result", "attacked", "first landing"):
            return settings.array_rounds
        rests = self.task in BUDGETS or self.task in ("connections", "idle", "turns")
        return settings.connection_rounds if rests else settings.rounds


WORKLOADS = [
    Workload("W1", "small unary call, one in flight", "unary"),
    Workload("W2", "small calls, pipelined from one blocking client", "pipelined"),
    Workload("W3", "float32 array as argument", "argument"),
    Workload("W4", "float32 array as result", "result"),
    Workload("W5", "connections", "connections"),
    Workload("W6", "CPU of idle processes", "idle"),
    Workload("W7", "small unary call, by the generated client and by hand", "ways"),
    Workload("W8", "small unary call, in a process that has traced calls or never did", "traced"),
    Workload("W9", "asyncio: small unary call, and an array as argument, one in flight", "aio_unary"),
    Workload("W10", "asyncio: small calls of as many tasks as are in flight", "aio_pipelined"),
    Workload("W11", "streams of small items, and of arrays beside results of their size", "streams"),
    Workload("W12", "an honest client beside an attacker", "attacked"),
    Workload("W13", "large arrays that land in memory never used before", "first landing"),
    Workload("W14", "file descriptors of live arrays, and of a connection at its server", "descriptors"),
    Workload("W15", "resident memory after a load", "resident"),
    Workload("W16", "small calls over many connections in turn", "turns"),
    Workload("W17", "large arrays that the receiver reads in place", "lent"),
]


@dataclass
class Outcome:
    records: list[Record] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    pid: int
    address: str


@contextmanager
def serving(peer: str, task: Task, settings: Settings) -> Iterator[Server]:
    """A fresh server process, ready to be called."""
    with Child(PEERS[peer].server_arguments(MODES[task]), settings.child_timeout) as child:
        yield Server(child.pid, child.read_line().split()[-1])


def job(task: Task, peer: str, server: Server, settings: Settings, connections: int = 1) -> Job:
    return Job(
        task=task,
        peer=peer,
        address=server.address,
        server_pid=server.pid,
        seconds=settings.seconds,
        small_bytes=settings.small_bytes,
        window=settings.window,
        sizes_mib=list(settings.sizes_mib),
        lent_mib=settings.lent_mib,
        connections=connections,
    )


def client(task: Task, peer: str, server: Server, settings: Settings, connections: int = 1) -> Child:
    return Child(job(task, peer, server, settings, connections).command(), settings.child_timeout)


Results = Iterator[tuple[str, Metrics]]


def run_calls(task: Task, peer: str, settings: Settings) -> Results:
    """The client process times the calls itself and prints what it found."""
    with serving(peer, task, settings) as server, client(task, peer, server, settings) as child:
        for result in child.read_json():
            yield result["case"], result["metrics"]


def run_traced(task: Task, peer: str, settings: Settings) -> Results:
    """Two clients by turns."""
    with serving(peer, task, settings) as server, ExitStack() as stack:
        plain = job(task, peer, server, settings)
        jobs = {"never traced": plain, "has traced a call": replace(plain, has_traced=True)}
        clients = {
            case: stack.enter_context(Child(each.command(), settings.child_timeout))
            for case, each in jobs.items()
        }
        metrics: dict[str, Metrics] = {}
        for _ in range(plain.turns):
            for case, child in clients.items():
                child.write_line("go")
                metrics[case] = child.read_json()
        yield from metrics.items()


def run_connections(task: Task, peer: str, settings: Settings) -> Results:
    for count in settings.connections:
        with serving(peer, task, settings) as server:
            yield f"{count} connection{'s' * (count > 1)}", many_connections(peer, server, count, settings)


def many_connections(peer: str, server: Server, count: int, settings: Settings) -> Metrics:
    processes = min(count, settings.client_processes)
    shares = [count // processes + (number < count % processes) for number in range(processes)]
    before = memory_kib(server.pid)
    with ExitStack() as stack:
        clients = [stack.enter_context(client("connections", peer, server, settings, n)) for n in shares]
        connected = [child.read_json() for child in clients]
        rates = [result["calls_per_s"] for result in tell_all(clients)]
        after = memory_kib(server.pid)
        metrics = {key: max(result[key] for result in connected) for key in connected[0]}
        metrics |= {f"{kind}_kib_each": (after[kind] - before[kind]) / count for kind in after}
        return metrics | {"calls_per_s": sum(rates)} | idle_cpu({"server": server.pid}, settings)


def run_turns(task: Task, peer: str, settings: Settings) -> Results:
    """Each process calls over its connections one after the other."""
    for processes, each in TURNS:
        with serving(peer, task, settings) as server, ExitStack() as stack:
            clients = [
                stack.enter_context(client("connections", peer, server, settings, each))
                for _ in range(processes)
            ]
            for child in clients:
                child.read_json()
            yield (
                turns_case(processes, each),
                {"calls_per_s": sum(r["calls_per_s"] for r in tell_all(clients))},
            )


def tell_all(clients: list[Child]) -> list[Metrics]:
    for child in clients:
        child.write_line("go")
    return [child.read_json() for child in clients]


def idle_cpu(pids: dict[str, int], settings: Settings) -> Metrics:
    """CPU, in percent of one core, after a rest: a stretch of time is the thing measured here."""
    time.sleep(settings.rest_seconds)
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    start = time.perf_counter()
    time.sleep(settings.rest_seconds)
    elapsed = time.perf_counter() - start
    spent = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    return {f"{name}_idle_cpu_percent": seconds / elapsed * 100 for name, seconds in spent.items()}


def run_idle(task: Task, peer: str, settings: Settings) -> Results:
    with serving(peer, task, settings) as server, client(task, peer, server, settings) as child:
        child.read_json()
        yield "after the last call", idle_cpu({"server": server.pid, "client": child.pid}, settings)


def run_budget(task: Task, _: str, settings: Settings) -> Results:
    return BUDGETS[task][1](settings)


RUN: dict[Task, Callable[[Task, str, Settings], Results]] = {
    "unary": run_calls,
    "pipelined": run_calls,
    "argument": run_calls,
    "result": run_calls,
    "connections": run_connections,
    "turns": run_turns,
    "idle": run_idle,
    "ways": run_calls,
    "aio_unary": run_calls,
    "aio_pipelined": run_calls,
    "traced": run_traced,
    "streams": run_calls,
    "lent": run_calls,
    "attacked": run_budget,
    "first landing": run_budget,
    "descriptors": run_budget,
    "resident": run_budget,
}


def run_limit(name: str, settings: Settings) -> Results:
    arguments = ["-m", "bench.limits", name, str(settings.seconds), json.dumps(settings.sizes_mib)]
    with Child(arguments, settings.child_timeout) as child:
        for result in child.read_json():
            yield result["case"], result["metrics"]


def missing(subject: str) -> str:
    return PEERS[subject].missing() if subject in PEERS else LIMITS[subject].missing()


def run_workload(
    workload: Workload,
    chosen: Callable[[str], bool],
    settings: Settings,
    outcome: Outcome,
    note: Callable[[str], None],
) -> None:
    """Every subject once a round, so that a slow minute of the machine falls on all of them."""
    subjects = [name for name in workload.limits() + workload.peers() if chosen(name)]
    for turn in range(workload.rounds(settings)):
        for subject in subjects:
            note(f"{workload.key} round {turn + 1}/{workload.rounds(settings)}: {subject}")
            run_subject(workload, subject, turn, settings, outcome)


def run_subject(workload: Workload, subject: str, turn: int, settings: Settings, outcome: Outcome) -> None:
    if why := missing(subject):
        outcome.failures[subject] = why
        return
    task = workload.task
    run = run_limit(subject, settings) if subject in LIMITS else RUN[task](task, subject, settings)
    try:
        outcome.records += [Record(workload.key, case, subject, turn, metrics) for case, metrics in run]
    except ChildFailedError as error:
        outcome.failures[f"{workload.key} {subject}"] = str(error)
