"""Async handlers: beside plain ones, in tasks that are used again, cancelled with their calls; servers in a loop."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aio import SERVICE, Run, counts_are, until
from aio_service import Mixed
from processes import child_environment, cpu_seconds, eventually, patience, run_python, volume

import rrpc
from rrpc.observe import ServedCall


@contextlib.asynccontextmanager
async def serving(
    address: str, **options: Any
) -> AsyncIterator[tuple[rrpc.aio.Server, rrpc.aio.Client, Mixed]]:
    service = Mixed()
    async with (
        rrpc.aio.serve(service, listen=address, **options) as server,
        rrpc.aio.connect(server.addresses[0], poll=options.get("poll", "adaptive")) as client,
    ):
        yield server, client, service


def test_both_kinds_in_one_service(address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving(address) as (server, client, _):
            texts = [f"t{number}" for number in range(50)]
            for method in ("echo", "echo_later", "plain"):
                found = await asyncio.gather(*(client.call(f"Mixed.{method}", text) for text in texts))
                assert list(found) == texts
            assert await client.call("Mixed.grouped") == [0, 1, 2]
            assert server.stats()["calls_running"] == 0

    in_loop(main())


def test_handlers_that_wait_hold_up_no_others(address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving(address) as (_, client, service):
            held = [client.start("Mixed.hold") for _ in range(100)]
            await asyncio.gather(client.call("Mixed.open"), *held)
            assert service.waiting == 0

    in_loop(main())


@pytest.mark.parametrize("poll", ["event", "busy"])
def test_every_way_to_poll(address: str, poll: str) -> None:
    array = np.arange(200_000, dtype=np.float64)

    async def main() -> None:
        async with serving(address, poll=poll) as (_, client, _):
            for number in range(10):
                assert await client.call("Mixed.echo_later", str(number)) == str(number)
            np.testing.assert_array_equal(await client.call("Mixed.double", array), array * 2)

    asyncio.run(main())


def test_builtin_services_answer_too(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving("tcp://127.0.0.1:0") as (server, client, _):
            assert await client.call("rrpc.Health.check") == 1
            server.health.set("Mixed", False)
            assert await client.call("rrpc.Health.check", "Mixed") == 2
            assert "Mixed" in await client.call("rrpc.Reflection.services")
            assert (await client.call("rrpc.Reflection.describe", "Mixed"))["version"] == 1
            assert server.services == "Mixed"

    in_loop(main())


def test_a_task_is_used_again_but_not_what_a_handler_left(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving("tcp://127.0.0.1:0") as (_, client, _):
            for turn in range(20):
                assert await client.call("Mixed.leave", f"of call {turn}") == ""
            before = await client.call("Mixed.tasks")
            for _ in range(20):
                assert await client.call("Mixed.tasks") <= before + 1

    in_loop(main())


def test_a_call_given_up_cancels_its_handler(address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving(address) as (server, client, service):
            call = client.start("Mixed.forever")
            await until(lambda: counts_are(client, 1))
            assert server.running() == ["Mixed.forever"]
            call.cancel()
            await until(lambda: counts_are(client, 0))
            with pytest.raises(rrpc.DeadlineExceeded):
                await client.call("Mixed.forever", timeout=patience(0.5))
            await until(lambda: counts_are(client, 0))
            stubborn = client.start("Mixed.stubborn")
            await until(lambda: _runs(server, "Mixed.stubborn"))
            stubborn.cancel()
            await until(lambda: _runs(server))
            assert service.cancelled == 3
            assert await client.call("Mixed.grouped") == [0, 1, 2]

    in_loop(main())


def test_a_cancelled_handler_leaves_nothing_to_the_collector(address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving(address) as (server, client, service):
            call = client.start("Mixed.keep")
            await until(lambda: _keeps(service, True))
            gc.disable()
            try:
                call.cancel()
                await until(lambda: _runs(server))
                await until(lambda: _keeps(service, False))
            finally:
                gc.enable()

    in_loop(main())


async def _keeps(service: Mixed, something: bool) -> bool:
    return (service.kept is not None and service.kept() is not None) is something


async def _runs(server: rrpc.aio.Server, *methods: str) -> bool:
    return server.running() == list(methods)


async def _rests(server: rrpc.aio.Server) -> bool:
    return not server.running() and server.stats()["calls_running"] == 0


def test_a_client_that_dies_cancels_its_handlers(address: str, in_loop: Run[Any]) -> None:
    code = """
import asyncio, sys, rrpc
async def main():
    async with rrpc.aio.connect(sys.argv[1]) as client:
        calls = [client.start("Mixed.forever") for _ in range(10)]
        await asyncio.gather(*calls)
