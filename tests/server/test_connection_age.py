"""Connections that a server's clients are told to leave: by their age, or to spread over more servers."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from processes import eventually, patience, run_serve

import rrpc
from rrpc.cli.serving.newcomers import Newcomers

QUICK = rrpc.Backoff(initial=0.01, maximum=0.05)  # a connection younger than this is one that failed
AGE = 0.2


@rrpc.service
class Doors:
    """A handler that waits, and counts that don't."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.opened = threading.Event()

    @rrpc.method
    def quick(self) -> int:
        return 7

    @rrpc.method
    def held(self) -> int:
        self.waiting.set()
        self.opened.wait(patience(60))
        return 8

    @rrpc.method
    def items(self) -> Iterator[int]:
        yield 1
        self.held()
        yield 2


def channel_to(server: rrpc.Server) -> rrpc.Channel:
    return rrpc.Channel(server.addresses[0], backoff=QUICK)


def the_connection(channel: rrpc.Channel) -> object:
    (connection,) = channel.connections()
    return connection


def test_a_client_connects_again_and_no_call_fails(address: str) -> None:
    with rrpc.serve(Doors(), listen=address, max_connection_age=AGE) as server, channel_to(server) as channel:
        client = rrpc.Client(channel, timeout=patience(20), wait_for_ready=True)
        seen = set()

        def three() -> bool:
            assert client.call("Doors.quick") == 7
            seen.add(the_connection(channel))
            return len(seen) == 3

        eventually(three)


@pytest.mark.parametrize("method", ["held", "items"])
def test_calls_under_way_go_on(address: str, method: str) -> None:
    doors = Doors()
    with rrpc.serve(doors, listen=address, max_connection_age=AGE) as server, channel_to(server) as channel:
        client = rrpc.Client(channel, timeout=patience(60), wait_for_ready=True)
        if method == "held":
            held = client.start("Doors.held")
        else:
            items = rrpc.open_stream(client, "Doors.items", sends=False)
            assert next(items) == 1
        eventually(doors.waiting.is_set)
        first = the_connection(channel)
        eventually(lambda: client.call("Doors.quick") == 7 and the_connection(channel) is not first)
        doors.opened.set()
        if method == "held":
            assert held.result() == 8
        else:
            assert list(items) == [2]


def test_the_grace_ends_calls_that_take_longer(address: str) -> None:
    doors = Doors()
    limits: dict[str, Any] = {"max_connection_age": AGE, "max_connection_age_grace": 0.1}
    with rrpc.serve(doors, listen=address, **limits) as server, channel_to(server) as channel:
        client = rrpc.Client(channel, timeout=patience(60), wait_for_ready=True)
        try:
            with pytest.raises(rrpc.Unavailable, match="max_connection_age_grace") as raised:
                client.call("Doors.held")
            assert not raised.value.not_executed
            assert client.call("Doors.quick") == 7
        finally:
            doors.opened.set()


def test_the_oldest_clients_are_sent_away(address: str) -> None:
    with rrpc.serve(Doors(), listen=address) as server, ExitStack() as stack:
        channels = [stack.enter_context(channel_to(server)) for _ in range(5)]
        for channel in channels:
            channel.connect()
        first = [channel.connections()[0] for channel in channels]
        assert server.send_away(2) == 2
        eventually(lambda: [one.usable() for one in first] == [False, False, True, True, True])
        assert server.send_away(1) == 1  # of those that weren't told yet
        eventually(lambda: [one.usable() for one in first] == [False, False, False, True, True])
        assert {rrpc.Client(channel, wait_for_ready=True).call("Doors.quick") for channel in channels} == {7}
        now = [channel.connections()[0] for channel in channels]
        assert [a is b for a, b in zip(first, now, strict=True)] == [False, False, False, True, True]


class Counting:
    """As much of a supervised process as newcomers look at."""

    addresses = ("shm://x",)

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.connections: int | None = None
        self.sent_away = 0

    def tell(self, word: str, **facts: int) -> None:
        if word == "connections":
            self.connections = self.clients
        else:
            self.sent_away += facts["count"]


@pytest.mark.parametrize(
    ("clients", "sent_away"),
    [
        ([8, 0], [4, 0]),
        ([3, 3, 2, 0], [1, 1, 0, 0]),  # fewer clients than processes
        ([7, 7, 7, 7, 7, 7, 7, 0], [1, 1, 1, 1, 1, 1, 0, 0]),
        ([100, 2, 0], [34, 0, 0]),  # only of who has more than its share
        ([1, 1, 1, 0], [0, 0, 0, 0]),
        ([0, 0], [0, 0]),
    ],
)
def test_what_a_new_process_lacks_is_sent_away(clients: list[int], sent_away: list[int]) -> None:
    processes: Any = [Counting(count) for count in clients]
    newcomers = Newcomers()
    newcomers.add(processes[-1], processes)
    assert newcomers.first(processes) == processes[-1:]
    newcomers.spread(processes)  # nobody has counted yet
    newcomers.tend(time.monotonic(), processes)
    for _ in range(2):  # clients are sent away once
        newcomers.first(processes)
        newcomers.spread(processes)
        assert [process.sent_away for process in processes] == sent_away
    for process, count in zip(processes, sent_away, strict=True):
        process.connections -= count
    processes[-1].connections += sum(sent_away)
    assert newcomers.first(processes) == processes


@pytest.mark.parametrize("age", [0.0, -1.0, float("nan")])
def test_an_age_is_more_than_nothing(age: float) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="max_connection_age must be"):
        rrpc.Server(Doors(), max_connection_age=age)


@pytest.mark.slow
def test_the_flags() -> None:
    shown = run_serve(
        "--print-config", "--max-connection-age", "90", "--max-connection-age-grace", "5"
    ).stdout
    assert "max-connection-age = 90" in shown
    assert "max-connection-age-grace = 5" in shown
