"""Futures of plain calls, which the core makes: they are as others, whatever is asked for first."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import numpy as np
import pytest
from direct import ADDRESS, Bench, bench_fixture, bench_rpc, client_fixture

import rrpc
from rrpc._interface.compiled import PURE_PYTHON

__all__ = ["bench_fixture", "client_fixture"]
pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="all calls go through Python")


def test_futures(client: Any) -> None:
    """They are as others, whatever is asked for first."""
    client.add(1)
    assert client.add.start(1, b=5).result() == 6
    assert client.add.start(1, timeout=30.0).result(timeout=30) == 3
    future = client.add.start(2)
    assert concurrent.futures.wait([future], 30).done == {future}
    assert (future.result(), future.done(), future.cancelled(), future.exception()) == (4, True, False, None)
    assert dict(future.metadata()) == {}
    assert [each.result() for each in concurrent.futures.as_completed([client.add.start(3)])] == [5]
    told: list[Any] = []
    future = client.add.start(4)
    assert future.result() == 6
    future.add_done_callback(told.append)
    assert told == [future]
    slow = client.slow.start(60.0)
    with pytest.raises(TimeoutError):
        slow.result(0.01)
    assert slow.cancel()
    with pytest.raises(rrpc.Cancelled):
        slow.result()
    failed = client.fail.start("not found")
    for _ in range(2):
        with pytest.raises(rrpc.NotFound):
            failed.result()
    assert isinstance(failed.exception(), rrpc.NotFound)
    with pytest.raises(rrpc.Internal, match="dimension n is 6"):
        client.rows.start(np.zeros((5, 3), np.float32), 2, wrong=True).result()
    with pytest.raises(rrpc.InvalidArgument, match="argument 'a': expected int"):
        client.add.start("1")
    with pytest.raises(TypeError, match=r"add\.start\(\)"):
        client.add.start()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        future.nothing  # noqa: B018


def test_many_threads_wait_for_one_future(client: Any) -> None:
    client.add(1)
    for n in range(100):
        future = client.move.start(bench_rpc.Point(1.0, 2.0), float(n))
        results: list[Any] = []
        work = [future.result, future.exception, future.done, lambda: results.append(future.result())]  # noqa: B023
        threads = [threading.Thread(target=each) for each in (*work, *work)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [bench_rpc.Point(1.0 + n, 2.0)] * 2
        assert results[0] is results[1]


def test_a_future_that_is_asked_amid_its_own_result(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a constructor here, as a signal's handler might."""
    client.move(bench_rpc.Point(1.0, 2.0), 1.0)
    future = client.move.start(bench_rpc.Point(1.0, 2.0), 1.0)
    asked: list[Any] = []
    made = bench_rpc.Point.__init__

    def asking(self: Any, x: float, y: float) -> None:
        made(self, x, y)
        if not asked:
            asked.append(None)
            asked.extend([future.done(), future.cancel(), future.result()])

    monkeypatch.setattr(bench_rpc.Point, "__init__", asking)
    assert future.result() == bench_rpc.Point(2.0, 2.0)
    assert asked == [None, True, False, bench_rpc.Point(2.0, 2.0)]
    assert future.result() is asked[3]


def test_a_future_whose_server_goes(bench: Bench) -> None:
    with rrpc.Server(bench, listen=ADDRESS), bench_rpc.BenchClient(ADDRESS) as client:
        client.add(1)
        future = client.slow.start(60.0)
        client.add(1)
        client.close()
        with pytest.raises(rrpc.Unavailable):
            future.result()


def test_a_replaced_start(client: Any) -> None:
    client.add(1)
    client.add.start = lambda *args: args
    assert client.add.start(5) == (5,)
