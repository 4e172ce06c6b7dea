"""Calls in event loops: no task is made for one, and those that are looked after behave as plain ones do."""

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aio import Run, counts_are, until
from aio_service import Mixed
from lab import TRANSPORTS, LabServer
from processes import patience
from two_versions import generate

import rrpc
from rrpc.interceptors import Sleep

COUNT = 50
Steps = Generator[Any, Any, Any]
Start = Callable[[], "asyncio.Future[Any]"]
AsyncMixedClient: Any = generate(Mixed).AsyncMixedClient


class Around(rrpc.ClientInterceptor):
    def __init__(self, unary: Callable[[Any], Steps]) -> None:
        self._unary = unary

    def unary(self, call: Any) -> Steps:
        return (yield from self._unary(call))


def through(call: Any) -> Steps:
    return (yield call)


async def tasks_of(start: Start, address: str) -> int:
    """How many tasks so many calls take that wait in their handlers."""
    before = len(asyncio.all_tasks())
    calls = [start() for _ in range(COUNT)]
    async with rrpc.aio.connect(address) as other:
        await until(lambda: counts_are(other, COUNT))
        found = len(asyncio.all_tasks()) - before
        for call in calls:
            call.cancel()
        await until(lambda: counts_are(other, 0))
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "interceptor": {"interceptors": [Around(through)]},
    "retry": {"retry": rrpc.RetryPolicy()},
    "hedging": {"hedging": rrpc.HedgingPolicy(delay=60.0)},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_no_task_whatever_is_around_a_call(aio_address: str, in_loop: Run[Any], kind: str) -> None:
    async def main() -> None:
        async with AsyncMixedClient(aio_address, **OPTIONS[kind]) as client:
            assert await tasks_of(client.forever.start, aio_address) == 0
            assert await tasks_of(lambda: client.start("Mixed.forever"), aio_address) == 0

    in_loop(main())


def test_no_task_where_connections_are_picked(aio_server: LabServer, in_loop: Run[Any]) -> None:
    addresses = sorted({aio_server.address(TRANSPORTS[0]), aio_server.address(TRANSPORTS[-1])})
    spread: list[int] = []

    async def main() -> None:
        async with AsyncMixedClient(addresses, policy="round_robin") as client:
            await until(lambda: ready(client, len(addresses)))

            def typed() -> asyncio.Future[Any]:
                call: asyncio.Future[Any] = client.forever.start()
                spread[:] = [one.calls_in_flight() for one in client._channel.connections()]
                return call

            assert await tasks_of(typed, addresses[0]) == 0
            assert min(spread) >= COUNT // len(addresses)
            assert await tasks_of(lambda: client.start("Mixed.forever"), addresses[0]) == 0

    in_loop(main())


async def ready(client: rrpc.aio.Client, count: int) -> bool:
    return [entry["state"] for entry in client.info()["channel"]["addresses"]] == ["ready"] * count


