"""rrpc-info: what this machine has for rrpc, and why not more."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import rrpc
from rrpc._prose import for_terminal

from . import machine
from .common import BadInput, Parser, command, problem
from .tls_flags import add_tls_flags, tls_options

_ADAPTER_FIELDS = ("state", "transport", "link_layer", "active_mtu", "gids", "addresses", "exposure")


@command("rrpc-info")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    parser = Parser(
        prog="rrpc-info",
        description="Show transports, adapters and limits, and for every problem its cure. With ADDRESS: which "
        "transport a connection there takes. With two addresses, one of this machine's and a server's: what "
        "would be chosen between them, by connecting if a server answers there, else by reasoning.",
    )
    add = parser.add_argument
    add("addresses", nargs="*", metavar="ADDRESS", help="a server's, or one of this machine's and a server's")
    add("--json", action="store_true", help="print JSON")
    add("--timeout", type=float, default=10.0, metavar="SECONDS", help="for connecting (default: 10)")
    add_tls_flags(parser)
    options = parser.parse_args(arguments)
    if len(options.addresses) > 2:
        parser.error("more than two addresses")
    try:
        report = _report(options.addresses, options.timeout, tls_options(options))
    except (BadInput, rrpc.RpcError) as error:
        return problem("rrpc-info", error)
    print(
        json.dumps(report, indent=2) if options.json else for_terminal("\n".join(_lines(report))), flush=True
    )
    return 1 if report.get("choice", {"transport": "any"})["transport"] is None else 0


def _report(addresses: Sequence[str], timeout: float, tls: dict[str, Any]) -> dict[str, Any]:
    connection = _connection(addresses[0], timeout, tls) if len(addresses) == 1 else None
    report = _machine()
    if connection is not None:
        report["connection"] = connection
    if len(addresses) == 2:
        from .choice import choice

        report["choice"] = choice(addresses[0], addresses[1], report, timeout, tls)
    return report


def _machine() -> dict[str, Any]:
    transports = {
        scheme: {"usable": not why_not, "why_not": why_not.removeprefix(f"{scheme}:// can't be had: ")}
        for scheme, why_not in rrpc.transports().items()
    }
    adapters, limits = rrpc.adapters(), machine.limits()
    return {
        "version": rrpc.__version__,
        "kernel": platform.release(),
        "transports": transports,
        "adapters": adapters,
        "limits": limits,
        "problems": machine.problems(transports, adapters, limits),
    }


def _connection(address: str, timeout: float, tls: dict[str, Any]) -> dict[str, Any]:
    with rrpc.connect(address, connect_timeout=timeout, **tls) as client:
        return client.info()


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"rrpc {report['version']}, Linux {report['kernel']}"
    yield "transports"
    for scheme, state in report["transports"].items():
        yield f"  {scheme:<10} {'usable' if state['usable'] else machine.split_reason(state['why_not'])[0]}"
    yield "adapters"
    if not report["adapters"]:
        yield "  none"
    for adapter in report["adapters"]:
        yield from _adapter_lines(adapter)
    yield "limits"
    yield from _limit_lines(report["limits"])
    yield "problems"
    if not report["problems"]:
        yield "  none"
    for item in report["problems"]:
        yield f"  {item['about']}: {item['what']}"
        yield f"    cure: {item['cure']}"
    if "connection" in report:
        yield "connection"
        yield from _connection_lines(report["connection"])
    if "choice" in report:
        yield from _choice_lines(report["choice"])


def _adapter_lines(adapter: dict[str, str]) -> Iterator[str]:
    reason = adapter.get("why_not")
    usable = f"no: {machine.split_reason(reason)[0]}" if reason else "usable"
    yield f"  {adapter.get('name', '?')} port {adapter.get('port', '?')}: {usable}"
    shown = [name for name in _ADAPTER_FIELDS if adapter.get(name)]
    others = sorted(set(adapter) - {*_ADAPTER_FIELDS, "name", "port", "why_not"})
    for name in [*shown, *others]:
        yield f"    {name.replace('_', ' '):<11} {adapter[name]}"


def _limit_lines(limits: dict[str, Any]) -> Iterator[str]:
    def size(name: str, missing: str) -> str:
        return missing if limits[name] is None else machine.size(limits[name])

    locked = f"soft {size('memlock_soft_bytes', 'unlimited')}, hard {size('memlock_hard_bytes', 'unlimited')}"
    beyond = (
        "; this process may pin more"
        if limits["may_lock_all"] and limits["memlock_soft_bytes"] is not None
        else ""
    )
    yield f"  {'memlock':<13} {locked} (ulimit -l: what verbs may pin{beyond})"
    scope = limits["ptrace_scope"]
    meaning = {None: "none", 0: "0: processes of one user read each other"}
    traced = (
        "this process may read others all the same" if limits["may_trace_all"] else "no reading each other"
    )
    yield f"  {'ptrace_scope':<13} {meaning.get(scope, f'{scope}: {traced}')}"
    yield f"  {'open files':<13} soft {_count(limits['open_files_soft'])}, hard {_count(limits['open_files_hard'])}"
    group = size("cgroup_memory_bytes", "")
    yield f"  {'memory':<13} {size('memory_bytes', '')}{f', the control group allows {group}' if group else ''}"
    shared = f"{size('shm_bytes', 'not there')}, {size('shm_free_bytes', 'nothing')} free"
    yield f"  {'/dev/shm':<13} {shared} (doesn't bound rrpc, whose shared memory is memfd)"
    yield f"  {'huge pages':<13} {limits['huge_pages'] or 'none'}"


def _count(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _connection_lines(connection: dict[str, Any]) -> Iterator[str]:
    for name, value in connection.items():
        if name != "why_not":
            yield f"  {name:<13} {value}"
    if connection["security"] == "none":
        yield f"  {'warning':<13} calls go in clear, and whoever reaches this address may call: docs/security.md"
    yield from _why_not_lines(connection["why_not"])


def _why_not_lines(why_not: dict[str, str]) -> Iterator[str]:
    for transport, reason in why_not.items():
        yield f"  {'not ' + transport:<13} {reason}"


def _choice_lines(choice: dict[str, Any]) -> Iterator[str]:
    by = {"connecting": "tried by connecting", "reasoning": "reasoned from this end, not tried"}
    yield f"between {choice['from']} and {choice['to']} ({by[choice['by']]})"
    if "no_answer" in choice:
        yield f"  {'not tried':<13} {choice['no_answer']}"
    yield f"  {'chosen':<13} {choice['transport'] or 'none'}{': ' * bool(choice['why'])}{choice['why']}"
    yield from _why_not_lines(choice["why_not"])
    if "note" in choice:
        yield f"  {'note':<13} {choice['note']}"


if __name__ == "__main__":
    sys.exit(main())
