"""Clients that claim what others need: each is held to its share, told why by name, and everybody else is served."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from processes import Served, ServeFactory, eventually
from raw_peer import (
    BULK,
    CALL,
    CALL_BULK,
    DESCRIPTOR,
    HEADER,
    READ_REQUEST,
    REPLY,
    REPLY_HEAD,
    SEND,
    SETUP,
    RawPeer,
    hello,
    message,
    request,
    setup,
)

import rrpc

pytestmark = pytest.mark.slow

MIB = 1 << 20
POOL = 64 * MIB
ITEM_BULK = 7
ITEM_BULK_BODY = struct.Struct("<QQQIIQ")  # call id, address, length, rkey, sequence, the item's bytes
ADDRESS, RKEY = 0x10000, 0x1234  # of memory that isn't there: no READ of it is ever answered
SERVICE = """
from collections.abc import Iterable, Iterator
import numpy as np, rrpc
from numpy.typing import NDArray

@rrpc.service
class Shared:
    @rrpc.method
    def size(self, value: bytes) -> int:
        return len(value)

    @rrpc.method
    def many(self, values: list[int]) -> int:
        return len(values)

    @rrpc.method
    def make(self, nbytes: int) -> NDArray[np.uint8]:
        return np.full(nbytes, 7, np.uint8)

    @rrpc.method
    def blocks(self, n: int, nbytes: int) -> Iterator[NDArray[np.uint8]]:
        for i in range(n):
            yield np.full(nbytes, i % 251, np.uint8)

    @rrpc.method
    def weigh(self, blocks: Iterable[NDArray[np.uint8]]) -> int:
        return sum(block.nbytes for block in blocks)
"""


def start(serve: ServeFactory, *args: str, transport: str = "tcp") -> Served:
    return serve(SERVICE, "Shared", listen=transport, args=["--pool-limit", str(POOL), *args])


def counter(client: rrpc.Client, name: str) -> int:
    value: int = client.call("rrpc.Stats.process")["counters"][name]
    return value


@contextmanager
def served_meanwhile(address: str) -> Iterator[rrpc.Client]:
    """An honest client; it is served after the block as before."""
    with rrpc.connect(address, timeout=60.0) as client:

        def is_served() -> None:
            assert client.call("Shared.size", bytes(8 * MIB)) == 8 * MIB
            assert client.call("Shared.make", 8 * MIB).sum() == 7 * 8 * MIB
            with rrpc.open_stream(client, "Shared.weigh", sends=True, receives=False) as stream:
                for _ in range(4):
                    stream.send(np.zeros(MIB, np.uint8))
                assert stream.finish() == 4 * MIB

        is_served()
        yield client
        is_served()


def text_of(body: bytes) -> str:
    """The error's text in a REPLY; "" where there is none."""
    _, _, _, descriptors, _, _, length, _ = REPLY_HEAD.unpack_from(body)
    at = REPLY_HEAD.size + descriptors * DESCRIPTOR.size
    return body[at : at + length].decode()


def bulk(call_id: int, length: int) -> bytes:
    return message(CALL_BULK, BULK.pack(call_id, ADDRESS, length, RKEY, 0))


def asked_to_serve_reads(peer: RawPeer) -> None:
    """Returns at the first READ."""
    while peer.read_frame()[0] != READ_REQUEST:
        pass


def test_claims_of_a_peer_that_serves_no_reads(serve: ServeFactory) -> None:
    """Messages of 76 bytes and of more claim a share, and wait for the rest."""
    served = start(serve)
    with served_meanwhile(served.address) as client:
        before = counter(client, "pool_bytes_used")
        peers = [RawPeer(served.address) for _ in range(2)]
        for peer in peers:
            for call_id in range(1, 21, 2):
                peer.send(bulk(call_id, 16 * MIB))
                descriptors = DESCRIPTOR.pack(ADDRESS, 12 * MIB, RKEY)
                peer.send(message(CALL, request(call_id + 1, "Shared.size", descriptors=descriptors)))
            asked_to_serve_reads(peer)
        claimed = counter(client, "pool_bytes_used") - before
        assert 16 * MIB <= claimed <= POOL * 3 // 4
        assert counter(client, "landing_waits") >= 20
        assert client.call("Shared.size", bytes(8 * MIB)) == 8 * MIB
        for peer in peers:
            peer.close()
        eventually(lambda: counter(client, "pool_bytes_used") <= before)


def test_a_stalled_fetch_gives_its_memory_back(serve: ServeFactory) -> None:
    served = start(serve, "--fetch-timeout", "0.5")
    with served_meanwhile(served.address) as client:
        before = counter(client, "pool_bytes_used")
        peer = RawPeer(served.address)
        peer.send(bulk(1, 16 * MIB))
        reason = peer.wait_for_end()
        assert "fetch_timeout: " in reason
        assert "500 ms" in reason
        eventually(lambda: counter(client, "pool_bytes_used") <= before)


