"""Calls that handlers make, with streams or without, inherit the deadline and the cancellation of the call that they
serve: three servers."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from lab import address_to_listen_on, settles, transient
from processes import HELPERS, ServeFactory, patience

import rrpc

HOP = (HELPERS / "hop_service.py").read_text()
HOPS = 3


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[str]]]:
    """For a transport the addresses of three servers, of which each calls the next."""
    folder = tmp_path_factory.mktemp("hops")
    factory = ServeFactory(folder, address_to_listen_on)

    @cache
    def started(transport: str) -> list[str]:
        addresses: list[str] = []
        for _ in range(HOPS):
            args = ["--workers", "6", *(["--arg", f"after={addresses[0]}"] if addresses else [])]
            served = factory(HOP, "Hop", listen=transport, module="hop_service", args=args)
            addresses.insert(0, served.address)
        return addresses

    yield started
    factory.close()


@pytest.fixture
def hops(row: Callable[[str], list[str]], transport: str) -> Iterator[list[rrpc.Client]]:
    """A client of each server, the first one's first."""
    clients = [rrpc.connect(address, timeout=patience(60)) for address in row(transport)]
    yield clients
    for client in clients:
        client.close()


def _unlimited(client: rrpc.Client) -> rrpc.Client:
    return rrpc.connect(client.address)


def test_the_deadline_goes_on(hops: list[rrpc.Client]) -> None:
    first, second, third = hops[0].call("Hop.times_left", timeout=50)
    assert 50 > first > second > third > 0


def test_the_nearer_deadline_counts(hops: list[rrpc.Client]) -> None:
    first, second, third = hops[0].call("Hop.times_left", 20.0, timeout=50)
    assert 50 > first > 20 > second > third > 0
    first, second, third = hops[0].call("Hop.times_left", 80.0, timeout=50)
    assert 50 > first > second > third > 0


def test_without_a_deadline_there_is_that_of_the_handler_s_client(hops: list[rrpc.Client]) -> None:
    with _unlimited(hops[0]) as client:
        first, second, third = client.call("Hop.times_left")
    assert first is None
    assert 100 > second > third > 0


def test_nothing_goes_on_where_it_is_detached(hops: list[rrpc.Client]) -> None:
    first, second, third = hops[0].call("Hop.times_left", None, True, timeout=50)
    assert 50 > first > 0
    assert 100 > second > 50, "of the handler's own client"
    assert second > third > 50


