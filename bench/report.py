"""What a run leaves: tables on the terminal, a JSON file, a plot."""

import json
import os
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.settings import ROOT, Settings
from bench.targets import Medians, Target, number, targets
from bench.workloads import WORKLOADS, Outcome, Workload

OURS = "rrpc shm"
MAIN_METRICS = ("p50_us", "items_per_s", "gbps", "calls_per_s")
HIGHER_IS_BETTER = {"gbps", "calls_per_s", "items_per_s"}
PACKAGES = ("rrpc-rdma", "numpy", "grpcio", "pyzmq", "msgpack", "ucxx-cu12", "iceoryx2", "torchmonarch")
UNITS = {
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
    "calls_per_s": "calls/s",
    "cpu_us_per_call": "CPU µs a call",
    "items_per_s": "items/s",
    "cpu_us_per_item": "CPU µs an item",
    "gbps": "GB/s",
    "cpu_s_per_gb": "CPU s/GB",
    "owner_cpu_percent": "owner's CPU %",
    "copies": "copies",
    "connect_p50_ms": "connect p50 ms",
    "connect_p99_ms": "connect p99 ms",
    "rss_kib_each": "RSS KiB each",
    "pss_kib_each": "PSS KiB each",
    "server_idle_cpu_percent": "idle server CPU %",
    "client_idle_cpu_percent": "idle client CPU %",
    "p99_times": "p99 / alone",
    "elsewhere_times": "elsewhere p99 / alone",
    "array_p99_us": "array p99 µs",
    "array_p99_times": "array p99 / alone",
    "array_elsewhere_times": "elsewhere array p99 / alone",
    "connect_ms": "connect ms",
    "failed": "calls failed",
    "first_gbps": "first GB/s",
    "warm_gbps": "warm GB/s",
    "first_part": "first / warm",
    "descriptors": "descriptors",
    "server_grown_mib": "server MiB more",
    "client_grown_mib": "client MiB more",
}


def table(workload: Workload, found: Medians) -> Table:
    """A row for each subject in each case; the last column says how far ahead of it rrpc over shm is."""
    metrics = found.metrics(workload.key)
    main = next((metric for metric in MAIN_METRICS if metric in metrics), "")
    result = Table(title=f"{workload.key}: {workload.title}", title_justify="left")
    for heading in ("", "case"):
        result.add_column(heading)
    headings = [UNITS[metric] for metric in metrics] + ([f"{OURS} is better by"] if main else [])
    for heading in headings:
        result.add_column(heading, justify="right")
    for case in found.cases(workload.key):
        for subject in found.subjects(workload.key):
            values = [found.get(workload.key, case, subject, metric) for metric in metrics]
            if any(value is not None for value in values):
                lead = found.ratio(workload.key, case, main, *lead_order(subject, main))
                leads = [f"{number(lead)} ×" if lead else ""] if main else []
                result.add_row(subject, case, *map(number, values), *leads)
        result.add_section()
    return result


def lead_order(subject: str, metric: str) -> tuple[str, str]:
    """Numerator and denominator, so that more than one means that rrpc over shm is ahead."""
    return (OURS, subject) if metric in HIGHER_IS_BETTER else (subject, OURS)


def targets_table(reached: list[Target]) -> Table:
    result = Table(title="targets", title_justify="left")
    result.add_column("")
    for heading in ("reached", "wanted", ""):
        result.add_column(heading, justify="right")
    for target in reached:
        style = {"pass": "green", "MISS": "bold red"}.get(target.verdict, "dim")
        wanted = f"{'≥' if target.sense == 'at least' else '≤'} {number(target.wanted)}"
        result.add_row(target.text, number(target.reached), wanted, f"[{style}]{target.verdict}[/]")
    return result


def print_report(outcome: Outcome, console: Console) -> None:
    found = Medians(outcome.records)
    for workload in WORKLOADS:
        if found.cases(workload.key):
            console.print(table(workload, found))
    console.print(targets_table(targets(found)))
    for subject, why in outcome.failures.items():
        console.print(f"[yellow]left out:[/] {subject}: {why}", highlight=False)


def environment() -> dict[str, Any]:
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "commit": git.stdout.strip(),
        "cpu": models[0] if models else platform.machine(),
        "cores": len(models),
        "kernel": platform.release(),
        "load_at_end": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
    }


def package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def write_json(outcome: Outcome, settings: Settings, path: Path) -> None:
    found = Medians(outcome.records)
    medians = [
        {"workload": workload.key, "case": case, "subject": subject, "metric": metric, "median": value}
        for workload in WORKLOADS
        for case in found.cases(workload.key)
        for subject in found.subjects(workload.key)
        for metric in found.metrics(workload.key)
        if (value := found.get(workload.key, case, subject, metric)) is not None
    ]
    content = {
        "environment": environment(),
        "settings": asdict(settings),
        "targets": [asdict(target) | {"verdict": target.verdict} for target in targets(found)],
        "medians": medians,
        "records": [asdict(record) for record in outcome.records],
        "left_out": outcome.failures,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
