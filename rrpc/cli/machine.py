"""Facts about this machine for rrpc-info: limits, and a cure for every problem."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_SHARED_MEMORY = "/dev/shm"
_RDMA_CM = "/dev/infiniband/rdma_cm"
_CAP_IPC_LOCK, _CAP_SYS_PTRACE = 14, 19
_MEMLOCK_ENOUGH = 1 << 30
_FILES_ENOUGH = 4096
_FILES_PER_CONNECTION = 3

_MEMLOCK_CURE = (
    "ulimit -l unlimited (allowed by '* - memlock unlimited' in /etc/security/limits.conf); "
    "systemd: LimitMEMLOCK=infinity; container: --ulimit memlock=-1"
)
# What a reason says, and what to do about it: the first that fits.
_CURES = (
    ("has no verbs provider", "apt install libibverbs-dev librdmacm-dev, then build rrpc again"),
    (
        "libraries are not installed",
        "apt install libibverbs1 librdmacm1 ibverbs-providers; Fedora and RHEL: dnf install libibverbs librdmacm",
    ),
    ("is not rrpc's verbs provider", "install rrpc anew"),
    (
        "has no RDMA adapter",
        "load its driver (modprobe mlx5_ib, ...) or: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0",
    ),
    ("can't be reached", "modprobe ib_uverbs; in a container pass /dev/infiniband in"),
    ("RLIMIT_MEMLOCK", _MEMLOCK_CURE),
    ("subnet manager", "check its cable, and that a subnet manager runs"),
    ("interface up", "ip link set INTERFACE up"),
    ("Permission denied", "let this user open /dev/infiniband/* (a udev rule, or the group that has them)"),
    ("", "see docs/rdma.md, section 6"),
)


def split_reason(reason: str) -> tuple[str, str]:
    """Returns the problem, without the advice that follows it in ``reason``, and the cure."""
    sign, cure = next((sign, cure) for sign, cure in _CURES if sign in reason)
    outside = re.sub(r"\([^)]*\)", lambda aside: "." * len(aside[0]), reason)
    end = re.search(r"[;:] ", outside) if sign else None
    return (reason[: end.start()] if end else reason), cure


def limits() -> dict[str, Any]:
    """Returns what the kernel allows this process. None means that there is no limit, or no such setting."""
    memlock_soft, memlock_hard = _resource(resource.RLIMIT_MEMLOCK)
    files_soft, files_hard = _resource(resource.RLIMIT_NOFILE)
    capabilities = _capabilities()
    return {
        "memlock_soft_bytes": memlock_soft,
        "memlock_hard_bytes": memlock_hard,
        "may_lock_all": bool(capabilities >> _CAP_IPC_LOCK & 1),
        "ptrace_scope": _number("/proc/sys/kernel/yama/ptrace_scope"),
        "may_trace_all": bool(capabilities >> _CAP_SYS_PTRACE & 1),
        "process_vm_readv": _reading_processes(),
        "open_files_soft": files_soft,
        "open_files_hard": files_hard,
        "huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "cgroup_memory_bytes": _cgroup_memory(),
        **_shared_memory(),
        "rdma_cm": _device(_RDMA_CM),
        "socket_folder": _socket_folder(),
    }


def _resource(which: int) -> tuple[int | None, int | None]:
    soft, hard = resource.getrlimit(which)
    endless = resource.RLIM_INFINITY
    return None if soft == endless else soft, None if hard == endless else hard


def _capabilities() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _chosen(path: str) -> str | None:
    """Returns the word in brackets in a file like ``always [madvise] never``, or None."""
    try:
        return Path(path).read_text().partition("[")[2].partition("]")[0] or None
    except OSError:
        return None


def _shared_memory() -> dict[str, int | None]:
    try:
        there = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return {"shm_bytes": None, "shm_free_bytes": None}
    return {
        "shm_bytes": there.f_frsize * there.f_blocks,
        "shm_free_bytes": there.f_frsize * there.f_bavail,
    }


def _reading_processes() -> str:
    """Returns "" if this process may use process_vm_readv at all (on itself), else why not, such as seccomp."""

    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    source, target = ctypes.create_string_buffer(b"rrpc"), ctypes.create_string_buffer(5)
    vectors = [Vector(ctypes.addressof(buffer), 5) for buffer in (target, source)]
    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        return os.strerror(errno.ENOSYS)
    count = ctypes.c_ulong(1)
    done = read(
        os.getpid(), ctypes.byref(vectors[0]), count, ctypes.byref(vectors[1]), count, ctypes.c_ulong(0)
    )
    return "" if done == 5 else os.strerror(ctypes.get_errno())


def _cgroup_memory() -> int | None:
    """The least limit of the control groups that this process is in, where it is below the machine's memory."""
    found = []
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in groups:
        if controllers == "":
            folder, name = Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
        else:
            continue
        found += [_number(str(place / name)) for place in (folder, *folder.parents)]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((limit for limit in found if limit is not None and limit < total), default=None)


