"""A thousand streams of four processes, one of which is stopped meanwhile, one is killed and one is slow."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from flow import FLOW, flow_rpc, held, nothing_left
from processes import ServeFactory, child_environment, eventually, patience, volume

from rrpc.std import StatsClient

MANY = volume(252, 20)  # of each process; a quarter of each kind
PACE_S = 0.01  # of the slow one, for each item of each stream

# All streams are begun and have had an item before "under way" is said, and they wait for a line before they go on.
CLIENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from flow import flow_rpc
address, many, pace, each = sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), 200

async def taken(stream, begun):
    assert await stream.__anext__() == 0
    await begun()
    rest = 0
    async for value in stream:
        await asyncio.sleep(pace)
        rest += value
    assert rest == sum(range(each))

async def sent(stream, begun):
    await stream.send(0)
    await begun()
    for value in range(1, each):
        await asyncio.sleep(pace)
        await stream.send(value)
    assert await stream.finish() == sum(range(each))

async def exchanged(stream, begun):
    total = 0
    for value in range(each):
        await stream.send(value)
        total += value
        assert await stream.__anext__() == total
        await (asyncio.sleep(pace) if value else begun())
    await stream.finish()

async def main():
    loop = asyncio.get_running_loop()
    left, all_begun, go_on = many, asyncio.Event(), asyncio.Event()

    async def begun():
        nonlocal left
        left -= 1
        if not left:
            all_begun.set()
        await go_on.wait()

    async with flow_rpc.AsyncFlowClient(address, timeout=120.0, stream_window_items=16) as client:
        kinds = [
            lambda: taken(client.count(each), begun),
            lambda: taken(client.later(each), begun),
            lambda: sent(client.add_later.open(), begun),
            lambda: exchanged(client.sums_later.open(), begun),
        ]
        tasks = [asyncio.ensure_future(kinds[i % 4]()) for i in range(many)]
        running = asyncio.gather(*tasks)
        await asyncio.wait([running, loop.create_task(all_begun.wait())], return_when=asyncio.FIRST_COMPLETED)
        print("under way", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        go_on.set()
        await running
        print("done", flush=True)

asyncio.run(main())
"""


class Consumer:
    """A process that has its share of the streams."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.signal = process.send_signal

    def says(self, what: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{what}\n"

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def consumer(address: str, pace: float = 0.0) -> Iterator[Consumer]:
    arguments = [str(Path(__file__).parent), address, str(MANY), str(pace)]
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, *arguments],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Consumer(process)
        finally:
            process.kill()


@pytest.mark.slow
def test_a_thousand_streams_of_four_processes(serve: ServeFactory, transport: str) -> None:
    # The one that is stopped stays so for longer than the usual keep-alive bears where the cores are busy.
    args = ["--workers", "4", "--keepalive-timeout", "300"]
    served = serve(FLOW, "Flow", listen=transport, module="flow_service", args=args)
    address = served.address
    with (
        flow_rpc.FlowClient(address, timeout=patience(30)) as client,
        StatsClient(address, timeout=patience(30)) as stats,
        ExitStack() as processes,
        nothing_left(client),
    ):

        def calls() -> int:
            return stats.process().calls_running - 1  # this one

        paces = (0.0, PACE_S, 0.0, 100 * PACE_S)
        quick, slow, stopped, dying = (processes.enter_context(consumer(address, pace)) for pace in paces)
        for each in (quick, slow, stopped, dying):
            each.says("under way")
        assert calls() == 4 * MANY
        assert held(client)["streams"] == 2 * MANY  # those kinds that are counted
        stopped.signal(signal.SIGSTOP)
        given = client.counts()["given"]
        for each in (dying, stopped, slow, quick):
            each.go_on()
        eventually(lambda: client.counts()["given"] > given)
        dying.signal(signal.SIGKILL)
        quick.says("done")
        eventually(lambda: calls() <= 2 * MANY, what="the end of the killed one's calls")
        assert calls() >= MANY, "the stopped one's, and perhaps those of the slow one"
        slow.says("done")
        assert client.add([1]) == 1
        eventually(lambda: calls() == MANY)
        stopped.signal(signal.SIGCONT)
        stopped.says("done")
        eventually(lambda: calls() == 0)
