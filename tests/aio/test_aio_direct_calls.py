"""Plain calls of asyncio clients: no Python of rrpc's runs for them, and asyncio's rules hold all the same."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from aio import Run
from direct import ADDRESS, Bench, bench_fixture, bench_rpc, python_runs
from direct_aio import comes, ready_client, server_fixture
from processes import patience

import rrpc
from rrpc._interface.compiled import PURE_PYTHON

__all__ = ["bench_fixture", "server_fixture"]
pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="all calls go through Python")


# What runs


def test_no_python_runs_for_a_plain_call(in_loop: Run[Any]) -> None:
    values, queries = np.arange(100_000.0), np.zeros((5, 3), np.float32)

    async def calls(client: Any) -> None:
        for _ in range(10):
            await client.add(1)
            await client.add(a=1, b=3)
            await client.add(1, timeout=5.0, metadata={"who": "me", "key": b"1"})
            await client.move(bench_rpc.Point(1.0, 2.0), 3.0, back=True)
            await client.double(values)
            await client.rows(queries, 4)
            await asyncio.gather(*(client.add(n) for n in range(20)))

    async def main() -> None:
        async with ready_client(timeout=60.0) as client:
            await calls(client)
            with python_runs() as ran:
                await calls(client)
            assert ran == set()
            with python_runs() as ran:
                await client.add(True)  # converted by Python
            assert ran

    in_loop(main())


def test_results_are_those_of_other_ways(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            assert [await client.add(1), await client.add(1, 5), await client.add(b=5, a=1)] == [3, 6, 6]
            assert await client.add(np.int64(1), True) == 2
            assert await client.move(bench_rpc.Point(1.0, 2.0), 3.0) == bench_rpc.Point(4.0, 2.0)
            assert await asyncio.gather(*(client.add(n) for n in range(300))) == list(range(2, 302))
            memory = np.zeros(5)
            assert await client.double(np.arange(5.0), out=memory) is memory
            future = client.add.start(1)
            assert isinstance(future, asyncio.Future)
            assert await future == 3

    in_loop(main())


def test_what_is_wrong_with_arguments_is_said_when_it_was(in_loop: Run[Any]) -> None:
    """Names and numbers at the call, as with every coroutine function; types where it is awaited."""

    async def main() -> None:
        async with ready_client() as client:
            for arguments, named in [((), {}), ((1, 2, 3), {}), ((1,), {"a": 1}), ((1,), {"c": 1})]:
                with pytest.raises(TypeError, match=r"add\(\)"):
                    client.add(*arguments, **named)
            call = client.add("1")
            with pytest.raises(rrpc.InvalidArgument, match="argument 'a': expected int"):
                await call
            with pytest.raises(rrpc.InvalidArgument, match="timeout must be"):
                await client.add(1, timeout=-1.0)

    in_loop(main())


def test_errors(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            for _ in range(3):
                with pytest.raises(rrpc.NotFound, match="it is not here"):
                    await client.fail("not found")
                with pytest.raises(rrpc.RemoteError, match="nowhere"):
                    await client.fail("")
                with pytest.raises(rrpc.Internal, match="dimension n is 6"):
                    await client.rows(np.zeros((5, 3), np.float32), 2, wrong=True)
                with pytest.raises(rrpc.DeadlineExceeded):
                    await client.slow(60.0, timeout=0.05)
            async with client.with_options(timeout=0.05) as hasty:
                for _ in range(2):
                    with pytest.raises(rrpc.DeadlineExceeded):
                        await hasty.slow(60.0)

    in_loop(main())


def test_what_users_write_themselves_runs(in_loop: Run[Any]) -> None:
    class Doubling(rrpc.aio.UnaryMethod[int]):
        rpc_name = "Bench.add"

        async def __call__(self, a: int, b: int = 2, *, timeout: float | None = None) -> int:
            return await self._start((a, 2 * b), timeout)

    class Own(bench_rpc.AsyncBenchClient):  # type: ignore[misc]
        doubling = rrpc.stub(Doubling)

        async def add(self, a: int, b: int = 2) -> Any:
            return -await super().add(a, b)

    async def main() -> None:
        async with Own(ADDRESS) as client:
            for _ in range(3):
                assert await client.doubling(1) == 5
                assert await client.add(1) == -3

    in_loop(main())


# Cancelling


@pytest.mark.parametrize("how", ["cancel", "wait_for", "timeout", "close"])
def test_a_call_given_up_is_cancelled_at_the_server(bench: Bench, in_loop: Run[Any], how: str) -> None:
    async def main() -> None:
        async with ready_client() as client:
            await comes(bench.started)
            if how == "close":
                await close_amid(client)
            elif how == "cancel":
                task = asyncio.ensure_future(client.slow(60.0))
                await comes(bench.started)
                task.cancel("enough")
                with pytest.raises(asyncio.CancelledError) as raised:
                    await task
                assert raised.value.args == ("enough",)
            elif how == "wait_for":
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.slow(60.0), 0.05)
            elif hasattr(asyncio, "timeout"):  # from Python 3.11 on
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await client.slow(60.0)
            else:
                pytest.skip("there is no asyncio.timeout")
            await comes(bench.given_up)
            assert await client.add(1) == 3

    async def close_amid(client: Any) -> None:
        call = client.slow(60.0)
        assert call.send(None) is call
        await comes(bench.started)
        call.close()

    in_loop(main())


def test_one_cancelled_before_it_began_never_begins(bench: Bench, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            await comes(bench.started)
            task = asyncio.ensure_future(client.slow(60.0))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.add(1) == 3
            assert not bench.started.acquire(blocking=False)

    in_loop(main())


def test_cancelled_once_the_reply_is_here(in_loop: Run[Any]) -> None:
    """The task has been woken, and is cancelled before it goes on."""

    async def main() -> None:
        async with ready_client() as client:
            for _ in range(50):
                first, second = (asyncio.ensure_future(client.add(n)) for n in range(2))
                first.add_done_callback(lambda _, second=second: second.cancel())
                await asyncio.wait([first, second])
                assert first.result() == 2
                assert second.cancelled() or second.result() == 3

    in_loop(main())


def test_the_caller_may_catch_it_and_call_again(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:

            async def patient() -> Any:
                try:
                    await client.slow(60.0)
                except asyncio.CancelledError:
                    return await client.add(1)

            task = asyncio.ensure_future(patient())
            await client.add(1)
            task.cancel()
            assert await task == 3

    in_loop(main())


# Whose turn it is


def test_others_have_their_turn_beside_one_who_calls_in_a_row(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            done = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, done.set)
            reader, writer = await asyncio.open_connection(sock=await connected_to_itself())

            async def others() -> None:
                for _ in range(20):
                    writer.write(b"x")
                    await reader.readexactly(1)
                await done.wait()

            other = asyncio.ensure_future(others())
            while not other.done():
                await client.add(1)
            writer.close()

    async def connected_to_itself() -> Any:
        import socket

        ours, theirs = socket.socketpair()

        def echo() -> None:
            with theirs:
                while data := theirs.recv(100):
                    theirs.sendall(data)

        threading.Thread(target=echo).start()
        return ours

    in_loop(main())


def test_many_callers_and_what_they_wait_for_besides(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with ready_client() as client:
            queue: asyncio.Queue[int] = asyncio.Queue(1)

            async def puts(count: int) -> None:
                for n in range(count):
                    await queue.put(await client.add(n, 0))

            async def takes(count: int) -> int:
                total = 0
                for _ in range(count):
                    total += await client.add(await queue.get(), 1)
                return total

            found = await asyncio.gather(puts(200), puts(200), takes(200), takes(200), puts(1), takes(1))
            assert found[2] + found[3] + found[5] == 2 * sum(range(1, 201)) + 1

    in_loop(main())


def test_a_context_is_the_tasks_own(in_loop: Run[Any]) -> None:
    import contextvars

    name: contextvars.ContextVar[int] = contextvars.ContextVar("name", default=-1)

    async def main() -> None:
        async with ready_client() as client:

            async def named(n: int) -> None:
                name.set(n)
                for _ in range(20):
                    await client.add(n)
                    assert name.get() == n
                    assert asyncio.current_task() is tasks[n]

            tasks = [asyncio.ensure_future(named(n)) for n in range(20)]
            await asyncio.gather(*tasks)
            assert name.get() == -1

    in_loop(main())


def test_what_ends_the_loop_comes_out_of_it(bench: Bench) -> None:
    """A task that a reply has woken raises KeyboardInterrupt; the others' replies aren't lost with it."""

    async def interrupted(client: Any) -> None:
        await client.add(1)
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    client = bench_rpc.AsyncBenchClient(ADDRESS)
    try:
        loop.run_until_complete(client.add(1))
        others = [loop.create_task(client.add(n)) for n in range(20)]
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(interrupted(client))
        assert loop.run_until_complete(asyncio.wait_for(asyncio.gather(*others), patience(20)))
        client.close()
    finally:
        loop.close()


@pytest.mark.parametrize("kind", ["debug", "python", "eager"])
def test_other_tasks_and_modes(kind: str) -> None:
    async def main() -> None:
        tasks: Any = asyncio.tasks
        loop: Any = asyncio.get_running_loop()
        if kind == "python":
            loop.set_task_factory(lambda loop, coro, **how: tasks._PyTask(coro, loop=loop, **how))
        elif kind == "eager":
            loop.set_task_factory(getattr(asyncio, "eager_task_factory", None))  # from Python 3.12 on
        async with ready_client() as client:
            assert await asyncio.gather(*(client.add(n) for n in range(50))) == list(range(2, 52))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.slow(60.0), 0.05)
            for n in range(50):
                assert await client.add(n) == n + 2

    asyncio.run(main(), debug=kind == "debug")
