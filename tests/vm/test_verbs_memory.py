"""What a connection that says little pins at its server; memory that this process can't write."""

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from lab import LAB
from processes import ServeFactory, Usage
from under_way import slowly

import rrpc

FIRST, MORE = 4, 16
PINNED_MAX = {0: 544 << 10, 2048: 24 << 10, 16384: 24 << 10}
"""Bytes of a connection, by the slots of a shared receive ring."""
OWN_MAX = {0: 576 << 10, 2048: 64 << 10, 16384: 64 << 10}
"""The same of all memory of the process, without what the kernel has for the software adapter."""


@pytest.fixture
def no_huge_pages() -> Iterator[None]:
    """A huge page, of which the kernel may make one at any time, has memory in it that nobody touched."""
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    before = path.read_text().split("[")[1].split("]")[0]
    path.write_text("never")
    yield
    path.write_text(before)


@pytest.mark.usefixtures("no_huge_pages")
@pytest.mark.parametrize("slots", PINNED_MAX)
def test_a_quiet_connection_pins_little(serve: ServeFactory, slots: int) -> None:
    served = serve(
        LAB,
        "Lab",
        listen="verbs://10.9.0.1:0",
        module="lab_service",
        args=["--shared-receive-slots", str(slots)] if slots else [],
    )
    with contextlib.ExitStack() as clients:

        def connect(count: int) -> tuple[int, int]:
            for _ in range(count):
                client = clients.enter_context(rrpc.connect(served.address, connect_timeout=slowly(30.0)))
                assert client.call("Lab.add", 1, timeout=slowly(30.0)) == 2
            return Usage.of(served.process.pid).pinned_bytes, anonymous_bytes(served.process.pid)

        before, free_before = connect(FIRST), available_bytes()
        after, free_after = connect(MORE), available_bytes()
        pinned, own = ((last - first) / MORE for first, last in zip(before, after, strict=True))
        machine = (free_before - free_after) / MORE
        print(f"a connection: {pinned / 1024:.1f} KiB pinned, {own / 1024:.1f} KiB of the server's memory")
        print(f"both ends of one, with the kernel: {machine / 1024:.1f} KiB")
        assert pinned <= PINNED_MAX[slots]
        assert own <= OWN_MAX[slots]


def available_bytes() -> int:
    return kilobytes(Path("/proc/meminfo"), "MemAvailable") * 1024


def anonymous_bytes(pid: int) -> int:
    """Counts pages, as the counters in /proc/PID/status, which threads update in batches, don't."""
    return kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Anonymous") * 1024


def kilobytes(path: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{name}:"))


@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["private", "shared"])
def test_a_read_only_file_is_sent(lab_address: str, transport: str, tmp_path: Path, flags: int) -> None:
    path = tmp_path / "values"
    path.write_bytes(bytes(range(256)) * 4096)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
    values = np.frombuffer(mapped, np.uint8)
    staged = rrpc.stats()["stagings"]
    with rrpc.connect(lab_address, connect_timeout=slowly(30.0)) as client:
        assert client.call("Lab.total", values) == int(values.sum(dtype=np.int64))
    # What windows may be bound to has to be writable, and of a shared mapping Linux 6.1 gives adapters nothing.
    may_be_read = transport == "siw" and flags == mmap.MAP_PRIVATE
    assert rrpc.stats()["stagings"] == staged + (0 if may_be_read else 1)
