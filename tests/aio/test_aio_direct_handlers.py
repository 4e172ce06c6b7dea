"""Plain calls of async handlers: the core runs them in a runner's task, and nothing that users see is different."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

import numpy as np
import pytest
from aio import Run
from direct import FOLDER, python_runs
from direct_aio import until_true
from flow import generated
from numpy.typing import NDArray
from processes import patience

import rrpc
from rrpc._interface.compiled import PURE_PYTHON

pytestmark = pytest.mark.skipif(PURE_PYTHON, reason="all calls go through Python")
LEFT: contextvars.ContextVar[str] = contextvars.ContextVar("left", default="")
VALUES: contextvars.ContextVar[Any] = contextvars.ContextVar("values")


def spin_for(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@rrpc.service
class Lab:
    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.gate = asyncio.Event()
        self.waiting = 0
        self.round = 0

    @rrpc.method
    async def add(self, a: int, b: int = 2, *, more: int = 0) -> int:
        return a + b + more

    @rrpc.method
    async def later(self, n: int) -> int:
        await asyncio.sleep(0)
        return n

    @rrpc.method
    async def rows(
        self, queries: Annotated[NDArray[np.float32], rrpc.Shape("n", 3)], *, wait: bool, wrong: bool
    ) -> Annotated[NDArray[np.int64], rrpc.Shape("n")]:
        if wait:
            await asyncio.sleep(0)
        return np.zeros(len(queries) + wrong, np.int64)

    @rrpc.method
    async def wrong(self) -> int:
        return "text"  # type: ignore[return-value]

    @rrpc.method
    async def fail(self, wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        raise LookupError("nowhere")

    @rrpc.method
    async def cancelled(self) -> None:
        raise asyncio.CancelledError

    @rrpc.method
    async def leave(self, text: str) -> str:
        found = LEFT.get()
        LEFT.set(text)
        return found

    @rrpc.method
    async def leave_values(self, value: float) -> float:
        found = VALUES.get()[0]
        VALUES.set(np.full(3, value))
        return float(found)

    @rrpc.method
    async def cancel_own_task(self, wait: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if wait:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    @rrpc.method
    async def cancels(self) -> int:
        task: Any = asyncio.current_task()
        return task.cancelling() if hasattr(task, "cancelling") else 0  # from Python 3.11 on

    @rrpc.method
    async def burn(self) -> None:
        self.kept.append(self.round)
        spin_for(0.0005)

    @rrpc.method
    async def look(self, wait: bool) -> str:
        context = rrpc.context()
        assert context.task is asyncio.current_task()
        if wait:
            await asyncio.sleep(0)
        assert rrpc.context() is context
        context.set_metadata({"told": "a secret"})
        self.kept.append((context, contextvars.copy_context()))
        return f"{context.method} {dict(context.metadata)} {context.time_left() is not None}"

    @rrpc.method
    async def leave_a_task(self) -> None:
        async def ask() -> str:
            await self.gate.wait()
            try:
                return rrpc.context().method
            except RuntimeError as error:
                return str(error)

        self.kept.append(asyncio.ensure_future(ask()))

    @rrpc.method
    async def hold(self) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1


lab_rpc = generated(Lab, "waiting_lab_rpc")


@contextlib.asynccontextmanager
async def serving(lab: Lab | None = None, **options: Any) -> AsyncIterator[Any]:
    """A client of a server in the same loop, called once."""
    async with (
        rrpc.aio.serve(
            Lab() if lab is None else lab, listen=f"shm://rrpc-lab-{os.getpid()}", **options
        ) as server,
        lab_rpc.AsyncLabClient(server.addresses[0]) as client,
    ):
        await client.add(1)
        yield client


def test_no_call_is_handled_in_python(in_loop: Run[Any]) -> None:
    async def calls(client: Any) -> None:
        for n in range(20):
            assert await client.add(n) == n + 2
            assert await client.add(n, more=1) == n + 3
        assert await asyncio.gather(*(client.add(n) for n in range(50))) == list(range(2, 52))
        assert await asyncio.gather(*(client.later(n) for n in range(50))) == list(range(50))

    async def main() -> None:
        async with serving() as client:
            await calls(client)
            with python_runs() as ran:
                await calls(client)
            names = {name.removeprefix(FOLDER) for name in ran}
            assert not [name for name in names if "codec" in name]
            assert "/aio/handler_tasks.py:_begin" not in names
            with python_runs() as ran:
                await client.add(1, metadata={"rrpc-trace": "1"})
            assert any(name.endswith(":_begin") for name in ran)

    in_loop(main())


def test_results_and_errors(in_loop: Run[Any]) -> None:
    queries = np.zeros((5, 3), np.float32)

    async def main() -> None:
        async with serving() as client:
            for wait in (False, True, False):
                assert (await client.rows(queries, wait=wait, wrong=False)).shape == (5,)
                with pytest.raises(rrpc.Internal, match="dimension n is 6, in argument 'queries' it is 5"):
                    await client.rows(queries, wait=wait, wrong=True)
                with pytest.raises(rrpc.RemoteError, match="nowhere") as raised:
                    await client.fail(wait)
                assert raised.value.type_name == "LookupError"
                with pytest.raises(rrpc.Internal, match="expected int, got str"):
                    await client.wrong()
                with pytest.raises(rrpc.Cancelled):
                    await client.cancelled()
                with pytest.raises(rrpc.Unimplemented, match="has no method"):
                    await client.call("Lab.nothing")
                with pytest.raises(rrpc.InvalidArgument):
                    await client.call("Lab.add", "text")

    in_loop(main())


def test_tracebacks_begin_with_the_handler(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving(tracebacks=True) as client:
            with pytest.raises(rrpc.RemoteError) as raised:
                await client.fail(False)
            assert "in fail" in (raised.value.remote_traceback or "").splitlines()[1]

    in_loop(main())


def test_contexts(in_loop: Run[Any]) -> None:
    lab = Lab()

    async def main() -> None:
        async with serving(lab) as client:
            for wait in (False, True):
                said = await client.look(wait, metadata={"who": "me"}, timeout=60.0)
                assert said == "Lab.look {'who': 'me'} True"
                future = client.look.start(wait)
                assert await future == "Lab.look {} False"
                assert dict(future.metadata()) == {"told": "a secret"}
            assert len({id(context) for context, _ in lab.kept}) == 4
            for context, copied in lab.kept:
                assert context.ended
                with pytest.raises(RuntimeError, match="is for handlers"):
                    copied.run(rrpc.context)

    in_loop(main())


def test_what_a_handler_leaves_behind_no_other_sees(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving() as client:
            for n in range(5):
                assert await client.leave(f"text {n}") == ""
                assert await client.add(n) == n + 2
            assert set(await asyncio.gather(*(client.leave(f"text {n}") for n in range(20)))) == {""}

    in_loop(main())


def test_values_in_the_context_are_told_apart_without_comparing_them(in_loop: Run[Any]) -> None:
    """An array's == gives an array, which is neither true nor false."""

    async def main() -> None:
        VALUES.set(np.zeros(3))
        async with serving() as client:
            for n in range(5):
                assert await client.leave_values(n + 1.0, timeout=patience(5)) == 0.0
                assert await client.later(n) == n

    in_loop(main())