@pytest.mark.parametrize("how", ["call", "futures"])
def test_a_cancel_reaches_the_last_handler(
    hops: list[rrpc.Client], how: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    idle = [transient(hop.call("Hop.counts")) for hop in hops]
    future = hops[0].start("Hop.hold", name, how)
    assert hops[2].call("Hop.began", name)
    assert not any(hop.call("Hop.has_ended", name) for hop in hops)
    assert future.cancel()
    assert [hop.call("Hop.outcome", name) for hop in hops] == ["Cancelled", "Cancelled", "returned"]
    for hop, counts in zip(hops, idle, strict=True):
        settles(lambda hop=hop: hop.call("Hop.counts"), counts)  # type: ignore[misc]


def test_a_deadline_reaches_the_last_handler(hops: list[rrpc.Client], request: pytest.FixtureRequest) -> None:
    name = request.node.name
    with pytest.raises(rrpc.DeadlineExceeded):
        hops[0].call("Hop.hold", name, timeout=1.5)  # it gets there before
    first, second, third = (hop.call("Hop.outcome", name) for hop in hops)
    assert (first, second) == ("DeadlineExceeded", "DeadlineExceeded")
    assert third == "returned"


def test_a_client_that_goes_takes_all_with_it(
    hops: list[rrpc.Client], request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    with _unlimited(hops[0]) as other:
        other.start("Hop.hold", name)
        assert hops[2].call("Hop.began", name)
    assert [hop.call("Hop.outcome", name) for hop in hops] == ["Cancelled", "Cancelled", "returned"]


def test_a_detached_call_goes_on(hops: list[rrpc.Client], request: pytest.FixtureRequest) -> None:
    """The second server's handler stays in its call, whatever becomes of the first one's caller."""
    name = request.node.name
    future = hops[1].start("Hop.hold", name, "detached")
    assert hops[2].call("Hop.began", name)
    future.cancel()
    assert not hops[1].call("Hop.has_ended", name)
    assert not hops[2].call("Hop.has_ended", name)


# With streams


@pytest.mark.parametrize("method", ["Hop.times_given", "Hop.times_given_later"])
def test_streams_inherit_the_deadline(hops: list[rrpc.Client], method: str) -> None:
    first, second, third = rrpc.open_stream(hops[0], method, timeout=50)
    assert 50 > first > second > third > 0
    first, second, third = rrpc.open_stream(hops[0], method, 20.0, timeout=50)
    assert 50 > first > 20 > second > third > 0
    first, second, third = rrpc.open_stream(hops[0], method, None, True, timeout=50)
    assert 100 > second > 50 > first > 0, "its own client's"
    assert second > third > 50
    with _unlimited(hops[0]) as client:
        first, second, third = rrpc.open_stream(client, method)
    assert first is None
    assert 100 > second > third > 0


def _held_stream(client: rrpc.Client, how: str, name: str, **options: Any) -> Any:
    """A call that holds all three, or is about to."""
    if how.startswith("given"):
        stream = rrpc.open_stream(client, f"Hop.hold_{how}", name, **options)
        assert next(stream) == 0
    else:
        stream = rrpc.open_stream(client, f"Hop.hold_{how}", sends=True, receives=False, **options)
        stream.send(name)
    return stream


STREAMS = ["given", "taken", "given_later", "taken_later"]
# As handlers see it; the last where it comes before they go on after a yield.
CANCELLED = {"Cancelled", "CancelledError", "GeneratorExit"}


@pytest.mark.parametrize("how", STREAMS)
def test_a_cancelled_stream_ends_the_handlers_on_its_way(
    hops: list[rrpc.Client], how: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    idle = [transient(hop.call("Hop.counts")) for hop in hops]
    stream = _held_stream(hops[0], how, name)
    assert hops[2].call("Hop.began", name)
    assert not any(hop.call("Hop.has_ended", name) for hop in hops)
    assert stream.cancel()
    first, second, third = (hop.call("Hop.outcome", name) for hop in hops)
    assert {first, second} <= CANCELLED
    assert third in CANCELLED | {"returned"}
    for hop, counts in zip(hops, idle, strict=True):
        settles(lambda hop=hop: hop.call("Hop.counts"), counts)  # type: ignore[misc]


@pytest.mark.parametrize("how", STREAMS)
def test_a_stream_s_deadline_ends_the_handlers_on_its_way(
    hops: list[rrpc.Client], how: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    stream = _held_stream(hops[0], how, name, timeout=patience(1.0))
    with pytest.raises(rrpc.DeadlineExceeded):
        stream.finish() if how.startswith("taken") and hops[2].call("Hop.outcome", name) else next(stream)
    first, second, third = (hop.call("Hop.outcome", name) for hop in hops)
    assert {first, second, third} <= CANCELLED | {"DeadlineExceeded", "returned"}
    assert "returned" not in {first, second}


@pytest.mark.parametrize("how", STREAMS)
def test_a_client_that_goes_takes_its_streams_with_it(
    hops: list[rrpc.Client], how: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    with _unlimited(hops[0]) as other:
        stream = _held_stream(other, how, name)
        assert hops[2].call("Hop.began", name)
    first, second, third = (hop.call("Hop.outcome", name) for hop in hops)
    assert {first, second} <= CANCELLED | {"Unavailable"}  # that is what a handler gets which waits for items
    assert third in CANCELLED | {"returned"}
    del stream
