"""rrpc-info: what this machine has for rrpc, and why not more."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rrpc

from .common import Parser, problem

__all__ = ["main"]

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_SHARED_MEMORY = "/dev/shm"
_ADAPTER_FIELDS = ("state", "transport", "link_layer", "active_mtu", "gids", "addresses", "exposure")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    parser = Parser(
        prog="rrpc-info", description="Show transports, adapters and limits, each with what it lacks."
    )
    add = parser.add_argument
    add("address", nargs="?", metavar="ADDRESS", help="connect there, and show which transport was chosen")
    add("--json", action="store_true", help="print JSON")
    add("--timeout", type=float, default=10.0, metavar="SECONDS", help="for connecting (default: 10)")
    options = parser.parse_args(arguments)
    try:
        connection = None if options.address is None else _connection(options.address, options.timeout)
    except rrpc.RpcError as error:
        return problem("rrpc-info", error)
    report = _report() | ({} if connection is None else {"connection": connection})
    text = json.dumps(report, indent=2) if options.json else "\n".join(_lines(report))
    print(text, flush=True)
    return 0


def _report() -> dict[str, Any]:
    return {
        "version": rrpc.__version__,
        "kernel": platform.release(),
        "transports": {
            scheme: {"usable": not why_not, "why_not": why_not.removeprefix(f"{scheme}:// can't be had: ")}
            for scheme, why_not in rrpc.transports().items()
        },
        "adapters": rrpc.adapters(),
        "limits": _limits(),
    }


def _connection(address: str, timeout: float) -> dict[str, Any]:
    with rrpc.connect(address, connect_timeout=timeout) as client:
        return client.info()


def _limits() -> dict[str, int | None]:
    """None: without limit, or not there."""
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_MEMLOCK)
    )
    limits: dict[str, int | None] = {"memlock_soft_bytes": soft, "memlock_hard_bytes": hard}
    try:
        limits["ptrace_scope"] = int(_YAMA.read_text())
    except (OSError, ValueError):
        limits["ptrace_scope"] = None
    try:
        there = os.statvfs(_SHARED_MEMORY)
        limits["shm_bytes"] = there.f_frsize * there.f_blocks
        limits["shm_free_bytes"] = there.f_frsize * there.f_bavail
    except OSError:
        limits["shm_bytes"] = limits["shm_free_bytes"] = None
    return limits


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"rrpc {report['version']}, Linux {report['kernel']}"
    yield "transports"
    for scheme, state in report["transports"].items():
        yield f"  {scheme:<10} {'usable' if state['usable'] else state['why_not']}"
    yield "adapters"
    if not report["adapters"]:
        yield "  none"
    for adapter in report["adapters"]:
        yield from _adapter_lines(adapter)
    yield "limits"
    yield from _limit_lines(report["limits"])
    if "connection" in report:
        yield from _connection_lines(report["connection"])


def _adapter_lines(adapter: dict[str, str]) -> Iterator[str]:
    usable = f"no: {adapter['why_not']}" if adapter.get("why_not") else "usable"
    yield f"  {adapter.get('name', '?')} port {adapter.get('port', '?')}: {usable}"
    shown = [name for name in _ADAPTER_FIELDS if adapter.get(name)]
    others = sorted(set(adapter) - {*_ADAPTER_FIELDS, "name", "port", "why_not"})
    for name in [*shown, *others]:
        yield f"    {name.replace('_', ' '):<11} {adapter[name]}"


def _limit_lines(limits: dict[str, int | None]) -> Iterator[str]:
    def size(name: str, missing: str) -> str:
        value = limits[name]
        return missing if value is None else _size(value)

    locked = f"soft {size('memlock_soft_bytes', 'unlimited')}, hard {size('memlock_hard_bytes', 'unlimited')}"
    yield f"  {'memlock':<13} {locked} (ulimit -l: what verbs may pin)"
    scope = limits["ptrace_scope"]
    meaning = {None: "none", 0: "0: processes of one user read each other"}
    yield f"  {'ptrace_scope':<13} {meaning.get(scope, f'{scope}: shm may have to stage ordinary memory')}"
    yield f"  {_SHARED_MEMORY:<13} {size('shm_bytes', 'not there')}, {size('shm_free_bytes', 'nothing')} free"


def _connection_lines(connection: dict[str, Any]) -> Iterator[str]:
    yield "connection"
    for name, value in connection.items():
        if name != "why_not":
            yield f"  {name:<13} {value}"
    for transport, reason in connection["why_not"].items():
        yield f"  {'not ' + transport:<13} {reason}"


def _size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


if __name__ == "__main__":
    sys.exit(main())
