"""Volume and idleness: what a server and a client hold after many connections and calls, and while nothing happens."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from lab import LAB, TRANSIENT, still_answers
from processes import Served, ServeFactory, Usage, assert_no_growth, cpu_seconds, eventually, volume

import rrpc

RSS_SLACK_BYTES = 16 << 20  # what closed connections of a moment leave in the allocator
SLABS = 8
ROUNDS = 3
CONNECTION_BYTES_MAX = 600 << 10
IDLE_SECONDS = 2.0
IDLE_CPU_SECONDS_MAX = 0.06  # 3 % of a core


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(LAB, "Lab", listen=transport, module="lab_service", args=["--workers", "2"])


def holdings(address: str) -> list[int]:
    """Of the server, as a fresh client sees them: transient counters and open connections."""
    with rrpc.connect(address, timeout=20.0) as client:
        eventually(lambda: client.call("Lab.counts")["connections_open"] == 1)
        counts = client.call("Lab.counts")
        return [counts[name] for name in TRANSIENT]


def no_growth(served: Served, work: Callable[[], None], warm_up: Callable[[], None]) -> None:
    """Runs the work and compares what both processes hold with what they held after the warm-up.

    A leak grows with every round. What the allocator keeps of a busy moment, when connections were closed more slowly
    than made, doesn't: so too much growth counts only if it comes again.
    """
    warm_up()
    for rounds_left in reversed(range(ROUNDS)):
        before = {pid: Usage.of(pid) for pid in (served.pid, os.getpid())}
        held = holdings(served.address)
        start = time.monotonic()
        work()
        print(f"{time.monotonic() - start:.1f} s; {before} -> {[Usage.of(pid) for pid in before]}")
        assert holdings(served.address) == held
        grown = [pid for pid, then in before.items() if grew(pid, then, last=not rounds_left)]
        if not grown:
            return


def grew(pid: int, then: Usage, last: bool) -> bool:
    """Whether a process has more memory than before; of other things, and in the last round, it may not have."""
    # A few descriptors more may be pool slabs of sizes that weren't needed before; what is closed goes in its own time.
    most = then.fd_count + SLABS
    eventually(lambda: Usage.of(pid).fd_count <= most, what=f"closed files of {pid}")
    # The helper thread, which unmaps what the client had shared.
    eventually(lambda: Usage.of(pid).thread_count <= then.thread_count, what=f"idle threads of {pid}")
    now = Usage.of(pid)
    more = now.rss_bytes > then.rss_bytes + RSS_SLACK_BYTES
    limit = replace(then, fd_count=most, rss_bytes=now.rss_bytes if more and not last else then.rss_bytes)
    assert_no_growth(limit, now, RSS_SLACK_BYTES)
    return more


def connect_and_close(address: str, count: int) -> None:
    for i in range(count):
        client = rrpc.connect(address, timeout=30.0)
        if i % 10 == 0:
            assert client.call("Lab.add", i) == i + 1
        client.close()


def pipelined(address: str, count: int) -> None:
    with rrpc.connect(address, timeout=60.0) as client:
        window: list[rrpc.Future[int]] = []
        for i in range(count):
            window.append(client.start("Lab.add", i))
            if len(window) == 500:
                assert [f.result() - i for f in window[-1:]] == [1]
                for future in window:
                    future.result()
                window.clear()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ten_thousand_connects(served: Served) -> None:
    no_growth(
        served,
        lambda: connect_and_close(served.address, 10_000),
        lambda: connect_and_close(served.address, 200),
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_half_a_million_calls(served: Served) -> None:
    no_growth(served, lambda: pipelined(served.address, 250_000), lambda: pipelined(served.address, 20_000))


@pytest.mark.slow
def test_many_arrays(served: Served) -> None:
    def exchange(count: int) -> None:
        with rrpc.connect(served.address, timeout=30.0) as client:
            for i in range(count):
                array = np.full(20_000 + i % 7 * 5000, i, np.int32)
                assert client.call("Lab.echo", array)[-1] == i
                client.call("Lab.size", rrpc.empty(50_000, np.uint8))

    no_growth(served, lambda: exchange(1000), lambda: exchange(100))


def test_many_failures(served: Served) -> None:
    """Errors, cancelled calls and passed deadlines leave nothing behind either."""

    def fail(count: int) -> None:
        with rrpc.connect(served.address, timeout=30.0) as client:
            for _ in range(count):
                futures = [client.start("Lab.fail", "rpc", "x"), client.start("Lab.echo", np.ones(5000))]
                futures.append(client.start("Lab.total", np.ones(9000), timeout=1e-5))
                futures[1].cancel()
                for future in futures:
                    assert isinstance(future.exception(timeout=20), (rrpc.RpcError, type(None)))

    no_growth(served, lambda: fail(volume(500, 30)), lambda: fail(volume(50, 15)))


def idle_connections(served: Served, count: int) -> None:
    warm = [rrpc.connect(served.address, timeout=30.0) for _ in range(20)]
    assert [client.call("Lab.add", 1) for client in warm] == [2] * 20
    before = served.usage()
    clients = [rrpc.connect(served.address, timeout=30.0) for _ in range(count)]
    assert [client.call("Lab.add", 1) for client in clients] == [2] * count
    each = (served.usage().rss_bytes - before.rss_bytes) / count
    print(f"{each / 1024:.0f} KiB for each of {count} connections")
    assert each <= CONNECTION_BYTES_MAX
    assert_idle(served.pid, os.getpid())
    still_answers(served.address)
    for client in [*warm, *clients]:
        client.close()


def assert_idle(*pids: int) -> None:
    """Nearly no processor time in any of them, from a second after the last call on."""

    def spent() -> float:
        start = [cpu_seconds(pid) for pid in pids]
        time.sleep(IDLE_SECONDS)  # the interval measured
        return max(cpu_seconds(pid) - then for pid, then in zip(pids, start, strict=True))

    eventually(lambda: spent() <= IDLE_CPU_SECONDS_MAX, 10.0, f"processes {pids} idle")


@pytest.mark.slow
def test_a_thousand_idle_connections(serve: ServeFactory) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 32_768), hard))
    try:
        idle_connections(serve(LAB, "Lab", listen="shm", module="lab_service"), 1000)
        idle_connections(serve(LAB, "Lab", listen="tcp", module="lab_service"), 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("poll", ["adaptive", "event"])
def test_an_idle_pair_burns_nothing(served: Served, poll: str) -> None:
    with rrpc.connect(served.address, poll=poll) as client:
        assert [client.call("Lab.add", i) for i in range(200)] == list(range(1, 201))
        assert client.call("Lab.total", np.ones(50_000)) == 50_000
        assert_idle(served.pid, os.getpid())


@pytest.mark.slow
def test_waiting_burns_nothing(served: Served) -> None:
    """A caller in a long call sleeps, and so does the server whose handler waits."""
    with rrpc.connect(served.address) as client:
        thread = threading.Thread(target=lambda: client.call("Lab.hold", "idle"))
        thread.start()
        eventually(lambda: client.call("Lab.holding", "idle"))
        assert_idle(served.pid, os.getpid())
        client.call("Lab.release", "idle")
        thread.join(20)
