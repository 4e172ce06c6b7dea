"""The promises about speed, each set against this run: what was reached, what was wanted."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal

from bench.settings import turns_case
from bench.workloads import Record

CONNECTION_KIB_MAX = 600
BUSY_PERCENT_MAX = 3
IDLE_PERCENT_MAX = 0.5
BANDWIDTH_PART_MIN = 0.85
BY_HAND_TIMES_MAX = 1.05
BARE_TIMES_MAX = 1.25
EXTRA_US_MAX = 0.5
TRACED_TIMES_MAX = 1.05
ATTACKED_TIMES_MAX = 2
CONNECT_MS_MAX = 1000
FIRST_PART_MIN = 1 / 3
DESCRIPTORS_MAX = 16
CONNECTION_DESCRIPTORS_MAX = 2
GROWN_MIB_MAX = 64
LENT_US_MAX = 100
OWNER_PERCENT_MAX = 5
TURNS_ALONE_MIN = 1 / 1.5
TURNS_TOGETHER_MIN = 0.9


@dataclass(frozen=True)
class Target:
    """``reached`` is None where this run didn't measure what the target needs."""

    text: str
    reached: float | None
    wanted: float
    sense: Literal["at least", "at most"]

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return "not measured"
        good = self.reached >= self.wanted if self.sense == "at least" else self.reached <= self.wanted
        return "pass" if good else "MISS"


class Medians:
    """Medians over the rounds, and ratios of one subject's to another's."""

    def __init__(self, records: list[Record]) -> None:
        self._values: dict[tuple[str, str, str, str], list[float]] = {}
        for record in records:
            for name, value in record.metrics.items():
                key = (record.workload, record.case, record.subject, name)
                self._values.setdefault(key, []).append(value)

    def get(self, workload: str, case: str, subject: str, metric: str) -> float | None:
        values = self._values.get((workload, case, subject, metric))
        return median(values) if values else None

    def ratio(self, workload: str, case: str, metric: str, subject: str, other: str) -> float | None:
        ours, theirs = self.get(workload, case, subject, metric), self.get(workload, case, other, metric)
        return None if ours is None or not theirs else ours / theirs

    def cases(self, workload: str) -> list[str]:
        return list(dict.fromkeys(key[1] for key in self._values if key[0] == workload))

    def subjects(self, workload: str) -> list[str]:
        return list(dict.fromkeys(key[2] for key in self._values if key[0] == workload))

    def metrics(self, workload: str) -> list[str]:
        return list(dict.fromkeys(key[3] for key in self._values if key[0] == workload))


def number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def targets(found: Medians) -> list[Target]:
    return [
        *small(found),
        *arrays(found),
        *connections(found),
        *turns(found),
        *idle(found),
        *generated(found),
        *extras(found),
        *asyncio(found),
        *streams(found),
        *lent(found),
        *budgets(found),
    ]


def small(found: Medians) -> Iterator[Target]:
    unary = ("W1", "32 B", "p50_us", "rrpc shm")
    yield Target("small unary p50 / bare Unix socket's", found.ratio(*unary, "unix socket"), 0.08, "at most")
    yield Target("small unary p50 / grpcio's", found.ratio(*unary, "grpcio"), 0.006, "at most")
    yield Target("small unary p50 / ucxx's", found.ratio(*unary, "ucxx"), 0.15, "at most")
    rate = found.get("W2", "64 in flight", "rrpc shm", "calls_per_s")
    yield Target("pipelined, thousand calls/s", rate and rate / 1e3, 150, "at least")
    pipelined = ("W2", "64 in flight", "calls_per_s", "rrpc shm")
    for peer, wanted in (("grpcio", 20), ("zmq+msgpack", 5), ("ucxx", 5), ("unix socket", 0.75)):
        yield Target(f"pipelined calls/s / {peer}'s", found.ratio(*pipelined, peer), wanted, "at least")
    tcp = found.ratio("W1", "32 B", "p50_us", "rrpc tcp", "tcp socket")
    yield Target("over tcp: small unary p50 / bare TCP socket's", tcp, 0.25, "at most")
    tls = found.ratio("W1", "32 B", "p50_us", "rrpc tls", "grpcio tls")
    yield Target("over TLS: small unary p50 / grpcio's over TLS", tls, 1 / 8, "at most")
    tcp = found.ratio("W2", "64 in flight", "calls_per_s", "rrpc tcp", "grpcio")
    yield Target("over tcp: pipelined calls/s / grpcio's", tcp, 40, "at least")


