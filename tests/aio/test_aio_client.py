"""Clients in event loops: results, errors, cancellation, and what may be wrong about their use."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aio import SERVICE, Run, counts_are, until
from processes import ServeFactory, eventually, patience, run_python, volume

import rrpc


def test_calls_and_their_results(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with rrpc.aio.connect(aio_address) as client:
            assert await client.call("Mixed.echo", "hello") == "hello"
            assert await client.call("Mixed.echo_later", "hello") == "hello"
            assert await client.call("Mixed.plain", "hello") == "hello"
            future = client.start("Mixed.echo", "later")
            assert not future.done()
            assert await future == "later"

    in_loop(main())


def test_hundreds_in_flight_come_back_to_whom_they_belong(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with rrpc.aio.connect(aio_address) as client:

            async def caller(number: int) -> None:
                for turn in range(volume(20, 3)):
                    text = f"{number}.{turn}"
                    method = "Mixed.echo" if turn % 2 else "Mixed.echo_later"
                    assert await client.call(method, text) == text

            await asyncio.gather(*map(caller, range(200)))

    in_loop(main())


def test_arrays_go_both_ways_and_into_memory_that_is_there(aio_address: str, in_loop: Run[Any]) -> None:
    array = np.arange(300_000, dtype=np.float64)

    async def main() -> None:
        async with rrpc.aio.connect(aio_address) as client:
            np.testing.assert_array_equal(await client.call("Mixed.double", array), array * 2)
            memory = np.zeros_like(array)
            result = await client.call("Mixed.double", array, out=memory)
            assert result is memory
            np.testing.assert_array_equal(memory, array * 2)
            several = await asyncio.gather(*(client.call("Mixed.double", array + n) for n in range(8)))
            for n, doubled in enumerate(several):
                np.testing.assert_array_equal(doubled, (array + n) * 2)

    in_loop(main())


def test_errors_come_as_from_a_blocking_client(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with rrpc.aio.connect(aio_address) as client:
            with pytest.raises(rrpc.NotFound, match="no such thing") as caught:
                await client.call("Mixed.fail", "no such thing")
            assert caught.value.details == {"asked": "no such thing"}
            with pytest.raises(rrpc.RemoteError, match="on purpose"):
                await client.call("Mixed.crash")
            with pytest.raises(rrpc.Unimplemented, match="has no method 'nothing'"):
                await client.call("Mixed.nothing")
            with pytest.raises(rrpc.InvalidArgument):
                await client.call("Mixed.echo", 3)
            assert await client.call("Mixed.echo", "still there") == "still there"

    in_loop(main())


def test_metadata_and_deadlines(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with rrpc.aio.connect(aio_address, metadata={"client": "c"}) as client:
            future = client.start("Mixed.metadata", metadata={"call": "k"})
            assert await future == {"client": "c", "call": "k"}
            assert future.metadata()["answer"] == "yes"
            left = await client.call("Mixed.time_left", timeout=30.0)
            assert 0 < left <= 30
            assert await client.call("Mixed.time_left") is None
            with pytest.raises(rrpc.DeadlineExceeded):
                await client.call("Mixed.forever", timeout=0.05)
            quick = client.with_options(timeout=0.05)
            with pytest.raises(rrpc.DeadlineExceeded):
                await quick.call("Mixed.forever")
            await until(lambda: counts_are(client, 0))

    in_loop(main())


@pytest.mark.parametrize("how", ["task", "wait_for", "future", "group"])
def test_a_cancelled_task_cancels_its_call(aio_address: str, in_loop: Run[Any], how: str) -> None:
    async def main() -> None:
        async with rrpc.aio.connect(aio_address) as client:
            before = (await client.call("Mixed.counts"))[1]
            await CANCEL[how](client)
            await until(lambda: counts_are(client, 0))
            assert (await client.call("Mixed.counts"))[1] == before + 1

    in_loop(main())


async def _cancel_task(client: rrpc.aio.Client) -> None:
    task = asyncio.ensure_future(client.call("Mixed.forever"))
    await until(lambda: counts_are(client, 1))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _cancel_by_time(client: rrpc.aio.Client) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.call("Mixed.forever"), patience(0.2))


async def _cancel_future(client: rrpc.aio.Client) -> None:
    future = client.start("Mixed.forever")
    await until(lambda: counts_are(client, 1))
    assert future.cancel()
    assert not future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await future


async def _cancel_group(client: rrpc.aio.Client) -> None:
    gathered = asyncio.gather(client.call("Mixed.forever"), client.call("Mixed.echo", "x"))
    await until(lambda: counts_are(client, 1))
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered


CANCEL = {
    "task": _cancel_task,
    "wait_for": _cancel_by_time,
    "future": _cancel_future,
    "group": _cancel_group,
}


def test_hundreds_of_cancellations_leave_nothing_behind(aio_address: str, in_loop: Run[Any]) -> None:
    array = np.ones(20_000)

    async def main() -> None:
        async with rrpc.aio.connect(aio_address) as client:
            for turn in range(volume(40, 5)):
                calls = [client.start("Mixed.forever") for _ in range(4)]
                calls += [client.start("Mixed.double", array) for _ in range(4)]
                for _ in range(turn % 5):
                    await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
            await until(lambda: counts_are(client, 0))
            assert await client.call("Mixed.echo", "x") == "x"

            async def all_ended() -> bool:
                await client.call("Mixed.echo", "x")
                return client.stats()["calls_in_flight"] == 0

            await until(all_ended)

    in_loop(main())
    eventually(lambda: rrpc.stats()["bytes_exposed"] == 0)


def test_many_loops_and_threads_share_a_client(aio_address: str, in_loop: Run[Any]) -> None:
    client = rrpc.aio.connect(aio_address)
    blocking = rrpc.connect(aio_address)
    failures: list[BaseException] = []

    async def main(number: int) -> None:
        async def caller(text: str) -> None:
            for _ in range(volume(15, 3)):
                assert await client.call("Mixed.echo_later", text) == text

        await asyncio.gather(*(caller(f"{number}.{n}") for n in range(8)))

    def in_thread(number: int) -> None:
        try:
            in_loop(main(number))
        except BaseException as error:
            failures.append(error)

    def blocked() -> None:
        for _ in range(volume(50, 5)):
            assert blocking.call("Mixed.plain", "x") == "x"

    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(4)]
    threads.append(threading.Thread(target=blocked))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(60))
    assert not failures
    asyncio.run(client.close())
    blocking.close()


def test_one_loop_after_the_other(aio_address: str) -> None:
    client = rrpc.aio.connect(aio_address)
    for number in range(5):
        assert asyncio.run(client.call("Mixed.echo", str(number))) == str(number)
    left = client  # with a call under way when its loop is closed

    async def leave() -> None:
        left.start("Mixed.hold")

    asyncio.run(leave())
    assert asyncio.run(client.call("Mixed.echo", "after")) == "after"
    asyncio.run(client.close())


@pytest.mark.slow
def test_the_servers_death_is_told_and_a_new_one_found(
    serve: ServeFactory, transport: str, in_loop: Run[Any]
) -> None:
    served = serve(SERVICE, "Mixed", listen=transport)

    async def main() -> None:
        async with rrpc.aio.connect(served.address) as client:
            calls = [client.start("Mixed.forever") for _ in range(20)]
            await until(lambda: counts_are(client, 20))
            served.kill()
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, rrpc.Unavailable), error
            with pytest.raises(rrpc.Unavailable):
                await client.call("Mixed.echo", "x")
            await asyncio.to_thread(serve, SERVICE, "Mixed", listen=served.address)
            answers: list[str] = []

            async def answers_again() -> bool:
                with contextlib.suppress(rrpc.Unavailable):
                    answers.append(await client.call("Mixed.echo", "of the new one"))
                return bool(answers)

            await until(answers_again)
            assert answers == ["of the new one"]

    in_loop(main())


def test_a_server_that_drains_loses_no_call(
    serve: ServeFactory, transport: str, tmp_path: Path, in_loop: Run[Any]
) -> None:
    served = serve(SERVICE, "Mixed", listen=transport, args=["--grace", str(patience(20))])
    go_on = tmp_path / "go on"

    async def main() -> None:
        async with rrpc.aio.connect(served.address) as client:
            held = client.start("Mixed.hold_until", str(go_on))
            await until(lambda: counts_are(client, 1))
            served.process.terminate()

            async def refuses() -> bool:
                try:
                    await client.call("Mixed.echo", "x")
                except rrpc.Unavailable:
                    return True
                return False

            await until(refuses)
            assert not held.done()
            go_on.touch()
            assert await held == "held"

    in_loop(main())
    assert served.wait() == 0


# Wrong use


def test_without_a_loop_there_is_a_clear_error(aio_address: str) -> None:
    client = rrpc.aio.connect(aio_address)
    with pytest.raises(RuntimeError, match=r"rrpc\.aio is for coroutines, in an event loop that runs"):
        client.start("Mixed.echo", "x")
    with pytest.raises(TypeError, match="use it with `async with`"), client:
        pass


def test_a_closed_client_says_so(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        client = await rrpc.aio.connect(aio_address)
        held = client.start("Mixed.forever")
        await client.close()
        await client.close()
        with pytest.raises(rrpc.Unavailable):
            await held
        with pytest.raises(rrpc.Unavailable, match="the client is closed"):
            await client.call("Mixed.echo", "x")

    in_loop(main())


def test_a_blocking_call_in_a_coroutine_is_refused(aio_address: str) -> None:
    with rrpc.connect(aio_address) as client:

        async def blocks() -> None:
            await client.call("Mixed.echo", "x")

        with pytest.raises(RuntimeError, match=r"Client\.call\(\) blocks, and was called in a coroutine"):
            asyncio.run(blocks())

        async def awaits_future() -> None:
            await client.start("Mixed.echo", "x")

        with pytest.raises(TypeError, match="this future is a blocking client's"):
            asyncio.run(awaits_future())

        async def wraps() -> str:
            found: str = await asyncio.wrap_future(client.start("Mixed.echo", "x"))
            return found

        assert asyncio.run(wraps()) == "x"

        async def elsewhere() -> Any:
            return await asyncio.to_thread(client.call, "Mixed.echo", "x")

        assert asyncio.run(elsewhere()) == "x"


def test_nobody_there(in_loop: Run[Any]) -> None:
    async def main() -> None:
        with pytest.raises(rrpc.Unavailable, match="cannot connect"):
            await rrpc.aio.connect("tcp://127.0.0.1:1")
        client = rrpc.aio.Client("tcp://127.0.0.1:1")
        with pytest.raises(rrpc.Unavailable, match="cannot connect"):
            await client.call("Mixed.echo", "x")

    in_loop(main())


def test_a_forked_child_needs_a_client_of_its_own(aio_address: str) -> None:
    code = f"""
import asyncio, os, rrpc
client = rrpc.aio.connect({aio_address!r})
async def call():
    return await client.call("Mixed.echo", "x")
assert asyncio.run(call()) == "x"
if os.fork() == 0:
    try:
        asyncio.run(call())
    except rrpc.FailedPrecondition as error:
        assert "parent process" in str(error), error
        async def own():
            async with rrpc.aio.connect({aio_address!r}) as mine:
                assert await mine.call("Mixed.echo", "child") == "child"
        asyncio.run(own())
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert asyncio.run(call()) == "x"
"""
    run_python(code)


def test_rrpc_brings_asyncio_only_when_it_is_used() -> None:
    run_python("import sys, rrpc; assert rrpc.aio.Client; assert 'asyncio' not in sys.modules")


def test_a_future_shows_only_what_users_need() -> None:
    """The reference page has a class's names that have no underscore; what starts calls isn't among them."""
    assert {name for name in vars(rrpc.aio.Future) if name[0] != "_"} == {"cancel", "metadata"}
