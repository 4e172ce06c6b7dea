"""Callers and servers that are slow to say which interface they have, or never do: whoever asks goes on in time."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from processes import eventually, patience
from two_versions import CLIENTS, NEW, OTHER, make_module

import rrpc
import rrpc.aio
from rrpc.schema import service_of, to_data

UNKNOWN = "0" * 32  # no server has this fingerprint, so the description is asked for
SERVICES = {
    name: make_module(f"silent_{name}", text).Rows for name, text in {"new": NEW, "other": OTHER}.items()
}


class _Heard(rrpc.UnaryMethod[str]):
    rpc_name = "Desk.heard"

    def __call__(self, text: str) -> str:
        return self._call((text,), None)


class DeskClient(rrpc.Client):
    rpc_fingerprints: ClassVar = {"Desk": UNKNOWN}
    heard = rrpc.stub(_Heard)


@rrpc.service
class Asking:
    """Has handlers that call their callers."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    @rrpc.method
    def ask(self) -> None:
        client = rrpc.context().client(DeskClient)
        try:
            client.heard("x")
        except rrpc.RpcError as error:
            self.ended.append(f"{type(error).__name__}: {error}")

    @rrpc.method
    async def find(self, prefix: str) -> str:
        rows: str = await rrpc.context().client(CLIENTS["old"].AsyncRowsClient).find(prefix)
        return rows

    @rrpc.method
    async def ping(self) -> str:
        return "pong"


@rrpc.service(name="rrpc.Reflection")
class Slow:
    """Describes ``lab.Rows`` as ``described`` has it, once it is let go on."""

    def __init__(self, described: str = "new") -> None:
        self.asked = threading.Semaphore(0)
        self.over = threading.Event()
        self.times = 0
        self._described = described

    @rrpc.method
    def describe(self, service: str) -> dict[str, Any]:
        self.times += 1
        self.asked.release()
        self.over.wait(patience(60))
        return {"version": 1, "service": to_data(service_of(SERVICES[self._described]))}


@pytest.fixture
def slow() -> Iterator[Slow]:
    service = Slow()
    yield service
    service.over.set()


def _asked(slow: Slow) -> bool:
    return slow.asked.acquire(timeout=patience(20))


