"""Placement of the server: the processors that it runs on, and the NUMA node whose memory it uses."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

from rrpc.cli.common import BadInput

__all__ = ["cpu_list", "place"]

_NODES = Path("/sys/devices/system/node")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261}
_PREFERRED = 1  # MPOL_PREFERRED: of that node as long as it has some, of others after that


def cpu_list(text: str) -> frozenset[int]:
    """The kernel's own form, "0-3,8". Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not first.isdecimal() or not numbers or numbers[-1] > 1 << 16:
            raise ValueError(text)
        found.update(numbers)
    return frozenset(found)


def place(cpus: str | None, node: int | None) -> None:
    """Bind all threads there are, and so all that come after them, as asked for. Raises BadInput."""
    if cpus is None and node is None:
        return
    allowed = os.sched_getaffinity(0)
    wanted = set(allowed)
    if node is not None:
        wanted &= _cpus_of_node(node, allowed)
    if cpus is not None:
        wanted = _cpus_asked_for(cpus, allowed, wanted, node)
    for thread in os.listdir("/proc/self/task"):  # numpy's have started already
        try:
            os.sched_setaffinity(int(thread), wanted)
        except ProcessLookupError:  # noqa: PERF203
            continue
        except OSError as error:
            raise BadInput(f"--cpus {cpus}: {error.strerror}") from None
    if node is not None:
        _prefer_memory_of(node)


def _cpus_asked_for(cpus: str, allowed: set[int], of_node: set[int], node: int | None) -> set[int]:
    wanted = set(cpu_list(cpus))
    if missing := wanted - allowed:
        raise BadInput(
            f"--cpus {cpus}: processor {min(missing)} isn't there for this process, which may use "
            f"{_shown(allowed)} (the machine's, or what taskset, the container or the job allows)"
        )
    if node is not None and (outside := wanted - of_node):
        raise BadInput(
            f"--cpus {cpus}: processor {min(outside)} isn't of --numa-node {node}, which has "
            f"{_shown(of_node)}"
        )
    return wanted


def _cpus_of_node(node: int, allowed: set[int]) -> set[int]:
    folder = _NODES / f"node{node}"
    if not _NODES.is_dir():
        raise BadInput(f"--numa-node {node}: this kernel knows no NUMA nodes; leave the option out")
    if not folder.is_dir():
        there = sorted(int(path.name[4:]) for path in _NODES.glob("node[0-9]*"))
        raise BadInput(f"--numa-node {node}: there is no such node; there is {_shown(set(there))}")
    text = (folder / "cpulist").read_text().strip()
    of_node = set(cpu_list(text)) if text else set()
    if not of_node & allowed:
        raise BadInput(
            f"--numa-node {node}: this process may use none of its processors ({text or 'it has none'})"
        )
    return of_node & allowed


def _prefer_memory_of(node: int) -> None:
    """Makes this thread, and the threads it starts, prefer memory of NUMA node ``node``. Raises BadInput.

    Memory that was allocated before stays where it is.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise BadInput(
            f"--numa-node: not known how to set the memory policy on {platform.machine()}; use numactl"
        )
    words = node // 64 + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // 64] = 1 << (node % 64)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit fewer than it is told.
    if libc.syscall(number, _PREFERRED, mask, ctypes.c_ulong(words * 64 + 1)) != 0:
        error = os.strerror(ctypes.get_errno())
        raise BadInput(
            f"--numa-node {node}: set_mempolicy: {error} (containers often forbid it: allow CAP_SYS_NICE, "
            "or bind with --cpus alone)"
        )


def _shown(numbers: set[int]) -> str:
    """Returns the numbers as text, such as "0-3,8"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
