"""Runs cases in several lanes beside each other, and prints what failed with the command that repeats it."""

import argparse
import math
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.util import Finalize

from .cases import TRANSPORTS, Case, drawn
from .lane import Lane
from .metronome import Metronome

LANES = 8  # more than processors: most cases wait more than they compute
_lane: Lane | None = None


def _open_lane(metronome: Metronome) -> None:
    global _lane
    _lane = Lane(metronome)
    Finalize(None, _lane.close, exitpriority=10)  # processes of a pool run no atexit functions


def _run(case: Case) -> list[str]:
    assert _lane is not None
    return _lane.run(case)


def run(cases: Iterable[Case], lanes: int, end: float = math.inf) -> dict[Case, list[str]]:
    """Returns what was wrong with each case that began before ``end``, a monotonic time; prints it as it comes."""
    metronome = Metronome()
    # A fork may ask the metronome, which is memory that it shares.
    context = multiprocessing.get_context("fork")
    done: dict[Case, list[str]] = {}
    with ProcessPoolExecutor(lanes, context, _open_lane, (metronome,)) as executor:
        futures = {executor.submit(_run, case): case for case in cases}
        for future in as_completed(futures):
            if time.monotonic() >= end:
                for other in futures:
                    other.cancel()
                end = math.inf  # once is enough
            if future.cancelled():
                continue
            case = futures[future]
            done[case] = future.result()
            for problem in done[case]:
                print(f"FAILED {problem}  [python -m tests.faults --case '{case}']", flush=True)
    metronome.close()
    return done


def table(done: dict[Case, list[str]]) -> str:
    """Cases, and those of them that failed, for each step, transport and style of clients."""
    count, failed = Counter(map(_place, done)), Counter(_place(case) for case in done if done[case])
    places = sorted({place[1:] for place in count})
    lines = [
        "| step | " + " | ".join(" ".join(place) for place in places) + " |",
        "|---|" + "---|" * len(places),
    ]
    for step in dict.fromkeys(place[0] for place in sorted(count)):
        cells = [(count[(step, *place)], failed[(step, *place)]) for place in places]
        shown = [f"{n}, {bad} failed" if bad else str(n) for n, bad in cells]
        lines.append(f"| {step} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _place(case: Case) -> tuple[str, str, str]:
    return case.step, case.transport, case.style


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=1, help="which (1)")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"how many at a time ({LANES})")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after so long (no limit)")
    parser.add_argument("--transports", default=",".join(TRANSPORTS), help="over which (all)")
    parser.add_argument("--case", action="append", type=Case.parse, help="this one, as a failed run named it")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    given = parser.parse_args(arguments)
    transports = tuple(given.transports.split(","))
    cases = given.case or [
        case for case in drawn(given.cases, given.seed, transports) if given.only in str(case)
    ]
    start = time.monotonic()
    done = run(cases, min(given.lanes, len(cases)), start + 60 * given.minutes)
    print(table(done))
    bad = sum(map(bool, done.values()))
    left = f"; the time was up for {len(cases) - len(done)} more" if len(done) < len(cases) else ""
    print(f"faults: {len(done)} cases in {time.monotonic() - start:.0f} s, {bad} failed{left}", flush=True)
    return 1 if bad else 0
