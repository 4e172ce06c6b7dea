"""What one peer may take: an honest client beside attackers, first landings, descriptors, memory after a load."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench.honest import LANDING_MIB, LIVE_ARRAYS
from bench.hostile import ATTACKS
from bench.peers.rrpc_client import BenchClient
from bench.processes import Child, descriptor_count, memory_kib
from bench.settings import Settings

Metrics = dict[str, float]
Results = Iterator[tuple[str, Metrics]]

HONEST_TIMES = 10  # as long as other measurements: p99 needs many calls
CONNECTIONS = 50
REST_AFTER_S = 30.0


@contextmanager
def serving(settings: Settings, *listen: str) -> Iterator[tuple[int, list[str]]]:
    """The pid of a fresh rrpc-serve of the benchmark's service, and its addresses."""
    arguments = ["-m", "rrpc.cli.serve", "bench.peers.rrpc_service:Bench", "--workers", "4"]
    arguments += [part for address in listen for part in ("--listen", address)]
    with Child(arguments, settings.child_timeout) as child:
        yield child.pid, [word for word in child.read_line().replace(",", " ").split() if "://" in word]


def client(settings: Settings, *task: str) -> Child:
    return Child(["-m", "bench.honest", *task], settings.child_timeout)


def run_attacked(settings: Settings) -> Results:
    """An honest client by itself and beside each attack, each on a fresh server.

    Attacker and server share the processors with the client here, so there is a control: the same attack, while the
    client calls another server of the machine.
    """
    for attack in ATTACKS:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            path = f"{folder}/bench.sock"
            _, addresses = stack.enter_context(serving(settings, "tcp://127.0.0.1:0", f"shm://{path}"))
            _, elsewhere = stack.enter_context(serving(settings, "tcp://127.0.0.1:0"))
            alone = paced(addresses[0], settings)
            attacker = Child(["-m", "bench.hostile", attack, addresses[0], path], settings.child_timeout)
            stack.enter_context(attacker).read_line()
            attacked = paced(addresses[0], settings)
            yield attack, beside(alone, attacked, paced(elsewhere[0], settings))


def paced(address: str, settings: Settings) -> Metrics:
    seconds = settings.seconds * HONEST_TIMES
    with client(settings, "paced", address, str(settings.small_bytes), str(seconds)) as child:
        metrics: Metrics = child.read_json()
        return metrics


def beside(alone: Metrics, attacked: Metrics, elsewhere: Metrics) -> Metrics:
    return {
        "p99_us": attacked["p99_us"],
        "p99_times": attacked["p99_us"] / alone["p99_us"],
        "elsewhere_times": elsewhere["p99_us"] / alone["p99_us"],
        "array_p99_us": attacked["array_p99_us"],
        "array_p99_times": attacked["array_p99_us"] / alone["array_p99_us"],
        "array_elsewhere_times": elsewhere["array_p99_us"] / alone["array_p99_us"],
        "connect_ms": attacked["connect_ms"],
        "failed": attacked["failed"],
    }


def run_first_landing(settings: Settings) -> Results:
    for task in ("argument", "result", "pool argument", "pool result"):
        with ExitStack() as stack:
            _, addresses = stack.enter_context(serving(settings, "rrpc://127.0.0.1:0"))
            child = stack.enter_context(client(settings, "first", task, addresses[0]))
            yield f"{LANDING_MIB} MiB {task}", child.read_json()


def run_descriptors(settings: Settings) -> Results:
    with client(settings, "live") as child:
        yield f"{LIVE_ARRAYS:,} live arrays", child.read_json()
    with tempfile.TemporaryDirectory() as folder:
        for listen in (f"shm://{folder}/bench.sock", "tcp://127.0.0.1:0", "rrpc://127.0.0.1:0"):
            with serving(settings, listen) as (pid, addresses):
                kind = listen.split("://")[0]
                yield f"a connection, {kind}", {"descriptors": each_connection(pid, addresses[0])}


def each_connection(pid: int, address: str) -> float:
    with ExitStack() as stack:
        counts = []
        for connections in (1, CONNECTIONS):
            for _ in range(connections):
                stack.enter_context(BenchClient(address)).echo(b"")
            counts.append(descriptor_count(pid))
        return (counts[1] - counts[0]) / CONNECTIONS


def run_resident(settings: Settings) -> Results:
    """What both processes hold 30 s after they moved 10 GB, more than before."""
    with ExitStack() as stack:
        pid, addresses = stack.enter_context(serving(settings, "rrpc://127.0.0.1:0"))
        child = stack.enter_context(client(settings, "load", addresses[0]))
        child.read_line()
        pids = {"server": pid, "client": child.pid}
        before = {side: memory_kib(pid)["rss"] for side, pid in pids.items()}
        child.write_line("go")
        child.read_line()
        time.sleep(REST_AFTER_S)  # a stretch of time is the thing measured here
        after = {side: memory_kib(pid)["rss"] for side, pid in pids.items()}
        yield (
            "30 s after 10 GB",
            {f"{side}_grown_mib": (after[side] - before[side]) / 1024 for side in pids},
        )


BUDGETS: dict[str, tuple[str, Callable[[Settings], Results]]] = {
    "attacked": ("rrpc tcp", run_attacked),
    "first landing": ("rrpc shm", run_first_landing),
    "descriptors": ("rrpc shm", run_descriptors),
    "resident": ("rrpc shm", run_resident),
}
"""By task: the subject, and what measures it."""
