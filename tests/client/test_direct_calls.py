"""Plain calls of generated clients: no Python of rrpc's runs for them, and nothing that users see is different."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from direct import ADDRESS, FOLDER, Bench, bench_fixture, bench_rpc, client_fixture, python_run
from flow import generated
from processes import child_environment, eventually, patience

import rrpc
from rrpc._interface.compiled import PURE_PYTHON

__all__ = ["bench_fixture", "client_fixture"]
pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="all calls go through Python")


def test_no_python_runs_for_a_plain_call(bench: Bench) -> None:
    ran: set[str] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and counting.is_set() and frame.f_code.co_filename.startswith(FOLDER):
            ran.add(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    counting = threading.Event()
    threading.setprofile(profile)
    try:
        server = rrpc.Server(bench, listen=ADDRESS).start()
    finally:
        threading.setprofile(None)
    with server, bench_rpc.BenchClient(server.addresses[0], timeout=10.0) as client:
        values, queries = np.arange(100_000.0), np.zeros((5, 3), np.float32)

        def calls() -> None:
            for _ in range(10):
                client.add(1)
                client.add(a=1, b=3)
                client.add(1, timeout=5.0, metadata={"who": "me", "key": b"1"})
                client.move(bench_rpc.Point(1.0, 2.0), 3.0, back=True)
                client.double(values)
                client.rows(queries, 4)

        calls()
        counting.set()
        here = python_run(calls)
        counting.clear()
        assert (here, ran) == (set(), set())
        assert python_run(lambda: client.add(True))  # so it can see some


def test_arguments(client: Any) -> None:
    assert client.add(1) == 3
    assert client.add(1, 5) == client.add(b=5, a=1) == client.add(1, b=5) == 6
    assert client.add(np.int64(1), True) == 2  # converted by Python
    assert client.move(bench_rpc.Point(1.0, 2.0), 3) == bench_rpc.Point(4.0, 2.0)
    for arguments, named in [((), {}), ((1, 2, 3), {}), ((1,), {"a": 1}), ((1,), {"c": 1}), ((1,), {"B": 1})]:
        with pytest.raises(TypeError, match=r"add\(\)"):
            client.add(*arguments, **named)
    for wrong in ("1", 1.5, None):
        with pytest.raises(rrpc.InvalidArgument, match="argument 'a': expected int"):
            client.add(wrong)
    assert client.only(5) == 5
    with pytest.raises(TypeError, match=r"only\(\)"):
        client.only(5, out=None)
    with pytest.raises(TypeError, match=r"only\(\)"):
        client.only(a=5)
    with pytest.raises(TypeError, match=r"move\(\)"):
        client.move(bench_rpc.Point(1.0, 2.0), 3.0, True)


@pytest.mark.parametrize("timeout", [5, 5.0, None, np.float64(5)])
def test_timeouts_that_are_some(client: Any, timeout: Any) -> None:
    assert client.add(1, timeout=timeout) == 3


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), "1"])
def test_timeouts_that_are_none(client: Any, timeout: Any) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="timeout must be a number of seconds from 0 up"):
        client.add(1, timeout=timeout)


def test_deadline_is_kept(client: Any) -> None:
    client.add(1)
    with pytest.raises(rrpc.DeadlineExceeded):
        client.slow(30.0, timeout=0.05)
    with pytest.raises(rrpc.DeadlineExceeded):
        client.add(1, timeout=0.0)
    with client.with_options(timeout=0.05) as hasty, pytest.raises(rrpc.DeadlineExceeded):
        hasty.slow(30.0)
    assert client.add(1) == 3


def test_results(client: Any) -> None:
    half = client.half(5)
    assert (type(half), half) == (float, 2.0)
    with pytest.raises(rrpc.Internal, match="the result isn't as declared: expected int, got str"):
        client.wrong()
    assert client.add(1) == 3


def test_a_result_that_breaks_while_it_is_packed(client: Any) -> None:
    client.add(1)
    for _ in range(5):  # more than there are workers
        with pytest.raises(rrpc.RemoteError, match="x"):
            client.broken()
    assert client.add(1) == 3


def test_named_dimensions(client: Any) -> None:
    queries = np.zeros((5, 3), np.float32)
    assert client.rows(queries, 2).shape == (5, 2)
    assert client.rows(queries.astype(np.float32), np.int64(2)).shape == (5, 2)  # by way of Python
    with pytest.raises(rrpc.InvalidArgument, match="dimension 1 is 2, not 3"):
        client.rows(np.zeros((5, 2), np.float32), 2)
    for k in (2, np.int64(2)):
        with pytest.raises(rrpc.Internal, match="dimension n is 6, in argument 'queries' it is 5"):
            client.rows(queries, k, wrong=True)


def test_errors(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(rrpc.RemoteError, match="nowhere") as raised:
        client.fail("")
    assert raised.value.type_name == "LookupError"
    record = next(record for record in caplog.records if "raised" in record.message)
    assert record.exc_info
    assert record.exc_info[2] is not None
    assert record.exc_info[2].tb_frame.f_code.co_name == "fail"
    with pytest.raises(rrpc.NotFound, match="it is not here"):
        client.fail("not found")
    with pytest.raises(rrpc.Internal, match="the handler raised SystemExit"):
        client.fail("exit")
    assert client.add(1) == 3


def test_tracebacks_begin_with_the_handler(bench: Bench) -> None:
    with rrpc.Server(bench, listen=ADDRESS, tracebacks=True), bench_rpc.BenchClient(ADDRESS) as client:
        client.add(1)
        with pytest.raises(rrpc.RemoteError) as raised:
            client.fail("")
    shown = raised.value.remote_traceback or ""
    assert "in fail" in shown.splitlines()[1]
    assert FOLDER not in shown


def test_context(bench: Bench, client: Any) -> None:
    client.add(1)
    seen = client.look(timeout=10.0)
    assert seen == "Bench.look True {} False"
    assert client.look() == "Bench.look False {} False"
    first, second = bench.kept
    assert first[0] is not second[0]
    assert all(context.ended for context, _ in bench.kept)
    for _, copied in bench.kept:
        with pytest.raises(RuntimeError, match="is for handlers"):
            copied.run(rrpc.context)
    for metadata in ({"who": "me"}, rrpc.Metadata({"who": "me"})):
        assert client.look(timeout=10.0, metadata=metadata) == "Bench.look True {'who': 'me'} False"
    with client.with_options(metadata={"from": "here"}) as other:
        assert "'from': 'here', 'who': 'me'" in other.look(metadata={"who": "me"})
    for wrong in ({"Who": "me"}, {"who": 1}, 5):
        with pytest.raises(rrpc.InvalidArgument):
            client.look(metadata=wrong)


def test_a_copied_context_never_becomes_another_calls(bench: Bench, client: Any) -> None:
    for _ in range(3):
        client.leave_a_thread()
        client.tell("with a context", metadata={"user": "bob"})
    bench.go_on.set()
    for asked in bench.kept:
        asked.join()
    assert len(bench.seen) == 3
    assert all("is for handlers" in said for said in bench.seen)


def test_contexts_of_calls_are_not_mixed_up(bench: Bench, client: Any) -> None:
    """Calls by turns with a context that is asked for and without, in two workers."""
    bench.kept = bench.seen

    def many() -> None:
        for n in range(300):
            client.add(n)
            assert client.look(timeout=10.0).endswith("True {} False")

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bench.seen) == 1200
    assert len({id(context) for context, _ in bench.seen}) == 1200


def test_metadata_of_the_reply(client: Any) -> None:
    client.tell("nothing")
    future = client.tell.start("a secret")
    assert future.result() == 1
    assert dict(future.metadata()) == {"told": "a secret"}


def test_calls_of_a_handler_inherit_its_deadline(bench: Bench, client: Any) -> None:
    with pytest.raises(rrpc.DeadlineExceeded):
        client.call_again(timeout=2.0)  # within which the handler connects, on a busy machine too
    assert bench.inherited.wait(patience(5))


def test_a_closed_client(client: Any) -> None:
    client.add(1)
    client.close()
    with pytest.raises(rrpc.Unavailable, match="closed"):
        client.add(1)


def test_a_server_that_comes_back(bench: Bench) -> None:
    with bench_rpc.BenchClient(ADDRESS, lazy=True, wait_for_ready=True, timeout=30.0) as client:
        for _ in range(3):
            with rrpc.Server(bench, listen=ADDRESS):
                assert client.add(1) == 3
                assert client.add(2) == 4
            # A call that is sent while the news of the server's end is on its way might have run.
            eventually(lambda: client.info()["channel"]["state"] != "ready")


def test_in_a_coroutine_it_is_refused(client: Any) -> None:
    client.add(1)

    async def blocking() -> None:
        client.add(1)

    with pytest.raises(RuntimeError, match="blocks, and was called in a coroutine"):
        asyncio.run(blocking())


def test_what_the_method_looks_like(client: Any) -> None:
    method: Any = client.add
    assert "DirectMethod" in str(type(method))
    assert method is client.add
    assert repr(method) == "<remote method Bench.add>"
    assert method.__name__ == "add"
    assert list(inspect.signature(method).parameters)[:2] == ["a", "b"]
    assert callable(method)
    assert (weakref.ref(method)() is method) is True
    assert method.start(1).result() == 3
    method.note = "kept"
    assert method.note == "kept"


def test_nothing_is_kept(client: Any) -> None:
    """Neither arguments nor results of calls, at either end."""

    class Array(np.ndarray[Any, Any]):
        pass

    values = np.arange(100_000.0).view(Array)
    client.double(np.arange(5.0))
    before = sys.getrefcount(bench_rpc.Point)
    for _ in range(200):
        client.move(bench_rpc.Point(1.0, 2.0), 3.0)
    assert sys.getrefcount(bench_rpc.Point) - before < 10
    gone = weakref.ref(client.double(values))
    assert gone() is None


def test_interrupted_by_a_signal(bench: Bench) -> None:
    import signal

    with rrpc.Server(bench, listen=ADDRESS), bench_rpc.BenchClient(ADDRESS) as client:
        client.add(1)
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.slow(60.0)
        timer.join()
        assert client.add(1) == 3


def test_a_cycle_by_way_of_a_service_is_collected() -> None:
    """A service has a client of its own server, over a channel that serves it."""
    bench = Bench()
    server = rrpc.Server(bench, listen=ADDRESS).start()
    channel = rrpc.Channel(ADDRESS, serve=server)
    client = bench_rpc.BenchClient(channel)
    client.add(1)
    client.add.start(1).result()
    bench.kept.append(client)
    gone = weakref.ref(bench)
    channel.close()
    server.stop()
    del bench, server, channel, client
    gc.collect()
    assert gone() is None


def test_daemon_threads_amid_results_at_exit(bench: Bench) -> None:
    """They lose the GIL for good in a constructor that the core has called."""
    code = f"""
