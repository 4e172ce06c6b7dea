"""Who has lent memory, and until when: over shm, between processes that keep it, are killed, stopped or forked."""

import gc
import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from loans_service import Loans, ordinary, pooled
from processes import Served, ServeFactory, child_environment, eventually, patience, volume
from two_versions import generate

import rrpc

CLIENT = generate(Loans)
SERVICE = "from loans_service import Loans\n"
WEIGHTS = ordinary()
SUM = float(WEIGHTS.sum(dtype=np.float64))


@pytest.fixture
def server(serve: ServeFactory) -> Served:
    return serve(SERVICE, "Loans", listen="shm")


@pytest.fixture
def loans(server: Served) -> Iterator[Any]:
    with CLIENT.LoansClient(server.address, timeout=30.0) as client:
        yield client


def lent_here() -> int:
    return rrpc.stats()["lent_bytes"]


def lent_there(loans: Any) -> int:
    return int(loans.counters()["lent_bytes"])


def values(array: Any) -> set[float]:
    return set(np.unique(array).tolist())


def overwrite_free_memory(value: float) -> None:
    """Fills the pool's free blocks of this size, and then some."""
    for array in [rrpc.empty(WEIGHTS.shape, np.float32) for _ in range(16)]:
        array[...] = value


def test_nothing_is_copied(loans: Any) -> None:
    here, there = rrpc.stats(), loans.counters()
    assert loans.sum(pooled())[0] == SUM
    array = loans.weights()
    assert float(array.sum(dtype=np.float64)) == SUM
    spent_here, spent_there = rrpc.stats(), loans.counters()
    for before, after in ((here, spent_here), (there, spent_there)):
        for counter in ("reads", "bytes_read", "copies", "bytes_copied", "stagings"):
            assert after[counter] == before[counter], counter
        assert after["ranges_borrowed"] == before["ranges_borrowed"] + 1
        assert after["bytes_borrowed"] == before["bytes_borrowed"] + WEIGHTS.nbytes
    assert spent_there["lent_bytes"] == WEIGHTS.nbytes


def test_an_argument_is_given_back_with_its_call(loans: Any) -> None:
    kept = rrpc.stats()["ranges_kept"]
    for _ in range(20):
        loans.sum(pooled())
    assert lent_here() == 0
    assert rrpc.stats()["ranges_kept"] == kept


def test_an_argument_that_the_handler_keeps_stays_as_it_was(loans: Any) -> None:
    loans.keep(pooled(7))
    assert lent_here() == WEIGHTS.nbytes
    overwrite_free_memory(-1.0)
    assert loans.kept_sums() == [SUM + 7 * WEIGHTS.size]
    loans.let_go()
    assert lent_here() == 0


