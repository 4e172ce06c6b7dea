"""Placement of the server: the processors that it runs on, and the NUMA node whose memory it uses."""

from __future__ import annotations

import ctypes
import os
import platform

from rrpc._numa import AUTO, adapters_node, cpu_list, cpus_of_node, shown
from rrpc.cli.common import BadInput

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261}
_PREFERRED = 1  # MPOL_PREFERRED: of that node as long as it has some, of others after that


def place(cpus: str | None, node: int | str | None) -> None:
    """Bind all threads there are, and so all that come after them, as asked for. Raises BadInput."""
    if node == AUTO:
        node = adapters_node()
    if cpus is None and node is None:
        return
    allowed = os.sched_getaffinity(0)
    wanted = set(allowed)
    if node is not None:
        try:
            wanted = cpus_of_node(int(node))
        except ValueError as error:
            raise BadInput(f"--numa-node {node}: {error}") from None
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
        _prefer_memory_of(int(node))


def _cpus_asked_for(cpus: str, allowed: set[int], of_node: set[int], node: int | str | None) -> set[int]:
    wanted = set(cpu_list(cpus))
    if missing := wanted - allowed:
        raise BadInput(
            f"--cpus {cpus}: processor {min(missing)} isn't there for this process, which may use "
            f"{shown(allowed)} (the machine's, or what taskset, the container or the job allows)"
        )
    if node is not None and (outside := wanted - of_node):
        raise BadInput(
            f"--cpus {cpus}: processor {min(outside)} isn't of --numa-node {node}, which has {shown(of_node)}"
        )
    return wanted


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
