"""Spans of OpenTelemetry: one trace through two servers, whatever the style of calling."""

import asyncio
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from processes import eventually, run_python
from styles import STYLES, calling

import rrpc
from rrpc.interceptors import otel
from rrpc.interceptors.otel import ClientSpans, ServerSpans


@rrpc.service
class Back:
    @rrpc.method
    def price(self, article: str) -> int:
        if article == "none":
            raise rrpc.NotFound("no such article")
        if article == "broken":
            raise ValueError("broken")
        return len(article)


@rrpc.service
class Front:
    def __init__(self, back: Any, tracer: Any) -> None:
        self.back = back
        self.tracer = tracer

    @rrpc.method
    def price(self, article: str) -> int:
        with self.tracer.start_as_current_span("work"):
            return int(self.back.call("Back.price", article))


class AsyncBack(Back):
    async def price(self, article: str) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().price(article)


class AsyncFront(Front):
    async def price(self, article: str) -> int:  # type: ignore[override]
        with self.tracer.start_as_current_span("work"):
            return int(await self.back.call("Back.price", article))


class Hops:
    def __init__(self, address: str, back: str, exporter: InMemorySpanExporter, client: ClientSpans) -> None:
        self.address = address
        self.back = back
        self.exporter = exporter
        self.client = client

    def spans(self, count: int) -> dict[str, ReadableSpan]:
        """By name and side, once there are so many; forgets them."""
        eventually(lambda: len(self.exporter.get_finished_spans()) >= count)
        spans = self.exporter.get_finished_spans()
        self.exporter.clear()
        assert len(spans) == count
        return {f"{span.kind.name.lower()} {span.name}": span for span in spans}


@pytest.fixture(params=["plain", "async"])
def hops(request: pytest.FixtureRequest, transport: str, new_address: Any) -> Iterator[Hops]:
    """Front, whose handler calls Back."""
    kinds: Any = {
        "plain": (Front, Back, rrpc.Client),
        "async": (AsyncFront, AsyncBack, rrpc.aio.Client),
    }
    front_kind, back_kind, client_kind = kinds[request.param]
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client, server = ClientSpans(tracer_provider=provider), ServerSpans(tracer_provider=provider)
    with rrpc.serve(back_kind(), listen=new_address(transport), interceptors=[server]) as back:
        to_back = client_kind(back.addresses[0], interceptors=[client], timeout=30.0)
        service = front_kind(to_back, provider.get_tracer("test"))
        with rrpc.serve(service, listen=new_address(transport), interceptors=[server]) as front:
            yield Hops(front.addresses[0], back.addresses[0], exporter, client)
        to_back._channel.close()


@pytest.mark.parametrize("style", STYLES)
def test_two_hops_are_one_trace(hops: Hops, style: str) -> None:
    with calling(style, hops.address, interceptors=[hops.client]) as call:
        assert call("Front.price", "apple") == 5
    spans = hops.spans(5)
    way = [
        "client Front/price",
        "server Front/price",
        "internal work",
        "client Back/price",
        "server Back/price",
    ]
    assert sorted(spans) == sorted(way)
    assert len({spans[name].context.trace_id for name in way}) == 1
    parents = [spans[name].parent for name in way]
    assert parents[0] is None
    assert [parent.span_id for parent in parents[1:]] == [spans[name].context.span_id for name in way[:-1]]


def test_the_phases_are_events(hops: Hops) -> None:
    with rrpc.connect(hops.address, interceptors=[hops.client]) as client:
        client.call("Front.price", "apple")
    spans = hops.spans(5)
    events = {name: {event.name: event.timestamp for event in span.events} for name, span in spans.items()}
    names = [
        "begun",
        "arguments exposed",
        "request sent",
        "reply received",
        "results fetched",
        "results taken",
    ]
    assert list(events["client Front/price"]) == names
    assert list(events["server Front/price"]) == ["arguments fetched", "taken by a worker"]
    for name in ("client Front/price", "server Front/price"):
        times = [spans[name].start_time or 0, *events[name].values(), spans[name].end_time or 0]
        late = 1_000_000  # the wall clock is set now and then, and the core's reading may be some microseconds old
        assert all(earlier <= later + late for earlier, later in itertools.pairwise(times))


