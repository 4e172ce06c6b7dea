"""Every wait ends: a deadline in each phase of a call, and what is left usable after it."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from lab import LAB, freeze, settles, still_answers, transient
from processes import Served, ServeFactory, eventually, patience, volume

import rrpc
import rrpc.aio

MIB = 1 << 20
LARGE = volume(64, 8) * MIB
STEP_SECONDS = volume(0.0002, 0.005)  # of ever longer waits before a cancel


@contextmanager
def deadline(
    seconds: float, error: type[rrpc.RpcError] = rrpc.DeadlineExceeded, match: str | None = None
) -> Iterator[None]:
    """The block raises the error, not before its time and not long after."""
    start = time.monotonic()
    with pytest.raises(error, match=match):
        yield
    took = time.monotonic() - start
    print(f"{took:.3f} s for a deadline of {seconds} s")
    assert seconds * 0.9 <= took < seconds + patience(10.0)


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=["--workers", "8"])


# Connecting


@pytest.fixture
def silent_tcp() -> Iterator[str]:
    """Listens, accepts nothing: the kernel finishes the TCP handshake, nobody says SETUP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["tcp", "rrpc"])
def test_connecting_to_one_who_says_nothing(silent_tcp: str, scheme: str) -> None:
    with deadline(0.3, match="handshake was not finished in time"):
        rrpc.connect(f"{scheme}://{silent_tcp}", connect_timeout=0.3)

    async def connect() -> None:
        await rrpc.aio.connect(f"{scheme}://{silent_tcp}", connect_timeout=0.3)

    with deadline(0.3, match="handshake was not finished in time"):
        asyncio.run(connect())


def test_connecting_over_shm_to_one_who_says_nothing(short_tmp: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short_tmp}/silent.sock")
        listener.listen()
        with deadline(0.3):
            rrpc.connect(f"shm://{short_tmp}/silent.sock", connect_timeout=0.3)


def test_connecting_where_the_backlog_is_full(transport: str) -> None:
    """The SYN is dropped: the connection itself hangs."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        target = listener.getsockname()
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(target)
            fillers.append(filler)
        with deadline(0.3):
            rrpc.connect(f"tcp://127.0.0.1:{target[1]}", connect_timeout=0.3)
        for filler in fillers:
            filler.close()


def test_a_call_s_deadline_covers_connecting(silent_tcp: str) -> None:
    with rrpc.Client(f"tcp://{silent_tcp}", lazy=True) as client:
        with deadline(0.3):
            client.call("Lab.add", 1, timeout=0.3)
        with deadline(0.3):
            client.start("Lab.add", 1, timeout=0.3).result()


def test_connecting_to_a_stopped_server(served: Served) -> None:
    freeze(served)
    with deadline(0.3):
        rrpc.connect(served.address, connect_timeout=0.3)
    served.resume()
    still_answers(served.address)


def test_a_peer_that_never_finishes_its_handshake_is_dropped(transport: str) -> None:
    """The server's side: a silent connection costs it nothing for long."""
    # Its deadline is 10 s by itself; what counts here is that others aren't held up meanwhile.
    import lab_service

    with rrpc.serve(lab_service.Lab(), listen="tcp://127.0.0.1:0") as server:
        port = int(server.addresses[0].rsplit(":", 1)[1])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        still_answers(server.addresses[0])
        for connection in silent:
            connection.close()
        eventually(lambda: server.stats()["connections"] == 0)


# Calls


