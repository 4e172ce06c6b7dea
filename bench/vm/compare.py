"""Runs in the guest (tools/vm/bench.sh): ours and perftest by turns, on each adapter; a table of medians and ratios.

    python -m bench.vm.compare [--quick] [--runs N] [--only WORD,...] [--json FILE]

Only the ratios count: the guest is emulated. `--only` names adapters, modes or measurements.
"""

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = [str(ROOT / "build/release/verbs_bench")]
PYTHON = [sys.executable, "-m", "bench.vm.python_echo"]
ADAPTERS = {"rxe": "10.9.0.1", "siw": "10.9.1.1"}
MODES = ("event", "busy")
MESSAGE_BYTES = 32
IN_FLIGHT = 4  # our fetches; perftest keeps as many reads posted as its queue holds
TRIES = 4
PATIENCE_S = 120.0
MIB_PER_S = 1.048576  # perftest's MB are MiB
ECHO_MAX, PYTHON_ECHO_MAX, BULK_MIN = 1.3, 4.0, 0.9


class Failed(Exception):
    """A measurement that gave no figure."""


@dataclass(frozen=True)
class Load:
    """How much a measurement does: few enough for an emulated machine."""

    messages: int
    python_calls: int
    fetches: dict[int, int]  # by size in MiB


FULL = Load(messages=500, python_calls=200, fetches={1: 20, 16: 5})
QUICK = Load(messages=100, python_calls=30, fetches={1: 5})


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, text=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, check=False, text=True, cwd=ROOT, capture_output=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} took more than {PATIENCE_S:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-300:]
        raise Failed(f"{' '.join(command)} ended with {done.returncode}: {said}")
    return done.stdout


def wait_for_listener(process: subprocess.Popen[str]) -> None:
    """perftest says that it waits before it listens: the kernel knows better."""
    deadline = time.monotonic() + PATIENCE_S
    pattern = re.compile(rf"state LISTEN .*pid {process.pid}\b")
    while not pattern.search(output_of(["rdma", "resource", "show", "cm_id"])):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"{process.args!r} doesn't listen")
        time.sleep(0.1)


def perftest(program: str, host: str, mode: str, size_bytes: int, count: int) -> list[float]:
    """The figures of its one line: bytes, iterations, and what it measured."""
    command = [program, "-F", "-R", "-s", str(size_bytes), "-n", str(count)]
    command += ["-e"] if mode == "event" else []
    with running(command) as server:
        wait_for_listener(server)
        text = output_of([*command, host])
    lines = [line.split() for line in text.splitlines() if re.match(rf"\s*{size_bytes}\s+{count}\s", line)]
    if not lines:
        raise Failed(f"{program} printed no figures: {text[-300:]}")
    return [float(word) for word in lines[-1]]


def send_round_trip(host: str, mode: str, load: Load) -> float:
    figures = perftest("ib_send_lat", host, mode, MESSAGE_BYTES, load.messages)
    return 2 * figures[4]  # t_typical is the median of half a round trip


def read_bandwidth(host: str, mode: str, load: Load, mib: int) -> float:
    return perftest("ib_read_bw", host, mode, mib << 20, load.fetches[mib])[3] * MIB_PER_S


def ours(program: list[str], host: str, mode: str, goal: str, *arguments: int) -> float:
    with running([*program, "serve", f"verbs://{host}:0", mode]) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line.startswith("listening on "):
            raise Failed(line + server.stdout.read())
        address = line.removeprefix("listening on ").strip()
        return float(output_of([*program, goal, address, mode, *map(str, arguments)]))


def measured(measure: Callable[[str, str, Load], float], host: str, mode: str, load: Load) -> float | None:
    """perftest at times prints 0.00 and ends well, and a first connect may fail on siw: so it is tried again."""
    return next(filter(None, (tried(measure, host, mode, load) for _ in range(TRIES))), None)


def tried(measure: Callable[[str, str, Load], float], host: str, mode: str, load: Load) -> float | None:
    try:
        figure = measure(host, mode, load)
    except (Failed, ValueError) as error:
        print(f"  {(str(error).strip() or repr(error)).splitlines()[-1]}", flush=True)
        return None
    if figure == 0:
        print("  0.00: once more", flush=True)
    return figure


