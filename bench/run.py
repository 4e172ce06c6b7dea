"""The runner: ``python -m bench`` or ``python bench/run.py``."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from rich.console import Console

from bench.limits import LIMITS
from bench.peers import PEERS
from bench.plot import write_plot
from bench.processes import raise_descriptor_limit
from bench.report import print_report, write_json
from bench.settings import ROOT, Settings
from bench.targets import Medians
from bench.workloads import WORKLOADS, Outcome, Workload, run_workload

BUSY_LOAD = 0.7


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="bench", description=__doc__)
    result.add_argument("--quick", action="store_true", help="about a minute: for a look, not a claim")
    workloads = ", ".join(f"{workload.key} {workload.title}" for workload in WORKLOADS)
    result.add_argument("--only", type=names, metavar="W1,...", help=workloads)
    result.add_argument("--peers", type=names, metavar="NAME,...", help=", ".join([*PEERS, *LIMITS]))
    result.add_argument("--out", type=Path, default=ROOT / "bench" / "out", metavar="FOLDER")
    result.add_argument("--rounds", type=int)
    result.add_argument("--seconds", type=float, help="time spent on each measurement")
    result.add_argument("--sizes", type=numbers, metavar="MIB,...", dest="sizes_mib")
    result.add_argument("--connections", type=integers, metavar="N,...")
    return result


def settings_of(arguments: argparse.Namespace) -> Settings:
    settings = Settings.quick() if arguments.quick else Settings()
    given = {name: getattr(arguments, name) for name in ("rounds", "seconds", "sizes_mib", "connections")}
    given["array_rounds"] = given["connection_rounds"] = arguments.rounds
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


def unknown(chosen: list[str] | None, known: list[str]) -> list[str]:
    return [name for name in chosen or [] if name not in known]


def run_all(
    workloads: list[Workload], chosen: Callable[[str], bool], settings: Settings, console: Console
) -> Outcome:
    outcome = Outcome()
    with console.status("starting") as status:
        for workload in workloads:
            run_workload(workload, chosen, settings, outcome, status.update)
    return outcome


def warn_if_busy(console: Console) -> None:
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        console.print(
            f"[bold yellow]others are using this machine (load {load:.1f}): figures will mean little[/]"
        )


def main(argv: list[str] | None = None) -> int:
    command = parser()
    arguments = command.parse_args(argv)
    wrong = unknown(arguments.only, [w.key for w in WORKLOADS]) + unknown(arguments.peers, [*PEERS, *LIMITS])
    if wrong:
        command.error(f"no such workload or peer: {', '.join(wrong)}")
    settings, terminal = settings_of(arguments), Console()
    console = terminal if terminal.is_terminal else Console(width=150)
    warn_if_busy(console)
    raise_descriptor_limit()
    workloads = [w for w in WORKLOADS if arguments.only is None or w.key in arguments.only]
    peers = arguments.peers or [*PEERS, *LIMITS]
    outcome = run_all(workloads, lambda name: name in peers, settings, console)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(outcome, settings, arguments.out / "bench.json")
    write_plot(Medians(outcome.records), arguments.out / "bench.png")
    print_report(outcome, console)
    console.print(f"written: {arguments.out}/bench.json, {arguments.out}/bench.png", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