MAKERS: dict[str, Callable[[Any, rrpc.Client], Any]] = {
    "empty": lambda _, __: rrpc.empty(WEIGHTS.shape, np.float32),
    "typed": lambda loans, _: loans.plain(),
    "borrowed": lambda loans, _: loans.weights(),
    "untyped": lambda _, client: client.call("Loans.plain"),
    "untyped of lent memory": lambda _, client: client.call("Loans.weights"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_any_thread_may_drop_an_array(
    server: Served, loans: Any, make: Callable[[Any, rrpc.Client], Any]
) -> None:
    """Its memory goes at once, though the thread that made it rests, as an idle worker does."""

    def held() -> int:
        return rrpc.stats()["pool_bytes_used"] + lent_there(loans)

    def fill() -> None:
        arrays.append(make(loans, client))
        filled.set()
        may_end.wait()

    arrays: list[Any] = []
    filled, may_end = threading.Event(), threading.Event()
    with rrpc.connect(server.address, timeout=30.0) as client:
        gc.collect()
        before = held()
        maker = threading.Thread(target=fill)
        maker.start()
        try:
            assert filled.wait(patience(20))
            assert held() >= before + WEIGHTS.nbytes
            arrays.clear()
            eventually(lambda: held() <= before)
        finally:
            may_end.set()
            maker.join()


def test_results_stay_as_they_were_until_they_are_dropped(loans: Any) -> None:
    held = [loans.fresh(float(value)) for value in range(8)]
    assert lent_there(loans) == 8 * WEIGHTS.nbytes
    for _ in range(16):
        loans.fresh(-1.0)
    assert [values(array) for array in held] == [{float(value)} for value in range(8)]
    view = held[3][5:9]
    del held
    assert lent_there(loans) == WEIGHTS.nbytes, "a view keeps all of its array"
    assert values(view) == {3.0}
    del view
    assert lent_there(loans) == 0


def test_results_outlive_their_connection(server: Served) -> None:
    with CLIENT.LoansClient(server.address, timeout=30.0) as client:
        array = client.fresh(5.0)
    with CLIENT.LoansClient(server.address, timeout=30.0) as client:
        assert lent_there(client) == array.nbytes
        client.fresh(-1.0)
        assert values(array) == {5.0}
        del array
        assert lent_there(client) == 0


def test_one_array_lent_twice_and_changed_afterwards(loans: Any) -> None:
    first, second = loans.twice()
    again = loans.weights()
    assert lent_there(loans) == 3 * WEIGHTS.nbytes
    loans.add(1.0)
    for array in (first, second, again):
        np.testing.assert_array_equal(array, WEIGHTS + 1)
    del array, first, second
    assert lent_there(loans) == WEIGHTS.nbytes
    np.testing.assert_array_equal(again, WEIGHTS + 1)


def test_a_killed_borrower_gives_all_back(server: Served) -> None:
    with CLIENT.LoansClient(server.address, timeout=30.0) as client:
        client.keep(pooled(3))
    assert lent_here() == WEIGHTS.nbytes, "the connection is gone, the process isn't"
    server.stop()
    assert lent_here() == WEIGHTS.nbytes
    server.resume()
    server.kill()
    eventually(lambda: lent_here() == 0, what="the lent bytes of a dead process come back")


BORROWER = """
import sys, time
import numpy as np
import rrpc
from loans_service import Loans
from two_versions import generate

client = generate(Loans).LoansClient(sys.argv[1], timeout=30.0)
held = [client.fresh(float(value)) for value in range(4)]
print("held", flush=True)
sys.stdin.readline()
print([set(np.unique(array).tolist()) for array in held] == [{float(value)} for value in range(4)], flush=True)
sys.stdin.readline()
"""


class Borrower:
    """A client process that holds four results, and can be asked whether they are as they were."""

    def __init__(self, server: Served) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BORROWER, server.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )

    def __enter__(self) -> "Borrower":
        assert self.read() == "held"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()


def test_a_killed_client_gives_all_back(loans: Any, server: Served) -> None:
    with Borrower(server):
        assert lent_there(loans) == 4 * WEIGHTS.nbytes
    eventually(lambda: lent_there(loans) == 0, what="what a killed client had is free again")


def test_a_client_that_was_cut_off_reads_its_own(serve: ServeFactory) -> None:
    silence = ["--keepalive-interval", "0.5", "--keepalive-timeout", "0.5"]
    server = serve(SERVICE, "Loans", listen="shm", args=silence)
    with CLIENT.LoansClient(server.address, timeout=30.0) as loans, Borrower(server) as borrower:
        borrower.process.send_signal(signal.SIGSTOP)
        eventually(
            lambda: loans.counters()["connections_open"] == 1, timeout=30.0, what="the server cuts it off"
        )
        for _ in range(16):
            loans.fresh(-1.0)
        assert lent_there(loans) == 4 * WEIGHTS.nbytes
        borrower.process.send_signal(signal.SIGCONT)
        borrower.go_on()
        assert borrower.read() == "True"
        borrower.go_on()
        assert borrower.process.wait(30) == 0
        eventually(lambda: lent_there(loans) == 0, what="its end gives all back")


def test_a_peer_that_connects_again_and_again_costs_one_descriptor(server: Served) -> None:
    with CLIENT.LoansClient(server.address, timeout=30.0) as watching:
        before, held = server.usage().fd_count, []
        for value in range(20):
            with CLIENT.LoansClient(server.address, timeout=30.0) as client:
                held.append(client.fresh(float(value)))
        assert lent_there(watching) == 20 * WEIGHTS.nbytes
        eventually(lambda: watching.counters()["connections_open"] == 1, what="the others are gone")
        assert server.usage().fd_count <= before + 1
        assert [values(array) for array in held] == [{float(value)} for value in range(20)]


def look_when_told(array: Any, told: Any) -> int:
    told.recv()
    return 0 if values(array) == {9.0} else 1


@contextmanager
def child_that_looks(held: list[Any]) -> Iterator[Callable[[], int | None]]:
    """Forks a child that has the one array of ``held``; gives what has it look, and returns 0 if it sees 9.0 alone."""
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(look_when_told(held.pop(), there)), daemon=True
    )
    child.start()

    def look() -> int | None:
        here.send("look")
        child.join(30)
        return child.exitcode

    try:
        yield look
    finally:
        child.kill()
        child.join()


