"""How many large buffers a message may have: both ends say so, and neither sends more."""

from collections.abc import Iterator

import numpy as np
import pytest
from processes import Served, ServeFactory
from raw_peer import CALL, DESCRIPTOR, RawPeer, hello, message, request, setup

import rrpc

SERVICE = """
from collections.abc import Iterator
import numpy as np, rrpc
from numpy.typing import NDArray

@rrpc.service
class Many:
    @rrpc.method
    def take(self, arrays: list[NDArray[np.uint8]]) -> int:
        return len(arrays)

    @rrpc.method
    def give(self, count: int) -> list[NDArray[np.uint8]]:
        return [np.ones(100_000, np.uint8) for _ in range(count)]

    @rrpc.method
    def stream(self, counts: Iterator[list[NDArray[np.uint8]]]) -> Iterator[list[NDArray[np.uint8]]]:
        for arrays in counts:
            yield arrays
            yield [*arrays, *arrays]
"""
ARRAY = np.ones(100_000, np.uint8)


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(SERVICE, "Many", listen=transport, args=["--buffers-max", "4"])


@pytest.fixture
def client(served: Served) -> Iterator[rrpc.Client]:
    with rrpc.connect(served.address, timeout=30.0) as client:
        yield client


def test_more_are_refused_by_who_would_send_them(client: rrpc.Client) -> None:
    assert client.call("Many.take", [ARRAY] * 4) == 4
    with pytest.raises(rrpc.InvalidArgument, match=r"buffers_max: the request has 5 .* both ends allow 4;"):
        client.call("Many.take", [ARRAY] * 5)
    assert len(client.call("Many.give", 4)) == 4
    with pytest.raises(rrpc.InvalidArgument, match=r"buffers_max: the result has 5 .* both ends allow 4;"):
        client.call("Many.give", 5)
    assert client.call("Many.take", []) == 0


def test_items_of_streams_too(client: rrpc.Client) -> None:
    with rrpc.open_stream(client, "Many.stream", sends=True) as stream:
        with pytest.raises(rrpc.InvalidArgument, match=r"buffers_max: the item has 5 .* both ends allow 4;"):
            stream.send([ARRAY] * 5)
        stream.send([ARRAY] * 3)
        assert len(next(stream)) == 3
        with pytest.raises(rrpc.InvalidArgument, match=r"buffers_max: the item has 6 .* both ends allow 4;"):
            next(stream)


def test_the_smaller_limit_of_the_two_counts(served: Served) -> None:
    with rrpc.connect(served.address, timeout=30.0, buffers_max=2) as client:
        assert len(client.call("Many.give", 2)) == 2
        for method, argument in (("Many.take", [ARRAY] * 3), ("Many.give", 3)):
            with pytest.raises(rrpc.InvalidArgument, match="both ends allow 2;"):
                client.call(method, argument)


@pytest.mark.parametrize("count", [0, 65536])
def test_what_no_message_can_have(count: int) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="buffers_max can be from 1 to 65535"):
        rrpc.connect("tcp://127.0.0.1:1", buffers_max=count)


@pytest.mark.parametrize("transport", ["tcp"])
def test_a_peer_that_sends_more_anyway(served: Served, client: rrpc.Client) -> None:
    peer = RawPeer(served.address)
    assert peer.hello["buffers"] == b"4"
    descriptors = DESCRIPTOR.pack(0, 100_000, 1) * 5
    peer.send(message(CALL, request(1, "Many.take", descriptors=descriptors)))
    assert "a message with 5 descriptors, the limit is 4" in peer.wait_for_end()
    peer.close()
    assert client.call("Many.take", [ARRAY]) == 1


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize("text", [b"", b"0", b"many", b"-1", b"99999999999"])
def test_a_peer_whose_limit_is_no_number(served: Served, client: rrpc.Client, text: bytes) -> None:
    peer = RawPeer(served.address, greet=False)
    peer.send(setup() + hello(buffers=text))
    assert "a HELLO whose buffers are" in peer.wait_for_end()
    peer.close()
    assert client.call("Many.take", [ARRAY]) == 1
