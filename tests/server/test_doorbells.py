"""Replies that are ready wait for no handler that runs long, however many calls are in flight."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flow import generated

import rrpc

PATIENCE = 60.0


@rrpc.service
class Desk:
    """Serves a method that is quick until it is told to wait, and others that always wait."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    @rrpc.method
    def echo(self, number: int) -> int:
        if number < 0:
            self.go_on.wait(PATIENCE)
        return number

    @rrpc.method
    def hold(self) -> None:
        self.go_on.wait(PATIENCE)

    @rrpc.method
    def fail(self) -> None:
        self.go_on.wait(PATIENCE)
        raise rrpc.NotFound("nothing")

    @rrpc.method
    def items(self) -> Iterator[int]:
        self.go_on.wait(PATIENCE)
        yield 1


desk_rpc = generated(Desk, "doorbell_desk_rpc")


@pytest.fixture(name="desk")
def desk_fixture() -> Desk:
    return Desk()


@pytest.fixture(name="client", params=["tcp", "rrpc"])
def client_fixture(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Connects to a server with one worker, the thread that holds replies back."""
    with (
        rrpc.serve(desk, listen=f"{request.param}://127.0.0.1:0", workers=1) as server,
        desk_rpc.DeskClient(server.addresses[0]) as client,
    ):
        yield client
        desk.go_on.set()


def in_flight(client: Any, count: int) -> list["rrpc.Future[int]"]:
    """Starts ``count`` calls after the server has learned that the method is quick."""
    for _ in range(50):
        for future in [client.echo.start(number) for number in range(40)]:
            future.result(PATIENCE)
    return [client.echo.start(number) for number in range(count)]


@pytest.mark.parametrize("slow", ["hold", "fail", "echo", "items"])
def test_a_reply_waits_for_no_handler_that_runs_long(client: Any, desk: Desk, slow: str) -> None:
    quick = in_flight(client, 30)
    if slow == "items":
        stream = client.items()
    else:
        blocked = getattr(client, slow).start(*([-1] if slow == "echo" else []))
    late = [client.echo.start(number) for number in range(30)]
    assert [future.result(PATIENCE) for future in quick] == list(range(30))
    assert not desk.go_on.is_set()
    desk.go_on.set()
    assert [future.result(PATIENCE) for future in late] == list(range(30))
    if slow == "items":
        assert list(stream) == [1]
    elif slow == "fail":
        with pytest.raises(rrpc.NotFound):
            blocked.result(PATIENCE)
    else:
        assert blocked.result(PATIENCE) == (-1 if slow == "echo" else None)


def test_a_request_waits_for_no_caller_that_stays_away(client: Any) -> None:
    """Learns of the replies by callbacks alone, so that no caller polls."""
    for _ in range(20):
        futures = in_flight(client, 40)
        ended = threading.Semaphore(0)
        for future in futures:
            future.add_done_callback(lambda _: ended.release())  # noqa: B023
        for _ in futures:
            assert ended.acquire(timeout=PATIENCE)


def test_many_threads_with_many_calls_each(client: Any) -> None:
    wrong: list[int] = []

    def work(first: int) -> None:
        for base in range(first, first + 2000, 20):
            futures = [client.echo.start(number) for number in range(base, base + 20)]
            wrong.extend(n for n, f in enumerate(futures, base) if f.result(PATIENCE) != n)

    threads = [threading.Thread(target=work, args=(10_000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