@pytest.mark.parametrize("wait", [False, True])
def test_a_task_cancelled_by_its_own_handler_is_no_others(in_loop: Run[Any], wait: bool) -> None:
    async def main() -> None:
        async with serving() as client:
            for n in range(5):
                await client.cancel_own_task(wait)
                assert await client.cancels() == 0
                await client.cancel_own_task(wait)
                assert await client.later(n) == n
            found = await asyncio.gather(
                client.later(0), client.cancel_own_task(wait), client.later(1), client.cancels()
            )
            assert list(found) == [0, None, 1, 0]

    in_loop(main())


def test_the_loop_goes_round_while_many_calls_wait(in_loop: Run[Any]) -> None:
    lab = Lab()

    async def rounds() -> None:
        while True:
            lab.round += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with serving(lab) as client:
            counting = asyncio.ensure_future(rounds())
            await asyncio.gather(*(client.burn() for _ in range(200)))
            counting.cancel()
            assert len(lab.kept) == 200
            assert max(Counter(lab.kept).values()) < 20  # in 2 ms there are four

    in_loop(main())


def test_two_servers_in_one_loop(in_loop: Run[Any]) -> None:
    """Neither takes the other's calls out of the loop's queue and leaves them there."""
    rounds = 600
    together = threading.Barrier(2)

    def calls(address: str, delay: float) -> None:
        with lab_rpc.LabClient(address, timeout=patience(5)) as client:
            try:
                client.add(1)
                for n in range(rounds):
                    together.wait(patience(20))
                    spin_for(delay * (n * 7919 % 300))
                    assert client.add(n) == n + 2
            except BaseException:
                together.abort()  # in the end it would break the last wait of the other one, too
                raise

    async def main() -> None:
        name = f"shm://rrpc-lab-{os.getpid()}"
        options: Any = {"poll": "event"}
        async with (
            rrpc.aio.serve(Lab(), listen=f"{name}-1", **options) as one,
            rrpc.aio.serve(Lab(), listen=f"{name}-2", **options) as other,
        ):
            addresses = [server.addresses[0] for server in (one, other)]
            delays = [0.0, 1e-6]  # the second call comes at each moment of the first
            await asyncio.gather(*map(asyncio.to_thread, [calls] * 2, addresses, delays))

    in_loop(main())


def test_a_task_that_outlives_its_call_sees_that_it_has_ended(in_loop: Run[Any]) -> None:
    lab = Lab()

    async def main() -> None:
        async with serving(lab) as client:
            for _ in range(3):
                await client.leave_a_task()
            lab.gate.set()
            for said in await asyncio.gather(*lab.kept):
                assert "is for handlers" in said

    in_loop(main())


def test_those_that_wait_keep_nobody_waiting(in_loop: Run[Any]) -> None:
    lab = Lab()

    async def main() -> None:
        async with serving(lab) as client:
            held = [asyncio.ensure_future(client.hold()) for _ in range(30)]
            for n in range(100):
                assert await client.add(n) == n + 2
            assert lab.waiting == 30
            held[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await held.pop(0)
            await until_true(lambda: lab.waiting == 29)
            lab.gate.set()
            await asyncio.gather(*held)

    in_loop(main())


def test_the_service_goes_with_its_server(in_loop: Run[Any]) -> None:
    lab = Lab()
    gone = weakref.ref(lab)

    async def main(served: list[Lab]) -> None:
        async with serving(served.pop()) as client:
            await client.add(1)
            await client.leave("text")

    served = [lab]
    del lab
    in_loop(main(served))
    gc.collect()
    assert gone() is None