def server_of(address: str) -> list[Any]:
    """The attributes of an address, as semantic conventions have it."""
    place = address.partition("://")[2]
    host, _, port = place.partition(":")
    return [host, int(port)] if port else [place, None]


@pytest.mark.parametrize(
    ("peer", "address", "port"),
    [
        ("rrpc://127.0.0.1:7471", "127.0.0.1", 7471),
        ("tcp://[2001:db8::1]:80", "2001:db8::1", 80),
        ("tcp://search.example:80?device=x", "search.example", 80),
        ("10.9.0.2:4711 on rxe0", "10.9.0.2", 4711),
        ("[fe80::1%eth0]:4711", "fe80::1%eth0", 4711),
        ("shm:///run/user/1000/rrpc/search.sock", "/run/user/1000/rrpc/search.sock", None),
        ("shm:///run/a:1/b:2", "/run/a:1/b:2", None),
        ("shm://search", "search", None),
        ("rrpc://a:1,rrpc://b:2", "a:1,rrpc://b:2", None),
        ("file:///etc/searchers", "/etc/searchers", None),
    ],
)
def test_addresses(peer: str, address: str, port: int | None) -> None:
    for side, end in (("client", "server"), ("server", "client")):
        expected = {f"{end}.address": address} | ({} if port is None else {f"{end}.port": port})
        assert otel._address(side, peer) == expected


def test_attributes(hops: Hops) -> None:
    back = hops.back
    with rrpc.connect(hops.address, interceptors=[hops.client]) as client:
        client.call("Front.price", "apple")
        spans = hops.spans(5)
        for side, end in (("client", "server"), ("server", "client")):
            attributes = dict(spans[f"{side} Back/price"].attributes or {})
            peer = attributes.pop("rrpc.peer", None)
            address, port = attributes.pop(f"{end}.address", None), attributes.pop(f"{end}.port", None)
            if end == "server":
                assert [address, port] == server_of(back)
            elif peer is None:
                assert address == "127.0.0.1"
                assert isinstance(port, int)
            else:
                assert (address, port) == (None, None)
                assert str(peer).startswith(f"pid {os.getpid()} uid {os.getuid()} (")
            assert attributes == {
                "rpc.system.name": "rrpc",
                "rpc.method": "Back/price",
                "rpc.system": "rrpc",
                "rpc.service": "Back",
                "rpc.response.status_code": "OK",
            }
            assert spans[f"{side} Back/price"].status.status_code is trace.StatusCode.UNSET


@pytest.mark.parametrize(
    ("article", "code", "server_fails"), [("none", "NOT_FOUND", False), ("broken", "UNKNOWN", True)]
)
def test_errors(hops: Hops, article: str, code: str, server_fails: bool) -> None:
    with rrpc.connect(hops.address, interceptors=[hops.client]) as client:
        with pytest.raises(rrpc.RpcError):
            client.call("Front.price", article)
        spans = hops.spans(5)
    for side, fails in (("client", True), ("server", server_fails)):
        span = spans[f"{side} Back/price"]
        assert span.attributes is not None
        assert span.attributes["rpc.response.status_code"] == span.attributes["error.type"] == code
        assert span.status.status_code is (trace.StatusCode.ERROR if fails else trace.StatusCode.UNSET)
    assert (spans["client Back/price"].status.description or "").endswith(
        {"none": "no such article", "broken": "broken"}[article]
    )


def test_health_has_no_spans(hops: Hops) -> None:
    with rrpc.connect(hops.address, interceptors=[hops.client]) as client:
        client.call("rrpc.Health.check", "")
        client.call("Front.price", "apple")
    hops.spans(5)


def test_a_trace_goes_on_in_the_callers_own(hops: Hops) -> None:
    tracer = TracerProvider().get_tracer("mine")
    with rrpc.connect(hops.address, interceptors=[hops.client]) as client:
        with tracer.start_as_current_span("mine") as mine:
            client.call("Front.price", "apple")
        spans = hops.spans(5)
    parent = spans["client Front/price"].parent
    assert parent is not None
    assert parent.span_id == mine.get_span_context().span_id


def test_a_strangers_traceparent_is_no_harm(hops: Hops) -> None:
    with rrpc.connect(hops.address) as client:
        for value in ("junk", b"\0\xff", ["a", "b"], "00-" + "f" * 32 + "-" + "0" * 16 + "-01"):
            assert client.call("Front.price", "apple", metadata={"traceparent": value}) == 5
            assert hops.spans(4)["server Front/price"].parent is None


