"""NUMA nodes: which there are, the processors of one, and the node that the adapters are at."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

SYS = Path("/sys")
AUTO = "auto"
"""Given in place of a node's number: the node of the adapters."""


def cpu_list(text: str) -> frozenset[int]:
    """Reads the kernel's own form, "0-3,8". Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not first.isdecimal() or not numbers or numbers[-1] > 1 << 16:
            raise ValueError(text)
        found.update(numbers)
    return frozenset(found)


def shown(numbers: Iterable[int]) -> str:
    """Returns the numbers as text, such as "0-3,8"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def cpus_of_node(node: int) -> set[int]:
    """Returns those processors of a node that this process may use. Raises ValueError where there are none."""
    nodes = SYS / "devices/system/node"
    if not nodes.is_dir():
        raise ValueError("this kernel knows no NUMA nodes; leave the option out")
    folder = nodes / f"node{node}"
    if not folder.is_dir():
        there = [int(path.name[4:]) for path in nodes.glob("node[0-9]*")]
        raise ValueError(f"there is no such node; there is {shown(there)}")
    text = (folder / "cpulist").read_text().strip()
    usable = (cpu_list(text) if text else frozenset()) & os.sched_getaffinity(0)
    if not usable:
        raise ValueError(f"this process may use none of its processors ({text or 'it has none'})")
    return set(usable)


def adapters_node() -> int | None:
    """Returns the node that all RDMA adapters are at; None: there are none, at several nodes, or it isn't known."""
    found = {_node_of(adapter) for adapter in (SYS / "class/infiniband").glob("*")}
    return found.pop() if len(found) == 1 and min(found) >= 0 else None


def _node_of(adapter: Path) -> int:
    try:
        return int((adapter / "device/numa_node").read_text())
    except (OSError, ValueError):  # a software adapter is no device of a bus
        return -1