import dataclasses, sys, threading
sys.path.insert(0, {os.path.dirname(inspect.getfile(generated))!r})
from direct import bench_rpc

amid = threading.Barrier(3)

@dataclasses.dataclass
class Point:
    x: float
    y: float
    def __post_init__(self):
        amid.wait(30)
        while True:
            pass

bench_rpc.Point = Point  # what results become here
client = bench_rpc.BenchClient({ADDRESS!r}, timeout=60.0)
point = Point.__new__(Point)
point.x = point.y = 1.0
for _ in range(2):
    threading.Thread(target=client.move, args=(point, 1.0), daemon=True).start()
amid.wait(30)
print("leaving", flush=True)
"""
    with rrpc.Server(bench, listen=ADDRESS):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (run.returncode, run.stdout, run.stderr) == (0, "leaving\n", "")


class Doubling(rrpc.UnaryMethod[int]):
    rpc_name = "Bench.add"

    def __call__(self, a: int, b: int = 2, *, timeout: float | None = None) -> int:
        return self._call((a, 2 * b), timeout)


class Starting(rrpc.UnaryMethod[int]):
    rpc_name = "Bench.add"

    def __call__(self, a: int, b: int = 2, *, timeout: float | None = None) -> int:
        """Adds."""
        return self._call((a, b), timeout)

    def start(self, a: int, b: int = 2) -> rrpc.Future[int]:
        return self._start((a, 3 * b), None)


class Own(bench_rpc.BenchClient):  # type: ignore[misc]
    doubling = rrpc.stub(Doubling)
    starting = rrpc.stub(Starting)

    def add(self, a: int, b: int = 2) -> Any:
        return -super().add(a, b)


def test_what_users_write_themselves_runs(bench: Bench) -> None:
    """A method that does more than hand its arguments over, and one of a subclass that calls the base's."""
    with rrpc.Server(bench, listen=ADDRESS), Own(ADDRESS) as client:
        for _ in range(3):
            assert client.doubling(1) == 5
            assert client.doubling(1, 3) == 7
            assert client.starting(1) == 3
            assert client.starting.start(1).result() == 7
            assert client.add(1) == -3
