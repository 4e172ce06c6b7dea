"""What an observer of a server is shown of each call."""

import queue
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from processes import eventually

import rrpc
from rrpc.observe import ServedCall


@rrpc.service
class Watched:
    @rrpc.method
    def half(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[::2].copy()

    @rrpc.method
    def lend(self, values: NDArray[np.float64]) -> rrpc.Borrowed[NDArray[np.float64]]:
        return rrpc.snapshot(values)

    @rrpc.method
    def add(self, a: int, *, b: int = 1) -> int:
        return a + b

    @rrpc.method
    def slow(self, seconds: float) -> None:
        time.sleep(seconds)

    @rrpc.method
    def fail(self, how: str) -> None:
        raise rrpc.NotFound(how) if how == "found" else ValueError(how)

    @rrpc.method
    def early(self) -> None:
        rrpc.context().send_initial_metadata({"a": "b"})

    @rrpc.method
    def count(self, until: int) -> Iterator[int]:
        yield from range(until)

    @rrpc.method
    def running(self, values: Iterator[NDArray[np.float64]]) -> Iterator[float]:
        for one in values:
            yield float(one.sum())


class AsyncWatched(Watched):
    """The same with async handlers of streams."""

    async def count(self, until: int) -> AsyncIterator[int]:  # type: ignore[override]
        for number in range(until):
            yield number

    async def running(self, values: AsyncIterator[NDArray[np.float64]]) -> AsyncIterator[float]:  # type: ignore[override]
        async for one in values:
            yield float(one.sum())


@pytest.fixture
def seen() -> "queue.Queue[ServedCall]":
    return queue.Queue()


def one(seen: "queue.Queue[ServedCall]") -> ServedCall:
    return seen.get(timeout=10)


def test_each_call_is_shown_once(seen: "queue.Queue[ServedCall]", address: str) -> None:
    with rrpc.serve(Watched(), listen=address, observer=seen.put) as server:
        with rrpc.connect(server.addresses[0], timeout=20.0) as client:
            client.call("Watched.add", 3, b=4)
            call = one(seen)
            assert (call.method, call.known, call.code) == ("Watched.add", True, 0)
            assert (call.request_bytes_read, call.reply_bytes, call.reply_bytes_lifted) == (0, 1, 0)
            assert 0 < call.request_bytes < 100
            assert call.peer

            client.call("Watched.half", np.zeros(100_000))
            call = one(seen)
            assert (call.request_bytes_read, call.reply_bytes_lifted) == (800_000, 400_000)
            assert call.fetch_ns + call.queue_ns > 0

            client.call("Watched.half", np.zeros(100_000), out=np.empty(50_000))
            assert one(seen).reply_bytes_lifted == 400_000

            client.call("Watched.lend", np.zeros(100_000), borrow=True)
            assert one(seen).reply_bytes_lifted == 800_000

            for method, arguments, known, code, status in (
                ("Watched.fail", ["found"], True, 5, "NOT_FOUND"),
                ("Watched.fail", ["x"], True, 2, "UNKNOWN"),
                ("Watched.add", ["x"], True, 3, "INVALID_ARGUMENT"),
                ("Watched.none", [], False, 12, "UNIMPLEMENTED"),
                ("", [], False, 12, "UNIMPLEMENTED"),
            ):
                with pytest.raises(rrpc.RpcError):
                    client.call(method, *arguments)
                call = one(seen)
                assert (call.method, call.known, call.code) == (method, known, code)
                assert call.status == status
        assert seen.empty()


@pytest.mark.parametrize("observed", [True, False])
def test_a_handler_is_told_the_same_with_an_observer(observed: bool) -> None:
    observer = (lambda call: None) if observed else None
    with (
        rrpc.serve(Watched(), listen="tcp://127.0.0.1:0", observer=observer) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
        pytest.raises(rrpc.FailedPrecondition),
    ):
        client.call("Watched.early")


@pytest.mark.parametrize("kind", [Watched, AsyncWatched])
def test_streams(seen: "queue.Queue[ServedCall]", address: str, kind: type[Watched]) -> None:
    with rrpc.serve(kind(), listen=address, observer=seen.put) as server:
        with rrpc.connect(server.addresses[0], timeout=20.0) as client:
            assert list(rrpc.open_stream(client, "Watched.count", 20)) == list(range(20))
            call = one(seen)
            assert (call.method, call.known, call.code) == ("Watched.count", True, 0)
            assert (call.items_received, call.items_sent) == (0, 20)
            assert call.peer

            with rrpc.open_stream(client, "Watched.running", sends=True) as stream:
                for _ in range(3):
                    stream.send(np.ones(10_000))
                stream.finish()
                assert list(stream) == [10_000.0] * 3
            call = one(seen)
            assert (call.items_received, call.items_sent, call.code) == (3, 3, 0)
            assert call.request_bytes_read == 240_000

            with pytest.raises(rrpc.Unimplemented):
                list(rrpc.open_stream(client, "Watched.none"))
            call = one(seen)
            assert (call.known, call.code, call.items_sent) == (False, 12, 0)
        assert seen.empty()


def test_a_parked_stream_that_a_stop_ends(seen: "queue.Queue[ServedCall]", address: str) -> None:
    with (
        rrpc.serve(Watched(), listen=address, observer=seen.put) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        stream = rrpc.open_stream(client, "Watched.count", 1 << 40)
        assert next(stream) == 0
        eventually(lambda: not server.running())
        server.stop()
        call = one(seen)
        assert (call.method, call.code) == ("Watched.count", rrpc.StatusCode.CANCELLED)
        assert call.items_sent > 0
        assert call.handler_ns > 0
        assert seen.empty()
        with pytest.raises(rrpc.Unavailable):
            list(stream)


@pytest.mark.parametrize("kind", [Watched, AsyncWatched])
def test_nothing_is_kept_of_calls_that_have_ended(
    seen: "queue.Queue[ServedCall]", kind: type[Watched]
) -> None:
    with rrpc.serve(kind(), listen="tcp://127.0.0.1:0", observer=seen.put) as server:
        core = server._streams.core if server.async_handlers is None else server.async_handlers.tasks.core  # type: ignore[attr-defined]
        with rrpc.connect(server.addresses[0], timeout=20.0) as client:
            for method in ("Watched.fail", "Watched.none"):
                with pytest.raises(rrpc.RpcError):
                    client.call(method, "found")
            assert client.call("Watched.add", 1) == 2
            with rrpc.open_stream(client, "Watched.count", 1 << 40) as stream:  # given up
                assert next(stream) == 0
                eventually(lambda: len(core._calls) == 1)  # a record ends once the reply is on its way
            with pytest.raises(rrpc.DeadlineExceeded):
                client.call("Watched.slow", 0.1, timeout=0.01)
            ended = {one(seen).method for _ in range(5)}
        assert ended == {f"Watched.{name}" for name in ("fail", "none", "add", "count", "slow")}
        assert not core._calls


def test_times(seen: "queue.Queue[ServedCall]") -> None:
    """One worker: the second call waits while the first runs."""
    with (
        rrpc.serve(Watched(), listen="tcp://127.0.0.1:0", workers=1, observer=seen.put) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        calls = [client.start("Watched.slow", 0.1) for _ in range(2)]
        for call in calls:
            call.result()
        first, second = one(seen), one(seen)
    assert 0.1e9 <= first.handler_ns < 1e9
    assert 0.1e9 <= second.handler_ns < 1e9
    assert first.queue_ns < second.queue_ns < 1e9
    assert second.queue_ns > 0.08e9
    assert second.total_ns == second.fetch_ns + second.queue_ns + second.handler_ns


def test_an_observer_that_raises_harms_no_call(caplog: pytest.LogCaptureFixture) -> None:
    def broken(call: ServedCall) -> None:
        raise ZeroDivisionError

    with (
        rrpc.serve(Watched(), listen="tcp://127.0.0.1:0", observer=broken) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        assert [client.call("Watched.add", n) for n in range(3)] == [1, 2, 3]
        eventually(lambda: sum("the observer raised" in r.message for r in caplog.records) == 3)


def test_waits_for_credits_are_counted(transport: str, address: str) -> None:
    """More calls at once than the server has receives for: some wait for credits, and are counted."""
    options: dict[str, Any] = {"slots": 16}
    with (
        rrpc.serve(Watched(), listen=address, workers=1, **options) as server,
        rrpc.connect(server.addresses[0], timeout=20.0, **options) as client,
    ):
        assert client.call("Watched.add", 1) == 2
        assert client.stats()["credit_waits"] == 0
        calls = [client.start("Watched.add", n) for n in range(200)]
        assert [call.result() for call in calls] == [n + 1 for n in range(200)]
        waits = client.stats()["credit_waits"]
        assert 0 < waits < 200
        assert rrpc.stats()["credit_waits"] >= waits