@dataclass(frozen=True)
class Comparison:
    """One row: what perftest measures, what stands beside it, and the bound on ours / theirs."""

    name: str
    unit: str
    theirs: Callable[[str, str, Load], float]
    ours: Callable[[str, str, Load], float]
    at_most: float | None = None
    at_least: float | None = None

    def verdict(self, ratio: float) -> str:
        if self.at_most is not None:
            return f"{'reached' if ratio <= self.at_most else 'MISSED'} (at most {self.at_most})"
        if self.at_least is not None:
            return f"{'reached' if ratio >= self.at_least else 'MISSED'} (at least {self.at_least})"
        return ""


Pair = tuple[float | None, float | None]  # perftest's figure and ours
Row = dict[str, object]


def comparisons(load: Load) -> list[Comparison]:
    def fetch(mib: int) -> Comparison:
        return Comparison(
            f"fetch {mib} MiB",
            "MB/s",
            lambda host, mode, load: read_bandwidth(host, mode, load, mib),
            lambda host, mode, load: ours(OURS, host, mode, "fetch", load.fetches[mib], mib << 20, IN_FLIGHT),
            at_least=BULK_MIN,
        )

    return [
        Comparison(
            "echo",
            "µs",
            send_round_trip,
            lambda host, mode, load: ours(OURS, host, mode, "echo", load.messages),
            at_most=ECHO_MAX,
        ),
        Comparison(
            "python echo",
            "µs",
            send_round_trip,
            lambda host, mode, load: ours(PYTHON, host, mode, "echo", load.python_calls),
            at_most=PYTHON_ECHO_MAX,
        ),
        *(fetch(mib) for mib in load.fetches),
    ]


def row_of(adapter: str, mode: str, case: Comparison, pairs: list[Pair]) -> Row:
    row: Row = {"adapter": adapter, "mode": mode, "what": case.name, "unit": case.unit, "runs": pairs}
    whole = [(theirs, own) for theirs, own in pairs if theirs is not None and own is not None]
    if not whole:
        return row | {"verdict": "NOT MEASURED"}
    # Of neighbours in time, so that a slow spell of the machine falls on both.
    ratio = statistics.median(own / theirs for theirs, own in whole)
    row |= {"perftest": statistics.median(theirs for theirs, _ in whole)}
    row |= {"ours": statistics.median(own for _, own in whole), "ratio": ratio}
    return row | {"verdict": case.verdict(ratio)}


def compare(load: Load, runs: int, only: set[str]) -> list[Row]:
    every = itertools.product(ADAPTERS, MODES, comparisons(load))
    table = [case for case in every if only <= {case[0], case[1], case[2].name}]
    found: list[list[Pair]] = [[] for _ in table]
    for run in range(runs):
        for (adapter, mode, case), pairs in zip(table, found, strict=True):
            host = ADAPTERS[adapter]
            theirs_first = run % 2 == 0
            theirs = measured(case.theirs, host, mode, load) if theirs_first else None
            own = measured(case.ours, host, mode, load)
            if not theirs_first:
                theirs = measured(case.theirs, host, mode, load)
            pairs.append((theirs, own))
            print(f"run {run + 1}: {adapter}, {mode}, {case.name}: {theirs} {own} {case.unit}", flush=True)
    return [row_of(*case, pairs) for case, pairs in zip(table, found, strict=True)]


def markdown(rows: list[Row]) -> str:
    lines = [
        "| adapter, waiting | what | perftest | ours | ours / perftest | target |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        figures = [f"{row[key]:.4g}" if key in row else "-" for key in ("perftest", "ours", "ratio")]
        unit = row["unit"]
        lines.append(
            f"| {row['adapter']}, {row['mode']} | {row['what']} | {figures[0]} {unit} | {figures[1]} {unit} "
            f"| {figures[2]} | {row['verdict']} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Ours beside perftest, in the guest.")
    parser.add_argument("--quick", action="store_true", help="once and little: for a look")
    parser.add_argument("--runs", type=int, help="how often each pair is measured (default: 5)")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="adapter, mode or name, or several by commas"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    load = QUICK if options.quick else FULL
    runs = options.runs or (1 if options.quick else 5)
    rows = compare(load, runs, set(options.only.split(",")) - {""})
    print("\n" + markdown(rows))
    if options.json:
        options.json.write_text(
            json.dumps({"runs": runs, "quick": options.quick, "rows": rows}, indent=1) + "\n"
        )
    return 1 if any(row["verdict"] == "NOT MEASURED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