def test_no_task_for_calls_that_a_handler_makes(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with AsyncMixedClient(aio_address) as behind:

            async def count() -> list[int]:
                return [
                    await tasks_of(behind.forever.start, aio_address),
                    await tasks_of(lambda: behind.start("Mixed.forever"), aio_address),
                ]

            async with front(count) as client:
                assert await client.call("Front.go") == [0, 0]

    in_loop(main())


@contextlib.asynccontextmanager
async def front(handler: Callable[[], Any]) -> AsyncIterator[rrpc.aio.Client]:
    """A client of a server in this loop, whose one handler does that."""

    @rrpc.service
    class Front:
        @rrpc.method
        async def go(self) -> list[float]:
            found: list[float] = await handler()
            return found

    async with (
        rrpc.aio.serve(Front(), listen="tcp://127.0.0.1:0") as server,
        rrpc.aio.connect(server.addresses[0]) as client,
    ):
        yield client


def test_no_task_before_there_is_a_connection(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        client = AsyncMixedClient(aio_address)
        before = len(asyncio.all_tasks())
        calls = [client.echo.start(f"typed {n}") for n in range(COUNT)]
        calls += [client.start("Mixed.echo", f"by name {n}") for n in range(COUNT)]
        late = client.echo.start("given up")
        assert len(asyncio.all_tasks()) == before
        late.cancel()
        assert await asyncio.gather(*calls) == [
            *(f"typed {n}" for n in range(COUNT)),
            *(f"by name {n}" for n in range(COUNT)),
        ]
        assert len(asyncio.all_tasks()) == before
        await client.close()

    in_loop(main())


def test_a_task_only_for_what_an_interceptor_awaits(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        def awaits(call: Any) -> Steps:
            yield gate.wait()
            return (yield call)

        async with rrpc.aio.connect(aio_address, interceptors=[Around(awaits)]) as client:
            before = len(asyncio.all_tasks())
            call = client.start("Mixed.forever")
            assert len(asyncio.all_tasks()) == before + 1
            gate.set()
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.001)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with rrpc.aio.connect(aio_address) as other:
                await until(lambda: counts_are(other, 0))

    in_loop(main())


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


# What is around such calls


def test_an_interceptor_keeps_its_context_to_its_call(aio_address: str, in_loop: Run[Any]) -> None:
    """What it sets in a ContextVar is there when it goes on, can be taken back, and isn't the caller's."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")

    def named(call: Any) -> Steps:
        token = name.set(f"{name.get()}'s {call.arguments[0]}")
        try:
            yield Sleep(0.001)
            yield asyncio.sleep(0)
            return f"{name.get()}: {(yield call)}"
        finally:
            name.reset(token)

    async def main() -> None:
        async with rrpc.aio.connect(aio_address, interceptors=[Around(named)]) as client:
            name.set("caller")
            found = await asyncio.gather(*(client.call("Mixed.echo_later", text) for text in "ab"))
            assert found == ["caller's a: a", "caller's b: b"]
            assert name.get() == "caller"

    in_loop(main())


@pytest.mark.parametrize("where", ["awaiting", "sleeping", "connecting", "calling"])
def test_cancelling_reaches_the_interceptors_wherever_they_are(
    aio_address: str, in_loop: Run[Any], where: str
) -> None:
    ended: list[BaseException] = []

    def watch(call: Any) -> Steps:
        try:
            if where == "awaiting":
                yield asyncio.Event().wait()
            elif where == "sleeping":
                yield Sleep(3600)
            return (yield call)
        except BaseException as error:
            ended.append(error)
            raise

    async def main() -> None:
        target = "tcp://127.0.0.1:1" if where == "connecting" else aio_address
        client = rrpc.aio.Client(target, wait_for_ready=True, interceptors=[Around(watch)])
        future = client.start("Mixed.forever")
        async with rrpc.aio.connect(aio_address) as other:
            await until(lambda: counts_are(other, int(where == "calling")))
            assert future.cancel()
            with pytest.raises(asyncio.CancelledError):
                await future
            await until(lambda: _is(lambda: bool(ended)))
            assert [type(error) for error in ended] == [asyncio.CancelledError]
            await until(lambda: counts_are(other, 0))
        await client.close()

    in_loop(main())


def test_an_interceptor_may_give_up_its_own_call(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        futures: list[asyncio.Future[Any]] = []
        ended: list[BaseException] = []

        def gives_up(call: Any) -> Steps:
            yield asyncio.sleep(0)
            futures[0].cancel()
            try:
                return (yield call)
            except BaseException as error:
                ended.append(error)
                raise

        async with rrpc.aio.connect(aio_address, interceptors=[Around(gives_up)]) as client:
            futures.append(client.start("Mixed.forever"))
            with pytest.raises(asyncio.CancelledError):
                await futures[0]
            await until(lambda: _is(lambda: bool(ended)))
            assert isinstance(ended[0], asyncio.CancelledError)
        async with rrpc.aio.connect(aio_address) as other:
            await until(lambda: counts_are(other, 0))

    in_loop(main())


def test_calls_in_a_handler_end_with_it_and_are_let_go(aio_address: str, in_loop: Run[Any]) -> None:
    """Those by a generated client and by name, begun before the handler's caller gives up, or after that."""
    ended: list[str] = []

    async def main() -> None:
        async with AsyncMixedClient(aio_address) as behind:

            async def hold() -> list[int]:
                for _ in range(100):
                    await behind.echo("x")
                children = rrpc.context()._children
                assert children is not None
                assert not children.calls
                starts: list[Start] = [behind.forever.start, lambda: behind.start("Mixed.forever")]
                calls = [start() for start in starts]
                try:
                    await asyncio.gather(*calls)
                except asyncio.CancelledError:
                    for start in starts:
                        with pytest.raises(rrpc.Cancelled):
                            await start()
                        ended.append("late")
                    await asyncio.wait(calls)
                    ended.extend(["early"] * len(calls))
                    raise
                return []

            async with front(hold) as client:
                call = client.start("Front.go")
                await until(lambda: counts_are(behind, 2))
                call.cancel()
                await until(lambda: counts_are(behind, 0))
                await until(lambda: _is(lambda: ended == ["late", "late", "early", "early"]))
                with pytest.raises(rrpc.DeadlineExceeded):
                    await client.call("Front.go", timeout=patience(0.5))
                await until(lambda: counts_are(behind, 0))

    in_loop(main())


def test_a_generated_clients_calls_inherit_the_handlers_deadline(aio_address: str, in_loop: Run[Any]) -> None:
    async def main() -> None:
        async with AsyncMixedClient(aio_address) as behind:

            async def left() -> list[float]:
                inherited, own = await behind.time_left(), await behind.time_left(timeout=5.0)
                with rrpc.detached():
                    return [inherited, own, await behind.time_left() or -1.0]

            async with front(left) as client:
                inherited, own, detached = await client.call("Front.go", timeout=20.0)
                assert 5 < inherited <= 20
                assert own <= 5
                assert detached == -1.0

    in_loop(main())


def test_a_call_that_is_made_again_inherits_as_before(aio_address: str, in_loop: Run[Any]) -> None:
    """One that the first connection turns out to take no more."""

    class Refused:
        def cancel(self) -> bool:
            return False

        done = cancel

    connection = core = cast(Any, None)

    def refuse(queue: Any, call: Any, *arguments: Any) -> Refused:
        connection.core = core
        error = rrpc.Unavailable("this server drains")
        error.not_executed = True
        asyncio.get_running_loop().call_soon(call.arrived, None, error, context=contextvars.Context())
        return Refused()

    async def main() -> None:
        quick = rrpc.Backoff(initial=0.02)
        async with AsyncMixedClient(aio_address, wait_for_ready=True, backoff=quick) as behind:

            async def hold() -> list[float]:
                nonlocal connection, core
                (connection,) = behind._channel.connections()
                core = connection.core
                behind.forever._bind(connection)
                connection.core = cast(Any, SimpleNamespace(start_in_loop=refuse))
                call = behind.forever.start()
                await until(lambda: counts_are(behind, 1))
                children = rrpc.context()._children
                assert children is not None
                (again,) = cast("set[rrpc.OutgoingCall]", children.calls)
                left = again.time_left()
                call.cancel()
                await until(lambda: counts_are(behind, 0))
                assert left is not None
                return [left, len(children.calls)]

            async with front(hold) as client:
                left, after = await client.call("Front.go", timeout=patience(20.0))
                assert after == 0
                assert 0 < left <= patience(20.0)

    in_loop(main())
