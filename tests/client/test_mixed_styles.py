"""Blocking clients in coroutines, and streams of one style used as those of the other: what is said then."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from flow import flow_rpc
from processes import child_environment

import rrpc

SAID = "blocks, and was called in a coroutine"


def test_blocking_streams_in_coroutines(flow: Any, flow_address: str) -> None:
    items, values = flow.count(3), flow.add.open()

    async def main() -> None:
        with pytest.raises(RuntimeError, match=SAID):
            flow.count(3)
        with pytest.raises(RuntimeError, match=SAID):
            flow.add([1])
        with pytest.raises(RuntimeError, match=SAID):
            flow.sums([1])
        with pytest.raises(RuntimeError, match=SAID):
            flow.add.open()
        with pytest.raises(RuntimeError, match=SAID):
            flow.sums.open()
        with pytest.raises(RuntimeError, match=SAID):
            rrpc.open_stream(flow, "Flow.count", 3)
        with pytest.raises(RuntimeError, match=SAID):
            next(items)
        with pytest.raises(RuntimeError, match=SAID):
            list(items)
        with pytest.raises(RuntimeError, match=SAID):
            values.send(1)
        with pytest.raises(RuntimeError, match=SAID):
            values.finish()
        with pytest.raises(RuntimeError, match=SAID):
            rrpc.connect(flow_address)
        with pytest.raises(RuntimeError, match=SAID):
            flow_rpc.FlowClient(flow_address)
        flow_rpc.FlowClient(flow_address, lazy=True).close()

    asyncio.run(main())
    assert list(items) == [0, 1, 2]
    values.send(1)
    assert values.finish() == 1


def test_futures_in_coroutines(flow: Any) -> None:
    async def main() -> None:
        future = flow.start("Flow.waits_to_go_on")
        for wait in (future.result, future.exception):
            with pytest.raises(RuntimeError, match=r"await asyncio\.wrap_future"):
                wait()
        with pytest.raises(TimeoutError):
            future.result(0)
        flow.start("Flow.go_on")
        await asyncio.wrap_future(future)
        assert future.result() is None

    asyncio.run(main())


def test_by_name_in_either_style(flow: Any, flow_address: str) -> None:
    async def main() -> None:
        async with rrpc.aio.connect(flow_address, timeout=30.0) as client:
            assert [i async for i in rrpc.aio.open_stream(client, "Flow.count", 3)] == [0, 1, 2]
            async with rrpc.aio.open_stream(client, "Flow.add", sends=True, receives=False) as values:
                await values.send(4)
                assert await values.finish() == 4
            both = rrpc.aio.open_stream(client, "Flow.sums", sends=True)
            await both.send(5)
            assert await both.__anext__() == 5
            both.close()
            with pytest.raises(TypeError, match=r"rrpc\.aio\.open_stream\(\) is for"):
                rrpc.open_stream(client, "Flow.count", 3)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"rrpc\.open_stream\(\) is for blocking"):
                rrpc.aio.open_stream(flow, "Flow.count", 3)

    asyncio.run(main())


def test_streams_of_the_other_style(flow: Any, flow_address: str) -> None:
    stream: Any = flow.count(3)

    async def main() -> None:
        with pytest.raises(TypeError, match="this stream is a blocking client's"):
            async for _ in stream:
                pass
        with pytest.raises(TypeError, match="this stream is a blocking client's"):
            async with stream:
                pass
        with pytest.raises(TypeError, match="this stream is a blocking client's"):
            await stream
        with pytest.raises(TypeError, match="FlowClient blocks"):
            async with flow:
                pass
        async with flow_rpc.AsyncFlowClient(flow_address) as client:
            other = client.count(3)
            with pytest.raises(TypeError, match="this stream is an asyncio client's"):
                list(other)
            with pytest.raises(TypeError, match="this stream is an asyncio client's"), other:
                pass
            other.close()

    asyncio.run(main())
    stream.close()


LATE = """
import sys
import rrpc
class Once(rrpc.UnaryMethod[str]):
    rpc_name = "Counted.once"
    def __call__(self, key: str, *, timeout: float | None = None) -> str:
        return self._call((key,), timeout)
class CountedClient(rrpc.Client):
    once = rrpc.stub(Once)
client = CountedClient(sys.argv[1], lazy=True)
client.once
assert "asyncio" not in sys.modules
import asyncio
async def main():
    client.once("x")
try:
    asyncio.run(main())
except RuntimeError as error:
    print(error)
"""


def test_asyncio_that_is_imported_after_the_first_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, "tcp://127.0.0.1:1"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "was called in a coroutine" in done.stdout