def test_in_the_handler(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    idle = transient(rrpc.stats())
    with deadline(0.3):
        lab.call("Lab.hold", name, timeout=0.3)
    assert lab.call("Lab.add", 1) == 2
    with deadline(0.3):
        lab.start("Lab.hold", name, timeout=0.3).result()
    lab.call("Lab.release", name)
    assert lab.call("Lab.add", 1) == 2
    settles(rrpc.stats, idle)


def test_nobody_waits(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    """A future that isn't waited for ends at its deadline too."""
    name = request.node.name
    ended = threading.Event()
    future = lab.start("Lab.hold", name, timeout=0.3)
    assert not future.done()
    future.add_done_callback(lambda f: ended.set())
    assert ended.wait(patience(20))
    assert isinstance(future.exception(), rrpc.DeadlineExceeded)
    future = lab.start("Lab.hold", name, timeout=0.3)
    eventually(future.done)
    lab.call("Lab.release", name)


def test_a_clients_default(lab_address: str, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    with rrpc.connect(lab_address, timeout=0.3) as client:
        with deadline(0.3):
            client.call("Lab.hold", name)
        client.call("Lab.release", name, timeout=10)
        assert client.call("Lab.hold", name, timeout=10) is True


def test_deadlines_of_all_sizes(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    with deadline(0.0):
        lab.call("Lab.hold", name, timeout=0)
    with deadline(0.0):
        lab.call("Lab.hold", name, timeout=1e-9)
    assert lab.call("Lab.add", 1, timeout=1e12) == 2
    for bad in (-1, float("nan")):
        with pytest.raises((rrpc.InvalidArgument, ValueError), match="timeout"):
            lab.call("Lab.add", 1, timeout=bad)
    lab.call("Lab.release", name)
    assert lab.call("Lab.add", 1) == 2


def test_many_deadlines_at_once(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    futures = [lab.start("Lab.hold", name, timeout=0.2 + i / 50) for i in range(6)]
    fine = lab.start("Lab.hold", name, timeout=30)
    for future in futures:
        assert isinstance(future.exception(timeout=patience(10)), rrpc.DeadlineExceeded)
    lab.call("Lab.release", name)
    assert fine.result() is True


def test_waiting_for_a_worker(serve: ServeFactory, transport: str) -> None:
    """Calls whose deadline passes while the one worker is busy never run."""
    served = serve(LAB, "Lab", listen=transport, module="lab_service", args=["--workers", "2"])
    with rrpc.connect(served.address) as client:
        held = [client.start("Lab.hold", "a") for _ in range(2)]
        with deadline(0.2):
            client.call("Lab.keep", np.ones(1), timeout=0.2)
        other = rrpc.connect(served.address)
        with deadline(0.2):
            other.call("Lab.nothing", timeout=0.2)
        other.close()
        assert not any(f.done() for f in held)
    served.kill()


def test_waiting_for_credits(served: Served) -> None:
    """A server that reads nothing: calls queue up on the client's side, and end there."""
    idle = transient(rrpc.stats())
    with rrpc.connect(served.address) as client:
        assert client.call("Lab.add", 1) == 2
        freeze(served)
        futures = [client.start("Lab.echo", "x" * 5000, timeout=0.4) for _ in range(volume(500, 150))]
        for future in futures:
            assert isinstance(future.exception(timeout=patience(10)), rrpc.DeadlineExceeded)
        served.resume()
        assert client.call("Lab.add", 1, timeout=20) == 2
    settles(rrpc.stats, idle)


def test_while_the_argument_is_fetched(served: Served) -> None:
    """The array stays registered until the server has said that it reads no more."""
    idle = transient(rrpc.stats())
    big = np.ones(LARGE, np.uint8)
    with rrpc.connect(served.address) as client:
        client.call("Lab.size", big)
        freeze(served)
        with deadline(0.3):
            client.call("Lab.size", big, timeout=0.3)
        assert rrpc.stats()["exposures_live"] == idle["exposures_live"] + 1
        served.resume()
        settles(rrpc.stats, idle)
        assert client.call("Lab.size", big, timeout=30) == big.size
    still_answers(served.address)


def test_while_the_result_is_fetched(served: Served) -> None:
    idle = transient(rrpc.stats())
    with rrpc.connect(served.address) as client:
        there = transient(client.call("Lab.counts"))
        for timeout in (0.001, 0.003, 0.01, 0.02, 0.05):
            with suppress(rrpc.DeadlineExceeded):
                assert client.call("Lab.make", LARGE, 1, pool=True, timeout=timeout)[-1] == 1
            assert client.call("Lab.add", 1, timeout=20) == 2
        settles(lambda: client.call("Lab.counts"), there)
    settles(rrpc.stats, idle)


def test_while_the_result_is_fetched_from_a_stopped_server(serve: ServeFactory) -> None:
    """Over tcp a read needs its owner."""
    served = serve(LAB, "Lab", listen="tcp", module="lab_service")
    with rrpc.connect(served.address) as client:
        future = client.start("Lab.make", 128 * MIB, timeout=0.5)
        freeze(served)
        with deadline(0.0):
            future.result()
        served.resume()
        assert client.call("Lab.add", 1, timeout=30) == 2


def test_cancel_at_any_moment(lab: rrpc.Client) -> None:
    """Cancelled after ever more progress: nothing leaks, nothing breaks."""
    idle = transient(rrpc.stats())
    there = transient(lab.call("Lab.counts"))
    big = np.ones(2 * MIB)

    def attempt(step: int) -> bool:
        future = lab.start("Lab.echo", big)
        with suppress(TimeoutError):
            future.result(timeout=step * STEP_SECONDS)
        return future.cancel()

    cancelled = [attempt(step) for step in range(volume(40, 20))]
    assert any(cancelled)
    assert lab.call("Lab.add", 1) == 2
    settles(lambda: lab.call("Lab.counts"), there)
    settles(rrpc.stats, idle)


def test_a_lease_ends(new_address: Callable[[str], str], transport: str) -> None:
    """A result that its reader never fetches comes back to the server."""
    import lab_service

    with rrpc.serve(lab_service.Lab(), listen=new_address(transport), lease_timeout=0.2) as server:
        before = rrpc.stats()["leases_expired"]
        with rrpc.connect(server.addresses[0]) as client:
            for _ in range(3):
                assert client.call("Lab.make", MIB, 1, timeout=20)[-1] == 1
            assert rrpc.stats()["leases_expired"] == before
