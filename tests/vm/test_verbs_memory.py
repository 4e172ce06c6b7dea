"""What a connection that says little pins at its server."""

import contextlib

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