@pytest.mark.parametrize("timeout", [0.5, None])
def test_a_caller_that_never_describes_itself(
    slow: Slow, timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if timeout is None:
        monkeypatch.setattr("rrpc._channel.peer_channel._AGREE_SECONDS", 0.5)
    service = Asking()
    with (
        rrpc.serve(service, listen="tcp://127.0.0.1:0", workers=2) as server,
        rrpc.Server(slow, builtin=False) as mine,
        rrpc.connect(server.addresses[0], serve=mine) as client,
    ):
        call = client.start("Asking.ask", timeout=timeout)
        assert _asked(slow)
        eventually(lambda: len(service.ended) == 1)
        if timeout is None:
            assert "Unavailable: " in service.ended[0]
            assert "rrpc.Reflection.describe" in service.ended[0]
        else:  # whichever comes first, the deadline of its own call or the server's notice that it has passed
            assert service.ended[0].startswith(("DeadlineExceeded: Desk.heard(): ", "Cancelled: "))
        call.exception(patience(20))
        slow.over.set()


def test_an_async_handler_whose_caller_is_slow_holds_up_no_other(slow: Slow) -> None:
    with (
        rrpc.serve(Asking(), listen="tcp://127.0.0.1:0") as server,
        rrpc.Server(slow, SERVICES["new"](), builtin=False) as mine,
        rrpc.connect(server.addresses[0], serve=mine, timeout=patience(20)) as client,
    ):
        calls = [client.start("Asking.find", text) for text in "ab"]
        assert _asked(slow)
        assert client.call("Asking.ping") == "pong"  # in the same event loop
        assert not any(call.done() for call in calls)
        slow.over.set()
        assert [call.result(patience(20)) for call in calls] == ["a 7", "b 7"]


def test_no_thread_waits_for_callers_that_say_nothing(slow: Slow) -> None:
    with (
        rrpc.serve(Asking(), listen="tcp://127.0.0.1:0") as server,
        rrpc.Server(slow, SERVICES["new"](), builtin=False, workers=1) as mine,
        rrpc.connect(server.addresses[0], serve=mine, timeout=patience(20)) as client,
    ):
        before = threading.active_count()
        calls = [client.start("Asking.find", str(number)) for number in range(40)]
        assert _asked(slow)
        eventually(lambda: server.running().count("Asking.find") == 40)
        assert threading.active_count() <= before + 1
        slow.over.set()
        assert [call.result(patience(20)) for call in calls] == [f"{number} 7" for number in range(40)]


def test_asyncio_clients_over_a_channel_hold_up_no_loop(slow: Slow) -> None:
    async def main(address: str) -> None:
        channel = rrpc.Channel(address)
        async with rrpc.aio.connect(channel) as by_name:
            rows = CLIENTS["old"].AsyncRowsClient(channel)
            with pytest.raises(
                rrpc.DeadlineExceeded, match=r"Rows\.find\(\): .* didn't describe its version"
            ):
                await rows.find("p", timeout=0.2)
            calls = [asyncio.ensure_future(rows.find(text)) for text in "abc"]
            connecting = asyncio.ensure_future(CLIENTS["old"].AsyncRowsClient(channel).connect())
            assert await asyncio.to_thread(_asked, slow)
            assert await by_name.call("lab.Rows.kind", 1) == 1
            calls.pop().cancel()
            slow.over.set()
            assert await asyncio.gather(*calls) == ["a 7", "b 7"]
            assert await (await connecting).find("d") == "d 7"
            assert slow.times == 1  # of one connection, once for all calls
        channel.close()

    with rrpc.serve(slow, SERVICES["new"](), listen="tcp://127.0.0.1:0", builtin=False, workers=4) as server:
        asyncio.run(main(server.addresses[0]))


def test_futures_of_a_blocking_client_over_a_channel_wait_in_no_thread(slow: Slow) -> None:
    with (
        rrpc.serve(slow, SERVICES["new"](), listen="tcp://127.0.0.1:0", builtin=False, workers=4) as server,
        rrpc.Channel(server.addresses[0]) as channel,
    ):
        channel.connect()
        rows = CLIENTS["old"].RowsClient(channel)
        calls = [rows.find.start(text) for text in "ab"]
        assert _asked(slow)
        calls.append(rows.find.start("c", timeout=0.2))
        with pytest.raises(rrpc.DeadlineExceeded, match="didn't describe its version"):
            calls.pop().result(patience(20))
        slow.over.set()
        assert [call.result(patience(20)) for call in calls] == ["a 7", "b 7"]
        assert rows.find("d") == "d 7"


def test_a_client_that_does_not_fit_hinders_no_other_of_its_channel() -> None:
    services = SERVICES["other"](), Asking()
    with (
        rrpc.serve(*services, listen="tcp://127.0.0.1:0") as server,
        rrpc.Channel(server.addresses[0]) as channel,
    ):
        channel.connect()
        rows = CLIENTS["old"].RowsClient(channel)
        for _ in range(2):
            with pytest.raises(rrpc.FailedPrecondition, match=r"lab\.Rows: this client's version") as caught:
                rows.find("p")
            assert caught.value.not_executed
        (connection,) = channel.connections()
        connection.close()
        with rrpc.connect(channel, wait_for_ready=True) as by_name:
            assert by_name.call("Asking.ping", timeout=patience(20)) == "pong"


def test_a_connection_that_ends_while_it_is_asked(slow: Slow) -> None:
    with (
        rrpc.serve(slow, SERVICES["new"](), listen="tcp://127.0.0.1:0", builtin=False) as server,
        rrpc.Channel(server.addresses[0], backoff=rrpc.Backoff(initial=0.01)) as channel,
    ):
        channel.connect()
        rows = CLIENTS["old"].RowsClient(channel, wait_for_ready=True, timeout=patience(20))
        call = rows.find.start("p")
        assert _asked(slow)
        (connection,) = channel.connections()
        slow.over.set()
        connection.close()
        assert call.result() == "p 7"  # over another one


def test_without_a_thread_that_compares(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(task: Any, ended: Any) -> None:
        raise RuntimeError("can't start new thread")

    slow.over.set()
    with (
        rrpc.serve(slow, SERVICES["new"](), listen="tcp://127.0.0.1:0", builtin=False) as server,
        rrpc.Channel(server.addresses[0]) as channel,
    ):
        channel.connect()
        rows = CLIENTS["old"].RowsClient(channel, timeout=patience(20))
        with monkeypatch.context() as patched:
            patched.setattr("rrpc._channel.connecting.Comparing.start", start)
            with pytest.raises(
                rrpc.ResourceExhausted, match="no thread for comparing interfaces: can't start"
            ):
                rows.find("p")
        assert rows.find("p") == "p 7"