def test_a_forked_child_has_its_own_copy_of_a_plain_array(loans: Any) -> None:
    held = [loans.call("Loans.fresh", 9.0)]
    with child_that_looks(held) as look:
        held.pop()[...] = -1.0
        assert look() == 0


def test_arguments_that_wait_for_memory_stay_borrowed(serve: ServeFactory) -> None:
    """Its long body is dropped while the call waits, and fetched again; what it borrows is borrowed once."""
    text = """
import numpy as np
import rrpc
from numpy.typing import NDArray

Array = NDArray[np.int64]

@rrpc.service
class Mixed:
    @rrpc.method
    def first(self, pad: list[str], lent: rrpc.Borrowed[Array], own: Array) -> int:
        rrpc.context().wait_cancelled(0.02)
        return int(lent[0])
"""
    server = serve(text, "Mixed", listen="shm", args=["--landing-bytes-max", "1500000", "--workers", "4"])
    lent, own, pad = rrpc.zeros(100_000, np.int64), np.zeros(50_000, np.int64), ["x" * 1000] * 400
    with rrpc.connect(server.address, timeout=30.0) as client:
        calls = [client.start("Mixed.first", pad, lent, own, borrow=True) for _ in range(24)]
        assert [call.result(30.0) for call in calls] == [0] * 24


def test_a_forked_child_has_a_copy(loans: Any) -> None:
    held = [loans.fresh(9.0)]
    with child_that_looks(held) as look:
        assert lent_there(loans) == WEIGHTS.nbytes
        held.clear()
        assert lent_there(loans) == 0
        for _ in range(16):
            loans.fresh(-1.0)
        assert look() == 0


def test_what_finds_no_room_is_fetched(serve: ServeFactory) -> None:
    server = serve(SERVICE, "Loans", listen="shm", args=["--lent-bytes-max", str(2 * WEIGHTS.nbytes)])
    with CLIENT.LoansClient(server.address, timeout=30.0, lent_bytes_max=WEIGHTS.nbytes) as loans:
        held = [loans.fresh(float(value)) for value in range(4)]
        there = loans.counters()
        assert (there["lent_bytes"], there["lendings_over_limit"]) == (2 * WEIGHTS.nbytes, 2)
        assert [values(array) for array in held] == [{float(value)} for value in range(4)]
        assert not any(array.flags.writeable for array in held)
        before = rrpc.stats()["lendings_over_limit"]
        for start in range(3):
            loans.keep(pooled(start))
        assert lent_here() == WEIGHTS.nbytes
        assert rrpc.stats()["lendings_over_limit"] == before + 2
        assert loans.kept_sums() == [SUM + start * WEIGHTS.size for start in range(3)]
        held.clear()
        loans.let_go()
        array = loans.fresh(1.0)
        there = loans.counters()
        assert (there["lent_bytes"], there["lendings_over_limit"]) == (array.nbytes, 2), "there is room again"


def test_a_gigabyte(loans: Any) -> None:
    size = volume(1 << 28, 1 << 24)
    array = rrpc.zeros((size // 64, 64), np.float32)
    array[-1, -1] = 3.0
    before = rrpc.stats()["bytes_read"]
    assert loans.sum(array) == (3.0, False)
    assert rrpc.stats()["bytes_read"] == before
    rrpc.trim()
