"""A network interface that is set down while calls and reads are under way. Run by tests/vm/guest/link_down.sh."""

import time
from pathlib import Path

import pytest
from guest_network import down, queue_pairs
from lab import LAB, settles, still_answers, transient
from processes import Served, ServeFactory, eventually
from under_way import UnderWay, slowly

import rrpc

LINKS = {"rxe": "rx0", "rxe-socket": "rx0", "siw": "iw0"}
KEEPALIVE_SECONDS = slowly(2.0)  # interval, and timeout
SLACK = slowly(6.0)  # of an emulated machine
NEVER_CLOSED: list[rrpc.Client] = []  # whoever lets go of one may wait in the kernel for ever


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=["--workers", "6"])


def port_state() -> str:
    return Path("/sys/class/infiniband/rxe0/ports/1/state").read_text()


def test_a_link_that_flaps_ends_nothing(serve: ServeFactory) -> None:
    """Of a connection at rest: what Soft-RoCE is sending then it ends by itself, as Soft-iWARP does all."""
    served = serve(LAB, "Lab", listen="rxe-socket", module="lab_service", args=["--workers", "6"])
    with rrpc.connect(served.address, connect_timeout=slowly(30.0)) as client:
        local = client.info()["local"]
        with down("rx0"):
            eventually(lambda: "DOWN" in port_state(), what="the port down")
        eventually(lambda: "ACTIVE" in port_state(), what="the port up again")
        assert client.call("Lab.add", 1) == 2
        assert client.info()["local"] == local


def test_a_link_goes_down_and_comes_up(serve: ServeFactory, served: Served, transport: str) -> None:
    idle, before = transient(rrpc.stats()), len(queue_pairs())
    client = rrpc.connect(
        served.address,
        connect_timeout=slowly(30.0),
        keepalive_interval=KEEPALIVE_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    under_way = UnderWay(client, "down")
    with down(LINKS[transport]):
        start = time.monotonic()
        print(under_way.errors(timeout=slowly(60.0)))
        took = time.monotonic() - start
        assert took < 2 * KEEPALIVE_SECONDS + SLACK, f"Unavailable after {took:.2f} s"
        settles(rrpc.stats, idle)
    if transport == "rxe":
        # Soft-RoCE's own queue pair for rdma_cm never comes back from saying goodbye over a link that is down, for no
        # program on that machine: new connections, and taking down the old, wait for it, a killed process's too.
        serve.abandon(served)
        NEVER_CLOSED.append(client)
        return
    eventually(lambda: len(queue_pairs()) <= before, what="queue pairs destroyed")
    print("the server:", served.process.poll(), served.log)
    still_answers(served.address)
    client.close()
