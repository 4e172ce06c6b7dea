"""What connections hold open, at both ends."""

import os
from collections.abc import Callable

import numpy as np
import pytest
from processes import ServeFactory, eventually, volume

import rrpc

SERVICE = """
import numpy as np
from numpy.typing import NDArray
import rrpc

@rrpc.service
class Sums:
    @rrpc.method
    def total(self, array: NDArray[np.uint8]) -> int:
        return int(array.sum(dtype=np.int64))
"""
COUNT = volume(24, 4)
PER_CONNECTION = 2
PER_CLIENT_PROCESS = 1  # at the server, over shared memory: the ready bits of its connections


def used(address: str) -> rrpc.Client:
    """Of this connection everything was used once that may open something: an array each way, and sleep."""
    client = rrpc.connect(address, timeout=20.0, poll="event")
    assert client.call("Sums.total", np.ones(1 << 18, np.uint8)) == 1 << 18
    assert client.call("Sums.total", rrpc.zeros(1 << 18, np.uint8)) == 0
    return client


@pytest.mark.parametrize("scheme", ["shm", "tcp", "rrpc"])
def test_a_connection_holds_two_descriptors(
    serve: ServeFactory, new_address: Callable[[str], str], scheme: str
) -> None:
    served = serve(SERVICE, "Sums", listen=new_address(scheme), args=["--workers", "2"])

    def own() -> int:
        return len(os.listdir("/proc/self/fd"))

    with used(served.address):  # what a process holds once for all
        before, own_before = served.usage().fd_count, own()
        clients = [used(served.address) for _ in range(COUNT)]
        most = PER_CONNECTION * COUNT
        most_at_server = most + PER_CLIENT_PROCESS
        # Over rrpc:// each end closes the socket of the introduction by the way.
        eventually(
            lambda: before + COUNT <= served.usage().fd_count <= before + most_at_server, what="the server's"
        )
        eventually(lambda: own() <= own_before + most, what="the client's")
        for client in clients:
            client.close()
        del client, clients
        eventually(lambda: served.usage().fd_count <= before, what="the server closes what it held")
        eventually(lambda: own() <= own_before, what="the client closes what it held")
