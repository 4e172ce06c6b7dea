"""The client process: ``python -m bench.client JOB`` does one job (JSON) and prints its results as JSON."""

import asyncio
import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from bench import asynchronous
from bench.measure import bandwidth, case_name, latency, percentile, time_calls
from bench.peers import PEERS
from bench.peers.base import Connection, Mode, touched
from bench.processes import cpu_seconds
from bench.settings import MIB

Task = Literal[
    "unary",
    "pipelined",
    "argument",
    "result",
    "connections",
    "turns",
    "idle",
    "ways",
    "traced",
    "aio_unary",
    "aio_pipelined",
    "streams",
    "lent",
    "attacked",
    "first landing",
    "descriptors",
    "resident",
]
TURNS = 20
ITEMS = 20_000
ARRAYS = 32
MODES: dict[Task, Mode] = {
    "unary": "echo",
    "pipelined": "echo",
    "argument": "send",
    "result": "fetch",
    "connections": "echo",
    "turns": "echo",
    "idle": "echo",
    "ways": "echo",
    "streams": "echo",
    "lent": "echo",
    "aio_unary": "aio",
    "aio_pipelined": "aio",
    "traced": "echo",
}


@dataclass(frozen=True)
class Job:
    task: Task
    peer: str
    address: str
    server_pid: int
    seconds: float
    small_bytes: int
    window: int
    sizes_mib: list[float]
    lent_mib: float
    connections: int = 1
    has_traced: bool = False

    def command(self) -> list[str]:
        return ["-m", "bench.client", json.dumps(asdict(self))]

    def connect(self) -> Connection:
        return PEERS[self.peer].connect(self.address, MODES[self.task])

    @property
    def turns(self) -> int:
        """What is compared goes by turns: so many."""
        return max(1, min(TURNS, round(self.seconds * 100)))

    @property
    def items(self) -> int:
        """In one stream."""
        return max(100, min(ITEMS, round(self.seconds * 1e5)))

    def small(self) -> bytes:
        return bytes(i % 256 for i in range(self.small_bytes))

    def server_cpu(self, connection: Connection | None = None) -> float:
        """CPU seconds of the process that answers the connection's calls."""
        return cpu_seconds((connection and connection.server_pid()) or self.server_pid)

    def cpu(self, connection: Connection | None = None) -> float:
        """CPU seconds of both processes: this one, and the one that answers the connection's calls."""
        return time.process_time() + self.server_cpu(connection)


def say(results: object) -> None:
    print(json.dumps(results), flush=True)


def unary(job: Job) -> None:
    connection, data = job.connect(), job.small()
    assert connection.echo(data) == data
    say([{"case": f"{len(data)} B", "metrics": latency(lambda: connection.echo(data), job.seconds)}])
    connection.close()


def pipelined(job: Job) -> None:
    connection, data = job.connect(), job.small()
    batch = job.window * 16
    connection.pipeline(data, job.window, batch)
    cpu_before = job.cpu(connection)
    times = time_calls(lambda: connection.pipeline(data, job.window, batch), job.seconds)
    cpu_spent, calls = job.cpu(connection) - cpu_before, batch * len(times)
    metrics = {"calls_per_s": calls / sum(times) * 1e9, "cpu_us_per_call": cpu_spent / calls * 1e6}
    say([{"case": f"{job.window} in flight", "metrics": metrics}])
    connection.close()


def arrays(job: Job) -> None:
    connection, results = job.connect(), []
    for size in job.sizes_mib:
        nbytes = int(size * MIB)
        sends = job.task == "argument"
        call = send_call(connection, nbytes) if sends else fetch_call(connection, nbytes)
        owner_cpu = time.process_time if sends else functools.partial(job.server_cpu, connection)
        metrics = bandwidth(call, nbytes, job.seconds, functools.partial(job.cpu, connection), owner_cpu)
        metrics |= copies(connection, call, nbytes)
        results.append({"case": case_name(size), "metrics": metrics})
    say(results)
    connection.close()


def send_call(connection: Connection, nbytes: int) -> Callable[[], None]:
    array = connection.array(nbytes)

    def call() -> None:
        assert connection.send(array) == nbytes

    return call


def fetch_call(connection: Connection, nbytes: int) -> Callable[[], None]:
    last = connection.fetch(nbytes)[-1]

    def call() -> None:
        array = connection.fetch(nbytes)
        assert array.nbytes == nbytes
        assert array[-1] == last

    return call


def copies(connection: Connection, call: Callable[[], None], nbytes: int) -> dict[str, float]:
    """How often the bytes of one call are copied, where the peer counts it."""
    before = connection.bytes_copied()
    if before is None:
        return {}
    call()
    after = connection.bytes_copied()
    assert after is not None
    return {"copies": (after - before) / nbytes}


def connections(job: Job) -> None:
    """Connect and say so; on a line, call round robin and say so; on another, close."""
    data, open_connections, connect_ns = job.small(), [], []
    for _ in range(job.connections):
        before = time.perf_counter_ns()
        connection = job.connect()
        connection.echo(data)
        connect_ns.append(time.perf_counter_ns() - before)
        open_connections.append(connection)
    say({f"connect_p{part}_ms": percentile(connect_ns, part / 100) / 1e6 for part in (50, 99)})
    sys.stdin.readline()
    say({"calls_per_s": round_robin(open_connections, data, job.seconds)})
    sys.stdin.readline()
    for connection in open_connections:
        connection.close()