@rrpc.service
class Relay:
    """Gives the items of the next one, after its own."""

    def __init__(self, name: str, following: rrpc.Client | None) -> None:
        self.name = name
        self.following = following

    @rrpc.method
    def items(self, count: int) -> Iterator[str]:
        for _ in range(count):
            yield self.name
        if self.following is not None:
            yield from rrpc.open_stream(self.following, "Relay.items", count)
        if count == 13:
            raise rrpc.OutOfRange("13")


@pytest.mark.parametrize(("count", "code"), [(2, "OK"), (5000, "OK"), (13, "OUT_OF_RANGE")])
def test_streams_are_one_trace_too(transport: str, new_address: Any, count: int, code: str) -> None:
    """Also where the handler goes on in other threads, as the caller has room."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client, server = ClientSpans(tracer_provider=provider), ServerSpans(tracer_provider=provider)
    around: dict[str, Any] = {"interceptors": [client], "timeout": 30.0}
    with (
        rrpc.serve(Relay("b", None), listen=new_address(transport), interceptors=[server]) as second,
        rrpc.connect(second.addresses[0], **around) as to_second,
        rrpc.serve(Relay("a", to_second), listen=new_address(transport), interceptors=[server]) as first,
        rrpc.connect(first.addresses[0], **around) as to_first,
    ):
        if code == "OK":
            items = list(rrpc.open_stream(to_first, "Relay.items", count))
            assert items == ["a"] * count + ["b"] * count
        else:
            with pytest.raises(rrpc.OutOfRange):
                list(rrpc.open_stream(to_first, "Relay.items", count))
        eventually(lambda: len(exporter.get_finished_spans()) == 4)
    spans = exporter.get_finished_spans()
    child_of = {None if span.parent is None else span.parent.span_id: span for span in spans}
    way, parent = [], None
    while parent in child_of:
        way.append(child_of[parent].kind.name)
        parent = child_of[parent].context.span_id
    assert way == ["CLIENT", "SERVER", "CLIENT", "SERVER"]
    for span in spans:
        assert span.attributes is not None
        assert span.attributes["rpc.response.status_code"] == code


@rrpc.service
class Spy:
    @rrpc.method
    def traced(self) -> bool:
        return bool(trace.get_current_span().get_span_context().is_valid)

    @rrpc.method
    def untraced(self) -> bool:
        return bool(trace.get_current_span().get_span_context().is_valid)

    @rrpc.method
    async def untraced_async(self) -> bool:
        return bool(trace.get_current_span().get_span_context().is_valid)

    @rrpc.method
    async def traced_async(self) -> bool:
        await asyncio.sleep(0)
        return bool(trace.get_current_span().get_span_context().is_valid)


def test_a_span_is_the_current_one_in_its_handler_alone(caplog: pytest.LogCaptureFixture) -> None:
    spans = ServerSpans(tracer_provider=TracerProvider(), exempt=["Spy.untraced", "Spy.untraced_async"])
    listen = "tcp://127.0.0.1:0"
    with (
        rrpc.serve(Spy(), listen=listen, workers=1, interceptors=[spans]) as server,
        rrpc.connect(server.addresses[0]) as client,
    ):
        for _ in range(3):
            for method in ("traced", "untraced", "traced_async", "untraced_async"):
                assert client.call(f"Spy.{method}") is (not method.startswith("un"))
    assert not caplog.records  # OpenTelemetry logs a context that is detached elsewhere


def test_it_isnt_imported_unless_used() -> None:
    run_python(
        "import sys, rrpc, rrpc.interceptors\n"
        "rrpc.interceptors.ClientLogging(), rrpc.interceptors.ServerToken('x')\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )


def test_without_the_package_it_says_what_to_install() -> None:
    run_python(
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import rrpc\n"
        "try:\n"
        "    rrpc.interceptors.otel\n"
        "except ModuleNotFoundError as error:\n"
        "    assert \"pip install 'rrpc-rdma[otel]'\" in str(error), error\n"
        "else:\n"
        "    raise SystemExit('imported')"
    )


def test_what_isnt_a_list_of_names() -> None:
    with pytest.raises(TypeError, match="exempt is a list of names"):
        ServerSpans(exempt="rrpc.Health")
