"""What a connection that says little pins at its server; memory that this process can't write."""

import contextlib
import mmap
from pathlib import Path

import numpy as np
import pytest
from lab import LAB
from processes import ServeFactory, Usage
from under_way import slowly

import rrpc

FIRST, MORE = 4, 16
PINNED_MAX = {0: 544 << 10, 2048: 24 << 10}
"""Bytes of a connection, by the slots of a shared receive ring."""


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

        def connect(count: int) -> int:
            for _ in range(count):
                client = clients.enter_context(rrpc.connect(served.address, connect_timeout=slowly(30.0)))
                assert client.call("Lab.add", 1, timeout=slowly(30.0)) == 2
            return Usage.of(served.process.pid).pinned_bytes

        first = connect(FIRST)
        each = (connect(MORE) - first) / MORE
        print(f"{each / 1024:.1f} KiB are pinned for a connection")
        assert each <= PINNED_MAX[slots]


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