def round_robin(open_connections: list[Connection], data: bytes, seconds: float) -> float:
    start = now = time.perf_counter()
    calls = 0
    while now - start < seconds:
        for connection in open_connections:
            connection.echo(data)
        calls += len(open_connections)
        now = time.perf_counter()
    return calls / (now - start)


def idle(job: Job) -> None:
    """Make calls, say so, stay connected until a line comes."""
    connection, data = job.connect(), job.small()
    time_calls(lambda: connection.echo(data), job.seconds)
    say({})
    sys.stdin.readline()
    connection.close()


def aio_unary(job: Job) -> None:
    async def main() -> None:
        connection = await PEERS[job.peer].connect_async(job.address)
        small = await asynchronous.latency(connection, job.small(), job.seconds)
        array = await asynchronous.bandwidth(connection, touched(int(MIB)), job.seconds)
        say(
            [
                {"case": f"{job.small_bytes} B", "metrics": small},
                {"case": "1 MiB argument", "metrics": array},
            ]
        )
        await connection.close()

    asyncio.run(main())


def aio_pipelined(job: Job) -> None:
    async def main() -> None:
        connection = await PEERS[job.peer].connect_async(job.address)
        metrics = await asynchronous.throughput(connection, job.small(), job.seconds, job.window, job.cpu)
        say([{"case": f"{job.window} in flight", "metrics": metrics}])
        await connection.close()

    asyncio.run(main())


def ways(job: Job) -> None:
    """One call in several ways, by turns on one connection: a busy moment falls on all of them."""
    connection, data = job.connect(), job.small()
    calls = connection.ways()
    times: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(job.turns):
        for name, call in calls.items():
            assert call(data) == data
            times[name] += time_calls(functools.partial(call, data), job.seconds / job.turns)
    say([{"case": name, "metrics": {"p50_us": percentile(times[name], 0.5) / 1e3}} for name in calls])
    connection.close()


def streams(job: Job) -> None:
    """Small items both ways, and arrays beside results of the same size, by turns on one connection."""
    connection, data = job.connect(), job.small()
    results = [items("received", functools.partial(connection.receive, data), job)]
    results.append(items("sent", functools.partial(connection.stream, data), job))
    if connection.receive_records(1) is not None:
        results.append(items("records received", connection.receive_records, job))
    nbytes = int(MIB)
    each = functools.partial(connection.fetch_each, nbytes, ARRAYS)
    alone = fetch_call(connection, nbytes)
    streamed, fetched = [], []
    for _ in range(job.turns):
        streamed += [time / ARRAYS for time in time_calls(each, job.seconds / job.turns)]
        fetched += time_calls(alone, job.seconds / job.turns)
    results.append({"case": "1 MiB items", "metrics": {"gbps": nbytes / median(streamed)}})
    results.append({"case": "1 MiB results", "metrics": {"gbps": nbytes / median(fetched)}})
    say(results)
    connection.close()


def items(case: str, pass_items: Callable[[int], object], job: Job) -> dict[str, Any]:
    """One stream after the other."""
    assert pass_items(job.items) == job.items
    cpu_before = job.cpu()
    times = time_calls(lambda: pass_items(job.items), job.seconds)
    cpu_spent, count = job.cpu() - cpu_before, job.items * len(times)
    metrics = {"items_per_s": job.items / median(times) * 1e9, "cpu_us_per_item": cpu_spent / count * 1e6}
    return {"case": case, "metrics": metrics}


def lent(job: Job) -> None:
    """Arrays that the receiver reads in place; it looks at their first and last item."""
    connection = job.connect()
    calls = connection.lending(int(job.lent_mib * MIB))
    say([{"case": case, "metrics": latency(call, job.seconds)} for case, call in calls.items()])
    connection.close()


def traced(job: Job) -> None:
    """As unary, in a process that has traced a call before, or never did; a turn for each line that comes."""
    connection, data = job.connect(), job.small()
    assert connection.echo(data) == data
    if job.has_traced:
        connection.trace(data)
    times: list[int] = []
    for _ in range(job.turns):
        sys.stdin.readline()
        time_calls(lambda: connection.echo(data), job.seconds / job.turns / 5)
        times += time_calls(lambda: connection.echo(data), job.seconds / job.turns)
        say({"p50_us": percentile(times, 0.5) / 1e3})
    connection.close()


TASKS: dict[Task, Callable[[Job], None]] = {
    "unary": unary,
    "pipelined": pipelined,
    "argument": arrays,
    "result": arrays,
    "connections": connections,
    "idle": idle,
    "ways": ways,
    "aio_unary": aio_unary,
    "aio_pipelined": aio_pipelined,
    "traced": traced,
    "streams": streams,
    "lent": lent,
}


def main(argument: str) -> None:
    fields: dict[str, Any] = json.loads(argument)
    job = Job(**fields)
    TASKS[job.task](job)


if __name__ == "__main__":
    main(sys.argv[1])