asyncio.run(main())
"""

    async def main() -> None:
        async with serving(address) as (server, client, service):
            dying = subprocess.Popen(
                [sys.executable, "-c", code, server.addresses[0]], env=child_environment()
            )
            await until(lambda: counts_are(client, 10))
            dying.kill()
            await until(lambda: counts_are(client, 0))
            dying.wait()
            assert service.cancelled == 10

    in_loop(main())


def test_calls_given_up_at_any_moment_leave_no_task(address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving(address) as (server, client, _):
            await client.call("Mixed.echo", "x")
            for turn in range(volume(60, 5)):
                names = ("forever", "grouped", "stubborn", "hold")
                calls = [client.start(f"Mixed.{name}") for name in names]
                for _ in range(turn % 7):
                    await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
            await until(lambda: _rests(server))
            assert await client.call("Mixed.echo", "x") == "x"
            await until(lambda: _rests(server))

    in_loop(main())


def test_what_a_handler_calls_inherits_deadline_and_cancellation(address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving(address) as (_, behind, service):

            @rrpc.service
            class Front:
                @rrpc.method
                async def forever(self) -> None:
                    await behind.call("Mixed.forever")

                @rrpc.method
                async def time_left(self) -> list[float | None]:
                    inherited = await behind.call("Mixed.time_left")
                    own = await behind.call("Mixed.time_left", timeout=5.0)
                    with rrpc.detached():
                        return [inherited, own, await behind.call("Mixed.time_left")]

            async with (
                rrpc.aio.serve(Front(), listen="tcp://127.0.0.1:0") as front,
                rrpc.aio.connect(front.addresses[0]) as client,
            ):
                call = client.start("Front.forever")
                await until(lambda: _waits(service, 1))
                call.cancel()
                await until(lambda: _waits(service, 0))
                with pytest.raises(rrpc.DeadlineExceeded):
                    await client.call("Front.forever", timeout=patience(0.5))
                await until(lambda: _waits(service, 0))
                assert service.cancelled == 2
                inherited, own, detached = await client.call("Front.time_left", timeout=20.0)
                assert 5 < inherited <= 20
                assert own <= 5
                assert detached is None

    in_loop(main())


def test_handlers_in_loops_call_each_other_back(address: str, in_loop: Run[Any]) -> None:
    @rrpc.service
    class Bounce:
        @rrpc.method
        async def bounce(self, depth: int) -> int:
            if not depth:
                return 0
            caller = rrpc.context().client()
            below: int = await caller.call("Bounce.bounce", depth - 1)
            return below + 1

    async def main() -> None:
        async with (
            rrpc.aio.serve(Bounce(), listen=address) as server,
            rrpc.aio.serve(Bounce(), listen=()) as own,
            rrpc.aio.connect(server.addresses[0], serve=own, timeout=20.0) as client,
        ):
            assert await client.call("Bounce.bounce", 7) == 7
            found = await asyncio.gather(*(client.call("Bounce.bounce", depth) for depth in range(20)))
            assert found == list(range(20))

    in_loop(main())


def test_so_many_at_a_time_and_no_more(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving("tcp://127.0.0.1:0", max_concurrency=3, max_queue=2) as (server, client, service):
            calls = [client.start("Mixed.hold") for _ in range(5)]
            await until(lambda: _waits(service, 3))
            assert server.stats()["calls_waiting"] == 2
            with pytest.raises(rrpc.ResourceExhausted, match="max_queue: 2 calls wait"):
                await client.call("Mixed.echo", "one more")
            assert await client.call("Mixed.plain", "has a lane of its own") == "has a lane of its own"
            calls[0].cancel()
            await until(lambda: _waits(service, 3))
            service._opened.set()
            assert await asyncio.gather(*calls[1:]) == ["held"] * 4

    in_loop(main())


async def _waits(service: Mixed, count: int) -> bool:
    return service.waiting == count


def test_stopping_cancels_what_runs_and_draining_waits_for_it(in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with serving("tcp://127.0.0.1:0") as (server, client, service):
            held, stuck = client.start("Mixed.hold"), client.start("Mixed.forever")
            await until(lambda: _waits(service, 2))
            draining = asyncio.ensure_future(server.drain(patience(3)))
            await until(lambda: _refuses(client))
            assert not held.done()
            service._opened.set()
            assert await held == "held"
            assert not await draining
            with pytest.raises(rrpc.Unavailable):
                await stuck
            await until(lambda: _waits(service, 0))
            assert service.cancelled == 1
            await asyncio.wait_for(server.wait(), patience(5))
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    asyncio.run(main())


async def _refuses(client: rrpc.aio.Client) -> bool:
    try:
        await client.call("Mixed.plain", "x", timeout=5.0)
    except rrpc.Unavailable:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_as_signals_tell(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "aio_service.py").write_text(SERVICE)
    (tmp_path / "program.py").write_text("""
import asyncio, signal, rrpc
from aio_service import Mixed