def arrays(found: Medians) -> Iterator[Target]:
    for workload, name in (("W3", "argument"), ("W4", "result")):
        at = (workload, "16 MiB", "gbps")
        ordinary = found.ratio(*at, "rrpc shm", "limit: process_vm_readv")
        yield Target(f"16 MiB {name}, ordinary / process_vm_readv", ordinary, BANDWIDTH_PART_MIN, "at least")
        pool = found.ratio(*at, "rrpc shm pool", "limit: memcpy")
        yield Target(f"16 MiB {name}, pool / memcpy", pool, BANDWIDTH_PART_MIN, "at least")
        for size in ("1 MiB", "16 MiB"):
            tcp = found.ratio(workload, size, "gbps", "rrpc tcp", "tcp socket")
            yield Target(f"{size} {name}, over tcp / bare TCP socket", tcp, 1.0, "at least")
        for kind, subject in (("ordinary", "rrpc shm"), ("pool", "rrpc shm pool")):
            counted = found.get(workload, "16 MiB", subject, "copies")
            yield Target(f"copies of a 16 MiB {name}, {kind}", counted and round(counted, 2), 1, "at most")
            owner = found.get(workload, "16 MiB", subject, "owner_cpu_percent")
            yield Target(f"owner's CPU % for a 16 MiB {name}, {kind}", owner, OWNER_PERCENT_MAX, "at most")


def connections(found: Medians) -> Iterator[Target]:
    at = ("W5", "1000 connections", "rrpc shm")
    each = found.get(*at, "rss_kib_each")
    yield Target("server KiB per connection at 1,000", each, CONNECTION_KIB_MAX, "at most")
    busy = found.get(*at, "server_idle_cpu_percent")
    yield Target("server CPU % with 1,000 idle connections", busy, BUSY_PERCENT_MAX, "at most")


def turns(found: Medians) -> Iterator[Target]:
    for subject in ("rrpc shm", "rrpc tcp"):
        for processes, each, least in ((1, 400, TURNS_ALONE_MIN), (4, 250, TURNS_TOGETHER_MIN)):
            many, one = (
                found.get("W16", turns_case(processes, count), subject, "calls_per_s") for count in (each, 1)
            )
            name = f"{turns_case(processes, each)}, {subject.removeprefix('rrpc ')}: calls/s / with one each"
            yield Target(name, many and one and many / one, least, "at least")


def idle(found: Medians) -> Iterator[Target]:
    for side in ("server", "client"):
        spent = found.get("W6", "after the last call", "rrpc shm", f"{side}_idle_cpu_percent")
        yield Target(f"idle {side}'s CPU %, a second after the last call", spent, IDLE_PERCENT_MAX, "at most")


def generated(found: Medians) -> Iterator[Target]:
    ours = found.get("W7", "generated client", "rrpc shm", "p50_us")
    for way, wanted in (("Client.call", BY_HAND_TIMES_MAX), ("bare core", BARE_TIMES_MAX)):
        theirs = found.get("W7", way, "rrpc shm", "p50_us")
        yield Target(
            f"generated client's p50 / {way}'s", ours and theirs and ours / theirs, wanted, "at most"
        )


