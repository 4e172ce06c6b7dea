"""One server of lab_service for many tests, and helpers around it."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import own_port
from processes import Served, ServeFactory, eventually, patience

import rrpc

LAB = (Path(__file__).parent / "lab_service.py").read_text()
# In the virtual machine of `make test-vm`: its adapters, as tools/vm sets them up.
VERBS = {
    "rxe": "verbs://10.9.0.1",
    "rxe-socket": "verbs+tcp://10.9.0.1",
    "siw": "verbs://10.9.1.1",
}
TRANSPORTS = tuple(os.environ.get("RRPC_TEST_TRANSPORTS", "shm,tcp,rrpc").split(","))
_numbers = itertools.count()
TRANSIENT = ("exposures_live", "bytes_exposed", "pool_bytes_used")


def address_to_listen_on(transport: str, shm_name: str = "") -> str:
    """One that nobody else has, other test processes included."""
    if transport == "shm":
        return f"shm://{shm_name or f'rrpc-test-{os.getpid()}-{next(_numbers)}'}"
    return f"{VERBS.get(transport, f'{transport}://127.0.0.1')}:{own_port()}"


class LabServer:
    """A server that listens on every transport."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def address(self, transport: str) -> str:
        return self.served.addresses[TRANSPORTS.index(transport)]

    @property
    def pid(self) -> int:
        return self.served.pid


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """Shared by all tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("lab")
    factory = ServeFactory(folder, address_to_listen_on)
    yield LabServer(
        factory(LAB, "Lab", "Second", listen=TRANSPORTS, args=["--workers", "8"], module="lab_service")
    )
    factory.close()


@pytest.fixture
def lab_address(lab_server: LabServer, transport: str) -> str:
    """Of the shared server, once for each transport."""
    return lab_server.address(transport)


@pytest.fixture
def lab(lab_address: str) -> Iterator[rrpc.Client]:
    """A client of the shared server, once for each transport."""
    with rrpc.connect(lab_address, timeout=30.0) as client:
        yield client


@contextmanager
def moved(client: rrpc.Client) -> Iterator[dict[str, dict[str, int]]]:
    """What changed in the counters of both processes: {"here": {...}, "there": {...}} after the block."""
    out: dict[str, dict[str, int]] = {}
    before = {"here": rrpc.stats(), "there": client.call("Lab.counts")}
    yield out
    after = {"here": rrpc.stats(), "there": client.call("Lab.counts")}
    for side, counts in after.items():
        out[side] = {name: value - before[side][name] for name, value in counts.items()}


def transient(counts: dict[str, int]) -> dict[str, int]:
    """The counters that go back to what they were once nothing is under way."""
    return {name: counts[name] for name in TRANSIENT}


def settles(read: Callable[[], dict[str, int]], expected: dict[str, int], timeout: float = 10.0) -> None:
    """Waits until the transient counters are as expected."""
    shown: dict[str, int] = {}

    def settled() -> bool:
        shown.update(transient(read()))
        return shown == expected

    try:
        eventually(settled, timeout)
    except AssertionError:
        raise AssertionError(f"not within {patience(timeout)} s: {expected}, but {shown}") from None


def refuses(client: rrpc.Client) -> bool:
    """Whether its server takes no calls of this client any more."""
    try:
        client.call("Lab.add", 1)
    except rrpc.Unavailable:
        return True
    return False


def call_held(
    client: rrpc.Client, name: str, seconds: float = 30.0, until: str | Path = ""
) -> rrpc.Future[bool]:
    """A call that runs in its handler by now, for so long or until the file is there."""
    future: rrpc.Future[bool] = client.start("Lab.hold", name, seconds, str(until))
    eventually(lambda: client.call("Lab.holding", name))
    return future


def still_answers(address: str) -> None:
    """Another client gets its answer."""
    with rrpc.connect(address, timeout=20.0) as other:
        assert other.call("Lab.add", 2, 3) == 5


def freeze(served: Served) -> None:
    """SIGSTOP, and waits until every thread has stopped."""
    served.stop()
    eventually(lambda: all_stopped(served.pid))


def all_stopped(pid: int) -> bool:
    """Whether SIGSTOP has come to every thread of a process."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(text.rsplit(")", 1)[1].split()[0] == "T" for text in stats)


def core_of(client: rrpc.Client) -> Any:
    """The core's end of a client's connection."""
    connection = client._channel.ready
    assert connection is not None
    return connection.core
