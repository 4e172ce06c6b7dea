"""Interceptors of asyncio clients around calls with streams."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest
from aio import Run
from flow import flow_rpc

import rrpc
from rrpc.interceptors import Sleep

Steps = Generator[Any, Any, Any]


class Around(rrpc.ClientInterceptor):
    def __init__(self, begin: Callable[[Any], Steps] | None = None) -> None:
        self.begin = begin
        self.seen: list[tuple[str, Any]] = []
        self.ended: list[BaseException | None] = []

    def stream(self, call: Any) -> Steps:
        call.map_sent(lambda item: self._see("sent", item))
        call.map_received(lambda item: self._see("received", item))
        call.on_end(self.ended.append)
        return (yield call) if self.begin is None else (yield from self.begin(call))

    def _see(self, way: str, item: int) -> int:
        self.seen.append((way, item))
        return item + 100


@pytest.fixture(params=["", "_later"])
def later(request: pytest.FixtureRequest) -> str:
    """What the names of plain, and of async, handlers end with."""
    return str(request.param)


def test_items(in_loop: Run[None], flow_address: str, later: str) -> None:
    around = Around()

    async def main() -> None:
        async with flow_rpc.AsyncFlowClient(flow_address, timeout=30.0, interceptors=[around]) as client:
            count = client.later if later else client.count
            add, sums = getattr(client, f"add{later}"), getattr(client, f"sums{later}")
            assert [item async for item in count(2)] == [100, 101]
            assert await add([1, 2]) == 203
            async with sums.open() as stream:
                await stream.send(5)
                assert await stream.__anext__() == 205
                await stream.finish()
                assert [item async for item in stream] == []

    in_loop(main())
    assert around.seen == [
        *[("received", 0), ("received", 1)],
        *[("sent", 1), ("sent", 2)],
        *[("sent", 5), ("received", 105)],
    ]
    assert around.ended == [None, None, None]


def test_how_they_end(in_loop: Run[None], flow_address: str) -> None:
    around = Around()

    async def main() -> None:
        async with flow_rpc.AsyncFlowClient(flow_address, timeout=30.0, interceptors=[around]) as client:
            with pytest.raises(rrpc.NotFound):
                [item async for item in client.count(3, fail=True)]
            async with client.count(1 << 40) as stream:
                await stream.__anext__()

    in_loop(main())
    assert [type(error) for error in around.ended] == [rrpc.NotFound, rrpc.Cancelled]


def test_waiting_before_the_call(in_loop: Run[None], flow_address: str) -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return "token"

    def wait(call: Any) -> Steps:
        yield Sleep(0.001)
        call.metadata["token"] = yield token()
        return (yield call)

    async def main() -> None:
        around = Around(wait)
        async with flow_rpc.AsyncFlowClient(flow_address, timeout=30.0, interceptors=[around]) as client:
            assert [item async for item in client.count(2)] == [100, 101]
            assert await client.add([1]) == 101

    in_loop(main())


def test_what_is_awaited_ends_with_the_call(in_loop: Run[None], flow_address: str) -> None:
    """Around unary calls too."""
    calls: list[Any] = []
    ended: list[BaseException] = []

    class Waits(rrpc.ClientInterceptor):
        def unary(self, call: Any) -> Steps:
            calls.append(call)
            try:
                yield asyncio.sleep(3600)
            except BaseException as error:
                ended.append(error)
                raise
            return (yield call)

        stream = unary

    async def main() -> None:
        async with flow_rpc.AsyncFlowClient(flow_address, interceptors=[Waits()]) as client:

            async def count(timeout: float | None) -> list[int]:
                return [item async for item in client.count(3, timeout=timeout)]

            for make in (client.counts, lambda timeout: client.add([1], timeout=timeout), count):
                with pytest.raises(rrpc.DeadlineExceeded) as late:
                    await make(timeout=0.05)
                task = asyncio.ensure_future(make(timeout=None))
                begun = len(calls)
                while len(calls) == begun:
                    await asyncio.sleep(0)
                await asyncio.to_thread(calls[-1].cancel)
                with pytest.raises(rrpc.Cancelled) as cancelled:
                    await task
                assert ended == [late.value, cancelled.value]
                assert late.value.not_executed
                assert cancelled.value.not_executed
                ended.clear()
                task = asyncio.ensure_future(make(timeout=None))
                while len(calls) == begun + 1:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                while not ended:
                    await asyncio.sleep(0)
                assert [type(error) for error in ended] == [asyncio.CancelledError]
                ended.clear()

    in_loop(main())


@pytest.mark.parametrize("error", [TimeoutError("mine"), rrpc.DeadlineExceeded("mine"), ValueError("mine")])
def test_what_is_awaited_may_fail(in_loop: Run[None], flow_address: str, error: Exception) -> None:
    async def fails() -> None:
        raise error

    def wait(call: Any) -> Steps:
        yield fails()

    async def main() -> None:
        around = Around(wait)
        async with flow_rpc.AsyncFlowClient(flow_address, timeout=30.0, interceptors=[around]) as client:
            with pytest.raises(type(error), match="mine"):
                await client.add([1])

    in_loop(main())


def test_calls_that_dont_begin(in_loop: Run[None], flow_address: str) -> None:
    def refuse(call: Any) -> Steps:
        if call.method.startswith("Flow."):
            raise rrpc.ResourceExhausted("not today")
        return (yield call)

    def refuse_later(call: Any) -> Steps:
        yield Sleep(0.001)
        raise rrpc.ResourceExhausted("not today")

    def other(call: Any) -> Steps:
        yield call
        return [1, 2]

    def never(call: Any) -> Steps:
        yield Sleep(3600)

    async def main() -> None:
        for begin, error, options in (
            (refuse, rrpc.ResourceExhausted, {}),
            (refuse_later, rrpc.ResourceExhausted, {}),
            (other, TypeError, {}),
            (never, rrpc.DeadlineExceeded, {"timeout": 0.02}),
        ):
            around = Around(begin)
            given: dict[str, Any] = {"timeout": 30.0, "interceptors": [around], **options}
            async with flow_rpc.AsyncFlowClient(flow_address, **given) as client:
                with pytest.raises(error):
                    [item async for item in client.count(3)]
                with pytest.raises(error):
                    await client.add([1])
            assert len(around.ended) == 2
            if begin is not other:  # where a call had begun, which was given up
                assert [type(end) for end in around.ended] == [error, error]

    in_loop(main())


def test_a_cancelled_task_ends_it(in_loop: Run[None], flow_address: str) -> None:
    begun: list[bool] = []

    def never(call: Any) -> Steps:
        begun.append(True)
        yield Sleep(3600)

    async def main() -> None:
        around = Around(never)
        async with flow_rpc.AsyncFlowClient(flow_address, timeout=30.0, interceptors=[around]) as client:
            task = asyncio.ensure_future(client.add([1]))
            while not begun:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while not around.ended:
                await asyncio.sleep(0)

    in_loop(main())
