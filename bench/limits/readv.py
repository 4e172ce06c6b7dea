"""process_vm_readv out of a child's touched memory into our own touched memory."""

import ctypes
import sys

from bench.limits.base import Results
from bench.measure import bandwidth, case_name
from bench.peers.base import touched
from bench.processes import Child
from bench.settings import MIB

ONE = ctypes.c_ulong(1)


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def missing() -> str:
    return "" if hasattr(ctypes.CDLL(None), "process_vm_readv") else "this system has no process_vm_readv"


def read(pid: int, remote_at: int, local_at: int, nbytes: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    done = 0
    while done < nbytes:
        local, remote = Iovec(local_at + done, nbytes - done), Iovec(remote_at + done, nbytes - done)
        got = libc.process_vm_readv(
            pid, ctypes.byref(local), ONE, ctypes.byref(remote), ONE, ctypes.c_ulong(0)
        )
        if got <= 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv refused")
        done += got


def measure(seconds: float, sizes: list[float]) -> Results:
    return [{"case": case_name(size), "metrics": one(seconds, int(size * MIB))} for size in sizes]


def one(seconds: float, nbytes: int) -> dict[str, float]:
    target = touched(nbytes)
    target_at = target.ctypes.data
    with Child(["-m", "bench.limits.readv", str(nbytes)], timeout=30) as child:
        remote_at = int(child.read_line())
        return bandwidth(lambda: read(child.pid, remote_at, target_at, nbytes), nbytes, seconds)


def hold() -> None:
    """The child: hold touched memory, say where, until the parent is done."""
    array = touched(int(sys.argv[1]))
    print(array.ctypes.data, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    hold()