def test_what_could_never_land_is_refused(serve: ServeFactory, transport: str) -> None:
    served = start(serve, "--landing-bytes-max", "4M", transport=transport)
    with rrpc.connect(served.address, timeout=60.0) as client:
        with pytest.raises(rrpc.ResourceExhausted, match=r"landing_bytes_max: .* the limit is 4194304"):
            client.call("Shared.size", bytes(5 * MIB))
        calls = [client.start("Shared.size", bytes(3 * MIB)) for _ in range(10)]
        assert [call.result() for call in calls] == [3 * MIB] * 10  # one after the other


def test_a_message_has_a_greatest_size(serve: ServeFactory, transport: str) -> None:
    served = start(serve, "--message-bytes-max", "100K", transport=transport)
    with rrpc.connect(served.address, timeout=60.0) as client:
        assert client.call("Shared.many", [1] * 50_000) == 50_000
        with pytest.raises(
            rrpc.ResourceExhausted, match=r"message_bytes_max: the request .* the limit is 102400"
        ):
            client.call("Shared.many", [1] * 1_000_000)
        assert client.call("Shared.size", bytes(MIB)) == MIB  # buffers aren't of the message
    with rrpc.connect(served.address, timeout=60.0, message_bytes_max=1000) as client:
        assert client.call("Shared.many", [1] * 500) == 500
        with pytest.raises(
            rrpc.ResourceExhausted, match=r"message_bytes_max: the request .* the limit is 1000"
        ):
            client.call("Shared.many", [1] * 2000)


def windowed_peer(address: str, window: bytes) -> RawPeer:
    """One that takes streams: so many items, so many bytes."""
    peer = RawPeer(address, greet=False)
    peer.send(setup())
    assert peer.read_frame()[0] == SETUP
    peer.send(hello(window=window))
    peer.read_message()
    return peer


def test_an_item_that_is_longer_than_announced(serve: ServeFactory) -> None:
    served = start(serve)
    with served_meanwhile(served.address) as client:
        before = counter(client, "pool_bytes_used")
        peer = windowed_peer(served.address, b"1024,8388608")
        peer.send(message(CALL, request(1, "Shared.weigh", flags=2)))
        peer.send(message(ITEM_BULK, ITEM_BULK_BODY.pack(1, ADDRESS, 48 * MIB, RKEY, 0, 1)))
        assert "announced as 1 bytes" in peer.wait_for_end()
        assert counter(client, "pool_bytes_used") <= before


def test_a_peer_that_gives_no_credits(serve: ServeFactory) -> None:
    """It is cut off within a few windows, not after thousands of replies."""
    served = start(serve)
    with served_meanwhile(served.address):
        peer = RawPeer(served.address)
        sent = granted = 0
        try:
            while sent < 5000:
                while sent < granted + 50:
                    sent += 1
                    peer.send(message(CALL, request(sent, "Shared.size", bytes(4000)), data=0))
                kind, payload = peer.read_frame()
                if kind == SEND:
                    granted = HEADER.unpack_from(payload)[5]
        except (EOFError, ConnectionError):
            pass
        assert sent < 500
        assert "takes no messages" in peer.wait_for_end()


def test_results_that_nobody_fetches(serve: ServeFactory) -> None:
    served = start(serve, "--exposed-bytes-max", "40M")
    with served_meanwhile(served.address) as client:
        peer = RawPeer(served.address)
        texts = []
        for call_id in range(1, 11):
            peer.send(message(CALL, request(call_id, "Shared.make", 12 * MIB), data=call_id))
            kind, body = peer.read_message()
            assert kind == REPLY
            texts.append(text_of(body))
        assert texts[:3] == [""] * 3
        assert all("exposed_bytes_max: " in text and "the limit of 41943040" in text for text in texts[3:])
        assert counter(client, "bytes_exposed") <= 41 * MIB
        peer.close()
        eventually(lambda: counter(client, "bytes_exposed") <= MIB)


def test_a_window_without_end(serve: ServeFactory) -> None:
    """Items with arrays that the peer asks for and doesn't fetch are few, whatever window it gives."""
    served = start(serve)
    with served_meanwhile(served.address) as client:
        peer = windowed_peer(served.address, b"4294967295,18446744073709551615")
        peer.send(message(CALL, request(1, "Shared.blocks", 10**9, 65536, flags=4), data=1))
        eventually(lambda: counter(client, "bytes_exposed") >= 4 * MIB)
        assert client.call("Shared.size", bytes(8 * MIB)) == 8 * MIB
        assert counter(client, "bytes_exposed") <= 9 * MIB  # stream_window_bytes of the server's own
        peer.close()
        eventually(lambda: counter(client, "bytes_exposed") <= MIB)
