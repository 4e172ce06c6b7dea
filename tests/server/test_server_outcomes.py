"""Observers, logs and spans of a server tell of passed deadlines, and of results that can't be sent."""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from processes import eventually

import rrpc
from rrpc import StatusCode
from rrpc.interceptors import ServerLogging
from rrpc.interceptors.otel import ServerSpans

TIMEOUT = 0.7
entered = threading.Event()


@rrpc.service(name="Late")
class Late:
    @rrpc.method
    def result(self) -> int:
        entered.set()
        rrpc.context().wait_cancelled(30)
        return 1

    @rrpc.method
    def stops(self) -> int:
        entered.set()
        rrpc.context().wait_cancelled(30)
        raise rrpc.Cancelled("nobody waits")

    @rrpc.method
    def own(self) -> int:
        entered.set()
        rrpc.context().wait_cancelled(30)
        raise rrpc.NotFound("found out late")

    @rrpc.method
    def items(self) -> Iterator[int]:
        entered.set()
        yield 1
        rrpc.context().wait_cancelled(30)
        yield 2

    @rrpc.method
    def feed(self, items: Iterator[int]) -> int:
        entered.set()
        return sum(items)


class AsyncLate(Late):
    async def result(self) -> int:  # type: ignore[override]
        try:
            await self._wait()
        except asyncio.CancelledError:
            return 1
        return 2

    async def stops(self) -> int:  # type: ignore[override]
        await self._wait()
        return 1

    async def own(self) -> int:  # type: ignore[override]
        try:
            await self._wait()
        except asyncio.CancelledError:
            raise rrpc.NotFound("found out late") from None
        return 2

    async def items(self) -> AsyncIterator[int]:  # type: ignore[override]
        yield 1
        await self._wait()

    async def feed(self, items: AsyncIterator[int]) -> int:  # type: ignore[override]
        entered.set()
        return sum([item async for item in items])

    async def _wait(self) -> None:
        entered.set()
        await asyncio.sleep(30)


@rrpc.service(name="Packs")
class Packs:
    @rrpc.method
    def wrong(self) -> int:
        return "text"  # type: ignore[return-value]

    @rrpc.method
    def strange(self) -> Any:
        return object()

    @rrpc.method
    def long(self) -> str:
        return "x" * 2_000_000

    @rrpc.method
    def many(self) -> list[bytes]:
        return [bytes(100_000)] * 9

    @rrpc.method
    def metadata(self) -> None:
        rrpc.context().set_metadata({"a": "x" * 5_000})

    @rrpc.method
    def items(self) -> Iterator[int]:
        yield "text"  # type: ignore[misc]


class AsyncPacks(Packs):
    async def wrong(self) -> int:  # type: ignore[override]
        return super().wrong()

    async def strange(self) -> Any:
        return super().strange()

    async def long(self) -> str:  # type: ignore[override]
        return super().long()

    async def many(self) -> list[bytes]:  # type: ignore[override]
        return super().many()

    async def metadata(self) -> None:  # type: ignore[override]
        super().metadata()

    async def items(self) -> AsyncIterator[int]:  # type: ignore[override]
        yield "text"  # type: ignore[misc]


class Told:
    """A server, and what it tells of its calls."""

    def __init__(self, service: object, address: str, **options: Any) -> None:
        self.codes: queue.Queue[int] = queue.Queue()
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        around = [ServerSpans(tracer_provider=provider), ServerLogging()]
        self.server = rrpc.serve(
            service,
            listen=address,
            observer=lambda call: self.codes.put(call.code),
            interceptors=around,
            **options,
        )

    def expect(self, code: StatusCode, log: pytest.LogCaptureFixture) -> None:
        """All of them say ``code`` of the one call."""
        assert StatusCode(self.codes.get(timeout=20)) is code
        spans = eventually(self._exporter.get_finished_spans)
        assert spans[0].attributes is not None
        assert spans[0].attributes["rpc.response.status_code"] == code.name
        lines = eventually(lambda: [r for r in list(log.records) if r.name == "rrpc.calls"])
        assert [getattr(line, "rpc_code", "") for line in lines] == [code.name]


@pytest.fixture(params=["blocking", "async"])
def kind(request: pytest.FixtureRequest) -> int:
    return ["blocking", "async"].index(request.param)


@pytest.fixture
def told(kind: int, address: str, caplog: pytest.LogCaptureFixture) -> Iterator[Told]:
    caplog.set_level(logging.INFO)
    entered.clear()
    told = Told((Late, AsyncLate)[kind](), address)
    with told.server:
        yield told


