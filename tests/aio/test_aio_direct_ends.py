"""Plain calls of asyncio clients: loops and connections that end, what a call looks like, and what is kept."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import typing
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
from aio import Run
from direct import ADDRESS, Bench, bench_fixture, bench_rpc
from direct_aio import comes, ready_client, server_fixture, until_true
from processes import patience

import rrpc
from rrpc._interface.compiled import PURE_PYTHON

__all__ = ["bench_fixture", "server_fixture"]
pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="all calls go through Python")


# Loops and connections that end


def test_a_client_closed_amid_calls(bench: Bench, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            await comes(bench.started)
            calls = [asyncio.ensure_future(client.slow(60.0)) for _ in range(3)]
            for _ in calls:
                await comes(bench.started)
            client.close()
            for call in calls:
                with pytest.raises(rrpc.Unavailable):
                    await call
            with pytest.raises(rrpc.Unavailable, match="closed"):
                await client.add(1)

    in_loop(main())


def test_a_server_that_comes_back(server: rrpc.Server, bench: Bench, in_loop: Run[Any]) -> None:
    async def main() -> None:
        options = {"wait_for_ready": True, "timeout": patience(30)}
        async with bench_rpc.AsyncBenchClient(ADDRESS, **options) as client:
            assert await client.add(1) == 3
            await asyncio.to_thread(server.stop)
            for _ in range(3):
                await lost(client)
                call = asyncio.ensure_future(client.add(1))
                with await asyncio.to_thread(rrpc.Server(bench, listen=ADDRESS).start):
                    assert await call == 3
                    assert await client.add(2) == 4

    async def lost(client: Any) -> None:
        def is_lost() -> bool:
            connection = client._channel.ready
            return connection is None or not connection.usable()

        await until_true(is_lost)

    in_loop(main())


def test_a_loop_that_ends_amid_calls(bench: Bench) -> None:
    client = bench_rpc.AsyncBenchClient(ADDRESS)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(client.slow(0.0))
        loop.run_until_complete(comes(bench.started))
        task = loop.create_task(client.slow(60.0))
        loop.run_until_complete(comes(bench.started))
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task
        gc.collect()
    assert asyncio.run(client.add(1)) == 3
    client.close()


def test_one_client_in_many_loops(bench: Bench) -> None:
    client = bench_rpc.AsyncBenchClient(ADDRESS)
    found: list[Any] = []

    async def calls() -> None:
        for n in range(50):
            found.append(await client.add(n))
            found.extend(await asyncio.gather(*(client.add(n) for _ in range(10))))

    threads = [threading.Thread(target=asyncio.run, args=(calls(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert len(found) == 4 * 50 * 11


def test_without_a_loop_it_is_refused(bench: Bench) -> None:
    client = bench_rpc.AsyncBenchClient(ADDRESS)
    asyncio.run(client.add(1))
    with pytest.raises(RuntimeError, match=r"rrpc\.aio is for coroutines"):
        client.add(1).send(None)
    client.close()


# What it looks like


def test_it_is_a_coroutine(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            call: Any = client.add(1)
            assert "AwaitedCall" in str(type(call))
            assert inspect.iscoroutine(call)
            assert asyncio.iscoroutine(call)
            assert inspect.isawaitable(call)
            assert not asyncio.isfuture(typing.cast(Any, call))
            assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED  # it has no frame
            assert call.__name__ == "__call__"
            assert call.__qualname__ == "AsyncBenchClient.add"
            assert "AsyncBenchClient.add" in repr(call)
            assert "AsyncBenchClient.add" in repr(task := asyncio.create_task(call))
            assert await task == 3
            with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
                await call

    in_loop(main())


def test_it_is_awaited_once_at_a_time(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            call = client.slow(60.0)
            task = asyncio.ensure_future(call)
            await client.add(1)
            with pytest.raises(RuntimeError, match="being awaited already"):
                await call
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    in_loop(main())


def test_one_that_nobody_awaits_is_told_of(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            with pytest.warns(RuntimeWarning, match=r"'AsyncBenchClient\.add' was never awaited"):
                client.add(1)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                client.add(1).close()
                with pytest.raises(ZeroDivisionError):
                    client.add(1).throw(ZeroDivisionError())

    in_loop(main())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5,), "exceptions must be classes or instances deriving from BaseException, not int"),
        ((int,), "exceptions must be classes or instances"),
        ((ValueError(), "value"), "may not have a separate value"),
        ((ValueError, "value", 5), "must be a traceback"),
    ],
)
def test_only_exceptions_are_thrown_into_it(in_loop: Run[Any], arguments: Any, message: str) -> None:
    async def main() -> None:
        async with ready_client() as client:
            call = client.add(1)
            with pytest.raises(TypeError, match=message):
                call.throw(*arguments)
            assert await call == 3

    in_loop(main())


def test_exceptions_are_thrown_into_it_as_into_any_coroutine(in_loop: Run[Any]) -> None:
    def thrown(coroutine: Any, *arguments: Any) -> BaseException:
        with pytest.raises(BaseException) as raised:
            coroutine.throw(*arguments)
        return raised.value

    async def nothing() -> None:
        pass

    async def main() -> None:
        async with ready_client() as client:
            for arguments in [
                (ValueError,),
                (ValueError, "why"),
                (ValueError, ValueError(1)),
                (LookupError, (2, "no")),
            ]:
                error, usual = thrown(client.add(1), *arguments), thrown(nothing(), *arguments)
                assert (type(error), error.args) == (type(usual), usual.args)
            error = ValueError("own")
            assert thrown(client.add(1), error) is error

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        in_loop(main())


def test_it_can_be_referenced_weakly(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            call: Any = client.add(1)
            gone = weakref.ref(call)
            assert repr(gone()) == repr(call)
            assert await call == 3
            del call
            await until_true(lambda: gone() is None)

    in_loop(main())


# What is kept


def test_calls_amid_which_their_loop_was_closed_are_collected(bench: Bench) -> None:
    client = bench_rpc.AsyncBenchClient(ADDRESS)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.slow(0.0))
    tasks = [loop.create_task(client.slow(60.0)) for _ in range(3)]
    for _ in range(4):
        loop.run_until_complete(comes(bench.started))
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    gone = [weakref.ref(task) for task in tasks]
    del tasks, task

    async def are_gone() -> bool:
        await client.add(1)  # its connection to the closed loop ends
        client.close()
        await until_true(lambda: gc.collect() >= 0 and all(each() is None for each in gone))
        return True

    assert asyncio.run(are_gone())


def test_nothing_is_kept(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            await client.double(np.arange(5.0))
            values = np.arange(100_000.0)
            before = sys.getrefcount(bench_rpc.Point)
            for _ in range(100):
                await client.move(bench_rpc.Point(1.0, 2.0), 3.0)
            assert sys.getrefcount(bench_rpc.Point) - before < 10
            gone = [weakref.ref(await client.double(values)) for _ in range(3)]
            assert all(each() is None for each in gone)
            with pytest.raises(rrpc.RemoteError):
                await client.fail("")
            refused = weakref.ref(kept := values.copy())
            with pytest.raises(rrpc.InvalidArgument):
                await client.rows(kept, 5)
            del kept
            gc.collect()
            assert refused() is None

    in_loop(main())


@pytest.mark.parametrize("stage", ["new", "waiting"])
def test_cycles_are_collected(bench: Bench, in_loop: Run[Any], stage: str) -> None:
    class Holder:
        call: Any = None

    async def main() -> None:
        async with ready_client() as client:
            await comes(bench.started)
            holder = Holder()
            gone = weakref.ref(holder)
            if stage == "new":
                holder.call = client.double(holder)
            else:
                holder.call = client.slow(60.0)
                asyncio.create_task(held(holder), name="held")  # noqa: RUF006  (it is kept by what it waits for)
                await comes(bench.started)
                tasks = [task for task in asyncio.all_tasks() if task.get_name() == "held"]
                tasks.pop().cancel()
                await comes(bench.given_up)
            del holder
            await until_true(lambda: gc.collect() >= 0 and gone() is None)

    async def held(holder: Holder) -> None:
        await holder.call

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        in_loop(main())
