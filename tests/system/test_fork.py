"""Forks: a child leaves its parent's connections alone, is told so when it doesn't, and may make its own."""

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable

import numpy as np
import pytest
from lab import LabServer, still_answers
from processes import eventually, run_python

import rrpc
from rrpc._call import context
from rrpc._client import blocking_driver, stubs
from rrpc.codec import copy_counters

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(work: Callable[[], None], timeout: float = 30.0) -> None:
    """Runs in a forked child; what it raises fails the test. A child that hangs is killed."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            code = 1
        os._exit(code)
    ended = [0, 0]

    def exited() -> bool:
        ended[:] = os.waitpid(child, os.WNOHANG)
        return ended[0] == child

    try:
        eventually(exited, timeout, "the child's end")
    except AssertionError:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise
    assert ended[1] == 0, f"the child ended with status {ended[1]}"


LOCKS = {
    "counters of copies": copy_counters._lock,
    "ends of calls": blocking_driver.lock,
    "locks of attempts": blocking_driver._making,
    "a context in the making": context._making,
    "plans of stubs": stubs._publishing,
}


@pytest.mark.parametrize("what", LOCKS)
def test_a_lock_that_a_thread_of_the_parent_holds_is_free_in_a_child(what: str) -> None:
    lock = LOCKS[what]
    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            may_end.wait(60.0)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10.0)
        assert not lock.acquire(blocking=False)

        def work() -> None:
            assert lock.acquire(timeout=10.0)

        in_child(work)
        assert not lock.acquire(blocking=False), "the child has taken the parent's"
    finally:
        may_end.set()
        thread.join()


def test_a_child_may_not_use_its_parents_client(lab: rrpc.Client) -> None:
    assert lab.call("Lab.add", 1) == 2
    pending = lab.start("Lab.add", 5)

    def work() -> None:
        for use in (lambda: lab.call("Lab.add", 1), lambda: lab.start("Lab.add", 1)):
            with pytest.raises(rrpc.FailedPrecondition, match="parent process"):
                use()
        lab.close()

    in_child(work)
    assert pending.result() == 6
    assert [lab.call("Lab.add", i) for i in range(100)] == list(range(1, 101))
    assert lab.call("Lab.total", np.ones(100_000)) == 100_000


def test_a_future_in_a_child(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    future = lab.start("Lab.hold", name)
    done = lab.start("Lab.add", 1)
    assert done.result() == 2

    def work() -> None:
        assert done.result() == 2
        with pytest.raises((rrpc.FailedPrecondition, TimeoutError)):
            future.result(timeout=0.5)
        assert not future.cancel()

    in_child(work)
    lab.call("Lab.release", name)
    assert future.result() is True


def test_a_child_may_connect_anew(lab: rrpc.Client, lab_address: str) -> None:
    assert lab.call("Lab.add", 1) == 2
    kept = lab.call("Lab.make", 100_000, 3)
    transport = lab.info()["transport"]

    def work() -> None:
        with rrpc.connect(lab_address, timeout=20.0) as own:
            assert own.call("Lab.add", 1) == 2
            assert own.call("Lab.total", np.ones(100_000)) == 100_000
            assert own.call("Lab.make", 100_000, 1).sum() == 100_000
            assert own.call("Lab.total", kept) == 300_000  # the parent's pool memory is ordinary memory here
            assert own.info()["transport"] == transport
            for touch in (lab.info, lab.stats):
                with pytest.raises(rrpc.FailedPrecondition):
                    touch()

    in_child(work)
    assert kept.sum() == 300_000
    assert lab.call("Lab.make", 100_000, 2).sum() == 200_000


def test_generations(lab_address: str) -> None:
    def grandchild() -> None:
        still_answers(lab_address)

    def child() -> None:
        with rrpc.connect(lab_address, timeout=20.0) as own:
            assert own.call("Lab.add", 1) == 2
            in_child(grandchild)
            assert own.call("Lab.add", 1) == 2

    with rrpc.connect(lab_address, timeout=20.0) as client:
        in_child(child)
        assert client.call("Lab.add", 1) == 2


def test_a_normal_exit_of_a_child(lab: rrpc.Client, lab_address: str) -> None:
    """With the interpreter's whole ending, destructors included."""
    code = """
import os, sys, rrpc, numpy as np
client = rrpc.connect(sys.argv[1], timeout=20.0)
array = client.call("Lab.make", 100_000, 1)
future = client.start("Lab.add", 1)
child = os.fork()
if child == 0:
    del future, array
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert future.result() == 2
assert client.call("Lab.total", array) == 100_000
print("fine")
"""
    assert run_python(code, lab_address, timeout=30).stdout == "fine\n"


def test_a_server_in_a_child(new_address: Callable[[str], str], transport: str) -> None:
    import lab_service

    with rrpc.serve(lab_service.Lab(), listen=new_address(transport)) as server:
        still_answers(server.addresses[0])

        def work() -> None:
            with pytest.raises(rrpc.FailedPrecondition, match="parent process"):
                server.listen(new_address("tcp"))
            still_answers(server.addresses[0])  # as a client of its parent
            with rrpc.serve(lab_service.Lab(), listen=new_address(transport)) as own:
                still_answers(own.addresses[0])

        in_child(work)
        still_answers(server.addresses[0])
    if transport != "shm":
        with pytest.raises(rrpc.Unavailable):
            rrpc.connect(server.addresses[0], connect_timeout=5.0)


def test_the_death_of_a_parent_is_seen_though_its_child_lives(lab_server: LabServer, transport: str) -> None:
    """The child's copies of sockets don't keep the connection alive."""
    code = """
import os, sys, rrpc
client = rrpc.connect(sys.argv[1], timeout=20.0)
client.start("Lab.hold", sys.argv[2], 1.0)
child = os.fork()
if child == 0:
    os.close(0), os.close(1), os.close(2)
    import time
    time.sleep(20)
    os._exit(0)
print(child, flush=True)
os._exit(0)
"""
    address = lab_server.address(transport)
    with rrpc.connect(address, timeout=20.0) as observer:
        eventually(lambda: observer.call("Lab.counts")["connections_open"] <= 1)
        child = int(run_python(code, address, f"orphan-{transport}").stdout)
        try:
            if transport != "tcp":  # a TCP socket lives as long as any copy of it
                eventually(lambda: observer.call("Lab.counts")["connections_open"] == 1, 5.0)
        finally:
            os.kill(child, 9)
        eventually(lambda: observer.call("Lab.counts")["connections_open"] == 1)


def _square_sum(work: tuple[str, int]) -> float:
    address, value = work
    with rrpc.connect(address, timeout=20.0) as client:
        total: float = client.call("Lab.total", np.full(2000, value))
        return total


def test_a_pool_of_forked_workers(lab: rrpc.Client, lab_address: str) -> None:
    assert lab.call("Lab.add", 1) == 2
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_square_sum, [(lab_address, i) for i in range(12)]) == [2000.0 * i for i in range(12)]
    assert lab.call("Lab.add", 1) == 2
