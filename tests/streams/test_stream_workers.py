"""Handlers that wait for their client's items: they leave the workers to others, and no client gets all of them."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from flow import FLOW, flow_rpc
from processes import ServeFactory, eventually, patience
from raw_peer import CALL, RawPeer, message, request

import rrpc
from rrpc._server import worker_pool as workers
from rrpc.std import StatsClient

CLIENT_STREAMS = 2


def open_empty_streams(peer: RawPeer, count: int) -> None:
    for call_id in range(1, count + 1):
        peer.send(message(CALL, request(call_id, "Flow.add", flags=CLIENT_STREAMS)))


def test_empty_streams_of_a_stranger_leave_the_workers_to_others(serve: ServeFactory) -> None:
    served = serve(FLOW, "Flow", listen="tcp", module="flow_service", args=["--workers", "4"])
    with (
        flow_rpc.FlowClient(served.address, timeout=patience(30)) as client,
        StatsClient(served.address) as stats,
    ):
        peer = RawPeer(served.address, window=b"1024,8388608")
        open_empty_streams(peer, 12)
        eventually(lambda: stats.process().calls_running >= 12, patience(20))
        for n in range(20):
            assert client.add([1, n]) == 1 + n
            assert list(client.count(3)) == [0, 1, 2]
            assert list(client.sums(iter([1, 2, 3]))) == [1, 3, 6]
        peer.close()
        assert client.add([4, 5]) == 9


@rrpc.service
class Line:
    """Handlers that would notice another at work at the same time."""

    def __init__(self) -> None:
        self.at_work = 0
        self.most = 0
        self.begun = 0

    def _work(self) -> None:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        done = threading.Event()
        done.wait(0.001)
        self.at_work -= 1

    @rrpc.method
    def add(self, values: Iterator[int]) -> int:
        self.begun += 1
        total = 0
        for value in values:
            self._work()
            total += value
        return total

    @rrpc.method
    def sums(self, values: Iterator[int]) -> Iterator[int]:
        self.begun += 1
        total = 0
        for value in values:
            self._work()
            total += value
            yield total

    @rrpc.method
    def plain(self) -> int:
        self._work()
        return 1


def opened(client: rrpc.Client, stack: ExitStack, method: str = "Line.add") -> Any:
    receives = method == "Line.sums"
    return stack.enter_context(rrpc.open_stream(client, method, sends=True, receives=receives))


def test_waiting_handlers_go_on_and_no_more_run_than_workers(address: str) -> None:
    line = Line()
    with (
        rrpc.serve(line, listen=address, workers=1) as server,
        rrpc.connect(server.addresses[0], timeout=patience(60)) as client,
        ExitStack() as stack,
    ):
        adding = [opened(client, stack) for _ in range(8)]
        eventually(lambda: line.begun == 8, patience(20))  # each holds the one worker until it waits
        summing = [opened(client, stack, "Line.sums") for _ in range(4)]
        eventually(lambda: line.begun == 12, patience(20))
        for value in range(20):
            for stream in adding + summing:
                stream.send(value)
            assert client.call("Line.plain") == 1
        for stream in summing:
            stream.finish()
            assert list(stream)[-1] == sum(range(20))
        assert [stream.finish() for stream in adding] == [sum(range(20))] * 8
        assert line.most == 1


def test_a_client_has_a_share_of_the_handlers_that_take_streams(address: str) -> None:
    line = Line()
    with (
        rrpc.serve(line, listen=address, workers=2, stream_handlers_max=8) as server,
        rrpc.connect(server.addresses[0], timeout=patience(60)) as greedy,
        rrpc.connect(server.addresses[0], timeout=patience(60)) as other,
        ExitStack() as stack,
    ):
        mine = [opened(greedy, stack) for _ in range(5)]
        eventually(lambda: line.begun == 2, patience(20))
        theirs = opened(other, stack)
        eventually(lambda: line.begun == 3, patience(20))
        assert server.stats()["calls_waiting"] == 3  # those of the greedy one
        assert greedy.call("Line.plain") == 1  # passes them by
        theirs.send(3)
        assert theirs.finish() == 3
        assert line.begun == 3
        for number, stream in enumerate(mine):
            stream.send(number)
            assert stream.finish() == number
        assert line.begun == 6
        assert server.stats()["calls_waiting"] == 0


def test_a_server_stops_while_handlers_wait(address: str) -> None:
    line = Line()
    with rrpc.serve(line, listen=address, workers=2) as server, ExitStack() as stack:
        client = stack.enter_context(rrpc.connect(server.addresses[0], timeout=patience(60)))
        streams = [opened(client, stack) for _ in range(6)]
        eventually(lambda: line.begun == 6, patience(20))
        assert server.stop(patience(20))
        for stream in streams:
            with pytest.raises(rrpc.RpcError):
                stream.finish()


def test_spare_threads_end_when_nothing_is_left_to_do(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SPARE_IDLE_S", 0.01)

    def threads() -> int:
        return sum(thread.name.startswith(("rrpc-worker", "rrpc-spare")) for thread in threading.enumerate())

    line = Line()
    before = threads()
    with (
        rrpc.serve(line, listen=address, workers=2) as server,
        rrpc.connect(server.addresses[0], timeout=patience(60)) as client,
        ExitStack() as stack,
    ):
        streams = [opened(client, stack) for _ in range(6)]
        eventually(lambda: line.begun == 6, patience(20))
        eventually(lambda: threads() == before + 8, patience(20))
        for stream in streams:
            assert stream.finish() == 0
        eventually(lambda: threads() == before + 2, patience(20))
        assert client.call("Line.plain") == 1