def feed_nothing() -> Iterator[int]:
    threading.Event().wait(30)
    yield 1


@pytest.mark.parametrize("method", ["result", "stops"])
def test_a_call_past_its_deadline_is_deadline_exceeded(
    told: Told, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rrpc.connect(told.server.addresses[0]) as client:
        with pytest.raises(rrpc.DeadlineExceeded):
            client.call(f"Late.{method}", timeout=TIMEOUT)
        told.expect(StatusCode.DEADLINE_EXCEEDED, caplog)


@pytest.mark.parametrize("method", ["result", "stops"])
def test_a_call_that_its_client_cancels_is_cancelled(
    told: Told, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rrpc.connect(told.server.addresses[0]) as client:
        call = client.start(f"Late.{method}", timeout=60.0)
        assert entered.wait(20)
        call.cancel()
        told.expect(StatusCode.CANCELLED, caplog)


def test_an_error_of_the_handlers_own_stays(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    with rrpc.connect(told.server.addresses[0]) as client:
        with pytest.raises(rrpc.DeadlineExceeded):
            client.call("Late.own", timeout=TIMEOUT)
        told.expect(StatusCode.NOT_FOUND, caplog)


@pytest.mark.parametrize("sends", [False, True], ids=["items", "feed"])
@pytest.mark.parametrize("gives_up", [False, True], ids=["deadline", "cancel"])
def test_streams_too(told: Told, sends: bool, gives_up: bool, caplog: pytest.LogCaptureFixture) -> None:
    with rrpc.connect(told.server.addresses[0]) as client:
        name, timeout = "Late.feed" if sends else "Late.items", 60.0 if gives_up else TIMEOUT
        call = rrpc.open_stream(client, name, sends=sends, receives=not sends, timeout=timeout)
        assert entered.wait(20)
        if gives_up:
            call.cancel()
        told.expect(StatusCode.CANCELLED if gives_up else StatusCode.DEADLINE_EXCEEDED, caplog)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("wrong", StatusCode.INTERNAL),
        ("strange", StatusCode.INTERNAL),
        ("long", StatusCode.RESOURCE_EXHAUSTED),
        ("many", StatusCode.INVALID_ARGUMENT),
        ("metadata", StatusCode.RESOURCE_EXHAUSTED),
        ("items", StatusCode.INTERNAL),
    ],
)
def test_a_result_that_cannot_be_sent_is_told(
    kind: int, method: str, code: StatusCode, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    limits = {"message_bytes_max": 1_000_000, "metadata_bytes_max": 4_096, "buffers_max": 8}
    told = Told((Packs, AsyncPacks)[kind](), address, **limits)
    with told.server, rrpc.connect(told.server.addresses[0], timeout=20.0) as client:
        call = client.call if method != "items" else lambda name: list(rrpc.open_stream(client, name))
        with pytest.raises(rrpc.RpcError) as caught:
            call(f"Packs.{method}")
        assert caught.value.code is code
        told.expect(code, caplog)
        errors = [r for r in caplog.records if r.name == "rrpc.server" and r.levelno == logging.ERROR]
        assert [f"Packs.{method}()" in r.getMessage() for r in errors] == [True]


def test_a_result_that_cannot_be_sent_is_logged_without_observers(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        rrpc.serve(Packs(), listen=address, message_bytes_max=1_000_000) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        with pytest.raises(rrpc.ResourceExhausted) as caught:
            client.call("Packs.long")
        assert eventually(lambda: [r for r in caplog.records if caught.value.message in r.getMessage()])


def test_interceptors_hear_of_the_end_of_calls_without_streams(address: str) -> None:
    ended: queue.Queue[tuple[str, Any]] = queue.Queue()

    class Hears(rrpc.ServerInterceptor):
        def unary(self, call: Any) -> Any:
            call.on_end(lambda error: ended.put((call.peer, error)))
            return (yield call)

    with (
        rrpc.serve(Packs(), listen=address, interceptors=[Hears()], message_bytes_max=1_000_000) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        client.call("Packs.metadata")
        peer, error = ended.get(timeout=20)
        assert peer
        assert error is None
        with pytest.raises(rrpc.ResourceExhausted):
            client.call("Packs.long")
        assert isinstance(ended.get(timeout=20)[1], rrpc.ResourceExhausted)
        with pytest.raises(rrpc.Unimplemented):
            client.call("Packs.missing")
        assert isinstance(ended.get(timeout=20)[1], rrpc.Unimplemented)