def _device(path: str) -> str:
    if not os.path.exists(path):
        return "not there"
    return "usable" if os.access(path, os.R_OK | os.W_OK) else "no permission"


def _socket_folder() -> dict[str, Any]:
    """Returns the folder of the sockets of shm:// names, and whether this process can write to it."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    parent = given or "/tmp"
    path = f"{given}/rrpc" if given else f"/tmp/rrpc-{os.getuid()}"
    return {"path": path, "writable": os.access(path if os.path.exists(path) else parent, os.W_OK | os.X_OK)}


def problems(
    transports: Mapping[str, Mapping[str, Any]],
    adapters: Sequence[Mapping[str, str]],
    limits: Mapping[str, Any],
) -> list[dict[str, str]]:
    """Returns the problems that slow or restrict rrpc on this machine, each as {"about", "what", "cure"}."""
    found = [
        *_of_transports(transports),
        *_of_adapters(adapters, limits),
        *_of_processes(limits),
        *_of_memory(limits),
        *_of_files(limits),
    ]
    return [{"about": about, "what": what, "cure": cure} for about, what, cure in found]


_Problem = tuple[str, str, str]


def _of_transports(transports: Mapping[str, Mapping[str, Any]]) -> Iterator[_Problem]:
    said = set()
    for scheme, state in transports.items():
        if not state["usable"] and state["why_not"] not in said:
            said.add(state["why_not"])
            yield scheme, *split_reason(state["why_not"])


def _of_adapters(adapters: Sequence[Mapping[str, str]], limits: Mapping[str, Any]) -> Iterator[_Problem]:
    if not adapters:
        return
    for adapter in adapters:
        port = f"{adapter.get('name', '?')} port {adapter.get('port', '?')}"
        if reason := adapter.get("why_not"):
            yield port, *split_reason(reason)
        elif not adapter.get("addresses"):
            yield (
                port,
                "its network interface has no IP address, so verbs:// can't reach it",
                "ip addr add ADDRESS dev INTERFACE, or use verbs+tcp:// (not for iWARP)",
            )
    if (state := limits["rdma_cm"]) != "usable":
        cure = "modprobe rdma_ucm" if state == "not there" else "let this user open it (a udev rule)"
        yield (
            "rdma_cm",
            f"{_RDMA_CM}: {state}, so verbs:// can't connect",
            f"{cure}; in a container pass /dev/infiniband in; or use verbs+tcp://",
        )
    soft, hard = limits["memlock_soft_bytes"], limits["memlock_hard_bytes"]
    if soft is not None and soft < _MEMLOCK_ENOUGH and not limits["may_lock_all"]:
        cure = "ulimit -l hard" if hard is None or hard >= _MEMLOCK_ENOUGH else _MEMLOCK_CURE
        yield "memlock", f"adapters may pin only {size(soft)} of this process's memory", cure


def _of_processes(limits: Mapping[str, Any]) -> Iterator[_Problem]:
    copy = "shm copies ordinary arrays once more (rrpc.empty's are not)"
    if limits["process_vm_readv"]:
        yield (
            "process_vm_readv",
            f"it is refused ({limits['process_vm_readv']}): {copy}",
            "allow it in the container's seccomp profile, or docker run --cap-add SYS_PTRACE",
        )
    elif limits["ptrace_scope"] and not limits["may_trace_all"]:
        yield (
            "ptrace_scope",
            f"{limits['ptrace_scope']}: processes may not read each other, {copy}",
            "sysctl kernel.yama.ptrace_scope=0 (and in /etc/sysctl.d/), or the capability CAP_SYS_PTRACE",
        )
    if not limits["socket_folder"]["writable"]:
        yield (
            "shm names",
            f"{limits['socket_folder']['path']} can't be written, so shm://name has no place",
            "set XDG_RUNTIME_DIR to a folder of this user, or use shm:///path.sock",
        )


def _of_memory(limits: Mapping[str, Any]) -> Iterator[_Problem]:
    if limits["huge_pages"] == "never":
        yield (
            "huge pages",
            "transparent huge pages are off: large results cost more page faults",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


def _of_files(limits: Mapping[str, Any]) -> Iterator[_Problem]:
    hard = limits["open_files_hard"]
    if hard is None or hard >= _FILES_ENOUGH:
        return
    what = f"at most {hard}: enough for some {hard // _FILES_PER_CONNECTION} connections"
    limits_conf = "'* - nofile 65536' in /etc/security/limits.conf"
    yield (
        "open files",
        what,
        f"{limits_conf}; systemd: LimitNOFILE=65536; container: --ulimit nofile=65536",
    )


def size(count: int) -> str:
    """A number of bytes for people."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