async def main():
    async with rrpc.aio.serve(Mixed(), listen="tcp://127.0.0.1:0") as server:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(server.drain(5.0)))
        print(server.addresses[0], flush=True)
        await server.wait()
    print("ended", flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
""")
    program = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert program.stdout is not None
    address = program.stdout.readline().strip()
    with rrpc.connect(address) as client:
        assert client.call("Mixed.echo", "x") == "x"
        call = client.start("Mixed.forever" if number is signal.SIGINT else "Mixed.hold")
        eventually(lambda: client.call("Mixed.counts")[0] == 1)
        program.send_signal(number)
        if number is signal.SIGTERM:
            with contextlib.suppress(rrpc.Unavailable):  # it may be too late to be told to open
                client.call("Mixed.echo", "x")
            call.cancel()
        assert program.wait(patience(30)) == 0
    said = program.stdout.read()
    assert ("ended" if number is signal.SIGTERM else "interrupted") in said


def test_a_handler_may_stop_its_own_server(in_loop: Run[Any]) -> None:
    servers: list[rrpc.aio.Server] = []

    @rrpc.service
    class Ending:
        @rrpc.method
        async def end(self) -> None:
            await servers[0].stop()

    async def main() -> None:
        async with rrpc.aio.serve(Ending(), listen="tcp://127.0.0.1:0") as server:
            servers.append(server)
            async with rrpc.aio.connect(server.addresses[0]) as client:
                with pytest.raises(rrpc.Unavailable):
                    await client.call("Ending.end")
            await server.stop()

    in_loop(main())


# A blocking server


def test_a_blocking_server_runs_async_handlers_in_a_loop_of_its_own(transport: str, address: str) -> None:
    service = Mixed()
    with rrpc.serve(service, listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        assert client.call("Mixed.echo", "a") == "a"
        assert client.call("Mixed.plain", "b") == "b"
        assert client.call("Mixed.grouped") == [0, 1, 2]
        call = client.start("Mixed.forever")
        eventually(lambda: server.running() == ["Mixed.forever"])
        call.cancel()
        eventually(lambda: service.cancelled == 1)
        stuck = client.start("Mixed.forever")
        eventually(lambda: service.waiting == 1)
        assert server.stop(patience(10))
        assert service.cancelled == 2
        with pytest.raises(rrpc.Unavailable):
            stuck.result()
    assert not [thread for thread in threading.enumerate() if thread.name == "rrpc-loop"]


def test_a_server_that_cant_listen_leaves_nothing_behind(transport: str, address: str) -> None:
    with rrpc.serve(Mixed(), listen=address) as server:
        taken = server.addresses[0]
        threads = set(threading.enumerate())
        with pytest.raises(rrpc.InvalidArgument):
            rrpc.serve(Mixed(), listen="nothing://here")
        refused = rrpc.Server(Mixed(), listen=["tcp://127.0.0.1:0", taken])
        with pytest.raises(rrpc.AlreadyExists):
            refused.start()
        assert not refused.started
        assert set(threading.enumerate()) == threads
        with pytest.raises(rrpc.Unavailable):
            rrpc.connect(refused.addresses[0])
        with rrpc.connect(taken) as client:
            assert client.call("Mixed.echo", "still here") == "still here"


def test_the_interpreter_ends_with_a_server_that_nobody_stopped() -> None:
    code = """
import asyncio, rrpc
@rrpc.service
class Late:
    @rrpc.method
    async def never(self) -> None:
        await asyncio.Event().wait()
server = rrpc.serve(Late(), listen="tcp://127.0.0.1:0")
client = rrpc.connect(server.addresses[0])
client.start("Late.never")
"""
    run_python(code)


def test_an_observer_sees_async_calls() -> None:
    seen: list[ServedCall] = []
    with rrpc.serve(Mixed(), listen="tcp://127.0.0.1:0", observer=seen.append) as server:
        with rrpc.connect(server.addresses[0]) as client:
            client.call("Mixed.echo_later", "x")
            with pytest.raises(rrpc.NotFound):
                client.call("Mixed.fail", "x")
        eventually(lambda: len(seen) == 2)
    assert [(call.method, call.code) for call in seen] == [("Mixed.echo_later", 0), ("Mixed.fail", 5)]
    assert all(call.handler_ns > 0 and call.known for call in seen)


@pytest.mark.slow
def test_idle_loops_sleep(serve: Callable[..., Any]) -> None:
    served = serve(SERVICE, "Mixed", listen="rrpc")

    async def main() -> None:
        async with rrpc.aio.connect(served.address) as client:
            await asyncio.gather(*(client.call("Mixed.echo_later", "x") for _ in range(100)))
            held = client.start("Mixed.hold")
            await until(lambda: counts_are(client, 1))
            await asyncio.sleep(1)
            before = cpu_seconds(served.pid) + cpu_seconds(os.getpid())
            await asyncio.sleep(2)
            assert cpu_seconds(served.pid) + cpu_seconds(os.getpid()) - before < 0.2
            held.cancel()

    asyncio.run(main())