def extras(found: Medians) -> Iterator[Target]:
    """What a call pays for what it asks for besides."""
    plain = found.get("W7", "generated client", "rrpc shm", "p50_us")
    for way in ("a deadline", "metadata"):
        asked = found.get("W7", f"with {way}", "rrpc shm", "p50_us")
        cost = None if plain is None or asked is None else asked - plain
        yield Target(f"{way} more, µs a call", cost, EXTRA_US_MAX, "at most")
    never, has = (
        found.get("W8", case, "rrpc shm", "p50_us") for case in ("never traced", "has traced a call")
    )
    ratio = has / never if has and never else None
    yield Target("p50 where calls were traced / where none was", ratio, TRACED_TIMES_MAX, "at most")


def asyncio(found: Medians) -> Iterator[Target]:
    """Clients and handlers that are coroutines, beside grpc.aio."""
    ratio = found.ratio("W9", "32 B", "p50_us", "rrpc shm", "grpcio")
    yield Target("asyncio: small unary p50 / grpc.aio's", ratio, 1 / 10, "at most")
    rate = found.get("W10", "64 in flight", "rrpc shm", "calls_per_s")
    yield Target("asyncio: 64 in flight, thousand calls/s", rate and rate / 1e3, 100, "at least")
    ratio = found.ratio("W10", "64 in flight", "calls_per_s", "rrpc shm", "grpcio")
    yield Target("asyncio: calls/s with 64 in flight / grpc.aio's", ratio, 60, "at least")
    here, blocking = (found.get(workload, "32 B", "rrpc shm", "p50_us") for workload in ("W9", "W1"))
    yield Target("asyncio: small unary p50 / blocking", here and blocking and here / blocking, 1.5, "at most")
    here = found.get("W9", "1 MiB argument", "rrpc shm", "gbps")
    blocking = found.get("W3", "1 MiB", "rrpc shm", "gbps")
    yield Target("asyncio: 1 MiB argument / blocking", here and blocking and here / blocking, 0.9, "at least")


def streams(found: Medians) -> Iterator[Target]:
    for case in ("received", "sent", "records received"):
        rate = found.get("W11", case, "rrpc shm", "items_per_s")
        yield Target(f"streams: items {case}, thousand/s", rate and rate / 1e3, 300, "at least")
    item, result = (found.get("W11", f"1 MiB {what}", "rrpc shm", "gbps") for what in ("items", "results"))
    yield Target("streams: 1 MiB items / 1 MiB results", item and result and item / result, 0.8, "at least")


def lent(found: Medians) -> Iterator[Target]:
    for case in ("argument", "result"):
        took = found.get("W17", case, "rrpc shm", "p50_us")
        yield Target(f"borrowed 1 GiB, {case}, µs", took, LENT_US_MAX, "at most")


def budgets(found: Medians) -> Iterator[Target]:
    """What attackers, first uses and long loads cost everybody else."""
    for kind, name in (("", "small calls"), ("array_", "128 KiB arrays")):
        times = [found.get("W12", attack, "rrpc tcp", f"{kind}p99_times") for attack in found.cases("W12")]
        worst = max((value for value in times if value is not None), default=None)
        yield Target(f"p99 of {name} beside the worst attack / alone", worst, ATTACKED_TIMES_MAX, "at most")
    connects = [found.get("W12", attack, "rrpc tcp", "connect_ms") for attack in found.cases("W12")]
    slowest = max((value for value in connects if value is not None), default=None)
    yield Target("connecting beside the worst attack, ms", slowest, CONNECT_MS_MAX, "at most")
    for case in found.cases("W13"):
        reached = found.get("W13", case, "rrpc shm", "first_part")
        yield Target(f"first landing of {case} / warm", reached, FIRST_PART_MIN, "at least")
    for case in found.cases("W14"):
        most = CONNECTION_DESCRIPTORS_MAX if "connection" in case else DESCRIPTORS_MAX
        yield Target(
            f"descriptors of {case}", found.get("W14", case, "rrpc shm", "descriptors"), most, "at most"
        )
    for side in ("server", "client"):
        grown = found.get("W15", "30 s after 10 GB", "rrpc shm", f"{side}_grown_mib")
        yield Target(f"{side}'s MiB more, 30 s after 10 GB", grown, GROWN_MIB_MAX, "at most")
