"""Hostile and foreign peers: what is malformed closes its own connection, and nothing else."""

import http.server
import random
import socket
import struct
import threading
from collections.abc import Callable

import pytest
from lab import LabServer, still_answers
from processes import eventually
from raw_peer import (
    BULK,
    CALL,
    CALL_BULK,
    CANCEL,
    CANCEL_ACK,
    CREDIT,
    DESCRIPTOR,
    DONE,
    GO_AWAY,
    HELLO,
    PING,
    READ_REQUEST,
    READ_RESPONSE,
    REPLY,
    REPLY_HEAD,
    SEND,
    SETUP,
    WRITE,
    WRITE_ACK,
    RawPeer,
    frame,
    hello,
    message,
    reply,
    request,
    setup,
)

import rrpc

BIG = 1 << 61


def test_the_raw_peer_can_speak_properly(lab_server: LabServer) -> None:
    """So what is refused below is refused for what is wrong with it."""
    peer = RawPeer(lab_server.address("tcp"))
    for call_id in range(1, 20):
        peer.send(message(CALL, request(call_id, "Lab.add", call_id, 1), data=call_id))
        kind, body = peer.read_message()
        assert kind == REPLY
        assert struct.unpack_from("<QB", body) == (call_id, 0)
        assert body[-1] == call_id + 1
    peer.close()


# Before HELLO

FIELDS = b"".join(b"\1\0" + bytes([i]) + b"\0\0" for i in range(99))
GREETINGS: dict[str, tuple[bytes, str]] = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""),
    "ssh": (b"SSH-2.0-OpenSSH_9.2\r\n", ""),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60), ""),
    "zeros": (bytes(64), ""),
    "noise": (random.Random(1).randbytes(4096), ""),
    "frame of unknown type": (frame(99), ""),
    "send first": (message(PING), ""),
    "other tcp version": (setup(frame_version=9), ""),
    "setup without its magic": (setup(text=b"nope"), ""),
    "setup of no bytes": (frame(SETUP, detail=1), ""),
    "setup too long": (frame(SETUP, bytes(65), detail=1), ""),
    "setup of 4 GiB": (frame(SETUP, detail=1, length=0xFFFFFFFF), ""),
    "offer cut short": (frame(SETUP, b"rrpc" + struct.pack("<I", 16) + b"abc", detail=1), "offer"),
    "offer without its magic": (setup(magic=1), "magic"),
    "other wire version": (setup(version=9), "version 9"),
    "no slots": (setup(slots=0), "impossible ring"),
    "odd slots": (setup(slots=33), "impossible ring"),
    "too many slots": (setup(slots=1 << 31), "impossible ring"),
    "huge slots": (setup(slot_bytes=1 << 31), "impossible ring"),
    "request before hello": (setup() + message(CALL, request(1, "Lab.add", 1)), "before HELLO"),
    "two setups": (setup() + setup(), "second SETUP"),
    "two hellos": (setup() + hello() + hello(), "second HELLO"),
    "hello cut short": (setup() + message(HELLO, b"\x04\x00wi"), "truncated HELLO"),
    "hello of many fields": (setup() + message(HELLO, FIELDS), "fields"),
}  # fmt: skip


@pytest.mark.parametrize("what", GREETINGS)
def test_malformed_greetings(lab_server: LabServer, what: str) -> None:
    data, reason = GREETINGS[what]
    peer = RawPeer(lab_server.address("tcp"), greet=False)
    peer.send(data)
    assert reason in peer.wait_for_end()
    still_answers(lab_server.address("tcp"))
    peer.close()


# After HELLO


def bulk(call_id: int, address: int = 4096, length: int = 100, rkey: int = 1) -> bytes:
    return message(CALL_BULK, BULK.pack(call_id, address, length, rkey, 0))


def reading(address: int, length: int, times: int = 1) -> bytes:
    return message(CALL, request(1, "x", descriptors=DESCRIPTOR.pack(address, length, 1) * times))


def ids(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


GOOD = message(CALL, request(1, "Lab.add", 1))
ARRAY = DESCRIPTOR.pack(4096, 8192, 12345)
MESSAGES: dict[str, tuple[bytes, str]] = {
    "wrong magic": (message(PING, magic=1), "wrong magic"),
    "shorter than its header": (frame(SEND, b"rr"), "shorter than its header"),
    "empty": (frame(SEND), "shorter than its header"),
    "announces more": (message(PING, body_bytes=10), "announces a body"),
    "announces 4 GiB": (message(PING, body_bytes=0xFFFFFFFF), "announces a body"),
    "announces less": (message(PING, b"abc", body_bytes=1), "announces a body"),
    "other epoch": (message(PING, epoch=1), "epoch"),
    "longer than a slot": (frame(SEND, bytes(9000)), "longer"),
    "frame of 1 GiB": (frame(SEND, length=1 << 30), "longer"),
    "unknown data type": (message(33), "unknown message type 33"),
    "unknown control type": (message(99), "unknown message type 99"),
    "unknown type": (message(200), "unknown message type 200"),
    "data credits overflow": (message(PING, data=1000), "credits"),
    "data credits go back": (message(PING, data=0xFFFFFFFF), "credits"),
    "control credits overflow": (message(PING, control=1000), "credits"),
    "second hello": (hello(), "second HELLO"),
    "a reply": (message(REPLY, bytes(24)), "only the other end"),
    "a cancel ack": (message(CANCEL_ACK, ids(1)), "only the other end"),
    "a goaway": (message(GO_AWAY, b"bye"), "only the other end"),
    "request cut short": (message(CALL, b"abc"), "truncated request"),
    "request without its method": (message(CALL, request(1, "x", method_bytes=9999)), "truncated request"),
    "call id 0": (message(CALL, request(0, "Lab.add", 1)), "call id 0"),
    "call id twice": (GOOD + GOOD, "call id 1"),
    "call id of the core's own": (message(CALL, request(1 << 63, "Lab.add", 1)), "call id"),
    "call id of the core's items": (message(CALL, request(1 << 62, "Lab.add", 1)), "call id"),
    "call id of items, to be fetched": (bulk(1 << 62), "call id"),
    "descriptors missing": (message(CALL, request(1, "x", descriptor_count=4000)), "truncated request"),
    "more descriptors missing": (
        message(CALL, request(1, "x", descriptor_count=65535)),
        "truncated request",
    ),
    "unknown flags": (message(CALL, request(1, "x", flags=8)), "unknown flags 8"),
    "metadata past the end": (message(CALL, request(1, "x", metadata_bytes=900)), "truncated request"),
    "descriptor of 1 EiB": (reading(0, 1 << 60), "bad descriptor"),
    "descriptor without the keys of its rails": (reading(0, 1 << 61), "truncated request"),
    "descriptor that wraps": (reading((1 << 64) - 5, 100), "wraps"),
    "descriptors that add up": (reading(0, 1 << 39, 3), "bad descriptor"),
    "bulk cut short": (message(CALL_BULK, bytes(31)), "truncated bulk"),
    "bulk too long": (message(CALL_BULK, bytes(33)), "truncated bulk"),
    "bulk of nothing": (bulk(1, length=0), "bad descriptor"),
    "bulk of 2 EiB": (bulk(1, length=BIG), "bad descriptor"),
    "bulk that wraps": (bulk(1, address=(1 << 64) - 1), "bad descriptor"),
    "done of no call": (message(DONE, ids(5)), "never came"),
    "done cut short": (message(DONE, b"abc"), "truncated"),
    "done of nothing": (message(DONE), "truncated"),
    "cancel of no call": (message(CANCEL, ids(1 << 60)), "never came"),
    "more data than credits": (b"".join(message(CALL, request(i, "Lab.hold", "m", 0.01)) for i in range(1, 80)), ""),
    "more control than credits": (message(PING) * 50, ""),
    "more credits than slots": (message(CREDIT) * 1000, ""),
    "read of memory never exposed": (frame(READ_REQUEST, rkey=1, address=4096, length=100), "rkey"),
    "read of a wild rkey": (frame(READ_REQUEST, rkey=0xFFFFFFFF, address=BIG, length=1 << 30), "rkey"),
    "write to memory never exposed": (frame(WRITE, bytes(100), rkey=1, address=4096), "rkey"),
    "response to no read": (frame(READ_RESPONSE, bytes(10)), "no READ"),
    "acknowledgement of no write": (frame(WRITE_ACK, tag=1), "WRITE_ACK"),
    "not a frame": (b"\0" * 24, "frame magic"),
}  # fmt: skip


@pytest.mark.parametrize("what", MESSAGES)
def test_malformed_messages(lab_server: LabServer, what: str) -> None:
    data, reason = MESSAGES[what]
    peer = RawPeer(lab_server.address("tcp"))
    if "credits" in what and "more" in what:
        # It may also be that the server keeps up, and all is well; what counts is that it goes on.
        peer.send(data)
        peer.socket.shutdown(socket.SHUT_WR)
    else:
        peer.send(data)
    assert reason in peer.wait_for_end()
    still_answers(lab_server.address("tcp"))
    peer.close()


def test_payloads_that_are_no_messagepack(lab_server: LabServer) -> None:
    """The call fails, not the connection: that is between caller and method."""
    peer = RawPeer(lab_server.address("tcp"))
    payloads = (b"\xc1", b"", b"\xdf\xff\xff\xff\xff", b"\x91" * 500, random.Random(2).randbytes(300))
    for call_id, payload in enumerate(payloads, 1):
        body = request(call_id, "Lab.add")
        body = body[: body.index(b"Lab.add") + 7] + payload
        peer.send(message(CALL, body, data=call_id))
        kind, reply = peer.read_message()
        assert kind == REPLY
        assert struct.unpack_from("<QB", reply)[0] == call_id
        assert struct.unpack_from("<QB", reply)[1] != 0
    peer.close()
    still_answers(lab_server.address("tcp"))


def test_a_descriptor_that_cannot_be_read(lab_server: LabServer) -> None:
    """The server asks for the bytes and gets a NAK, a wrong answer, or none at all."""
    for answer in (frame(7, b"no", detail=4), frame(READ_RESPONSE, bytes(5)), b""):
        peer = RawPeer(lab_server.address("tcp"))
        peer.send(message(CALL, request(1, "Lab.size", descriptors=ARRAY)))
        while peer.read_frame()[0] != READ_REQUEST:
            pass
        peer.send(answer)
        if not answer:
            peer.socket.shutdown(socket.SHUT_WR)
        peer.wait_for_end()
        peer.close()
    still_answers(lab_server.address("tcp"))


def test_streams_cut_anywhere(lab_server: LabServer) -> None:
    whole = setup() + hello() + GOOD + message(CALL, request(2, "Lab.size", descriptors=ARRAY))
    for cut in range(0, len(whole), 3):
        peer = RawPeer(lab_server.address("tcp"), greet=False)
        peer.send(whole[:cut])
        peer.close()
    still_answers(lab_server.address("tcp"))


def test_noise_after_hello(lab_server: LabServer) -> None:
    """Messages with one part at random, a few hundred of them."""
    numbers = random.Random(3)
    good = [
        GOOD,
        message(PING),
        bulk(1),
        message(DONE, ids(1)),
        message(CALL, request(1, "Lab.size", descriptors=ARRAY)),
    ]
    for _ in range(300):
        peer = RawPeer(lab_server.address("tcp"))
        data = bytearray(numbers.choice(good))
        for _ in range(numbers.randint(1, 4)):
            data[numbers.randrange(24, len(data))] = numbers.randrange(256)
        peer.send(bytes(data))
        peer.close()
    still_answers(lab_server.address("tcp"))
    with rrpc.connect(lab_server.address("tcp"), timeout=20.0) as client:
        eventually(lambda: client.call("Lab.counts")["exposures_live"] == 0)


# The same server over its Unix socket


PREAMBLE = b"rrpc-shm" + struct.pack("<II", 2, 0)
OTHER_PREAMBLE = b"rrpc-shm" + struct.pack("<II", 9, 0)
UNIX_GREETINGS = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(64),
    "noise": random.Random(4).randbytes(4096),
    "other version": OTHER_PREAMBLE,
    "no setup": PREAMBLE,
    "oversized": PREAMBLE + b"\x01\0\xff\xff",
    "setup without a file": PREAMBLE + b"\x01\0\x20\0" + bytes(32),
    "unknown type": PREAMBLE + b"\x63\0\0\0",
}


@pytest.mark.parametrize("data", UNIX_GREETINGS.values(), ids=UNIX_GREETINGS)
def test_malformed_on_the_unix_socket(lab_server: LabServer, data: bytes) -> None:
    address = lab_server.address("shm")
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(20)
            peer.connect(address.removeprefix("shm://"))
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            try:
                while peer.recv(4096):
                    pass
            except ConnectionError:
                pass
        still_answers(address)


# Hostile and foreign servers


FOREIGN = {
    "http": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
    "ssh": (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
    "zeros": (b"\0" * 100, "magic"),
    "noise": (random.Random(5).randbytes(1000), "magic"),
    "tcp version": (setup(frame_version=7), "version 7"),
    "wire version": (setup(version=7), "version 7"),
    "setup": (setup(text=b"nope"), "magic"),
    "offer": (setup(magic=5), "magic"),
    "ring": (setup(slots=3), "impossible ring"),
    "frame": (frame(66), "type 66"),
    "reply": (setup() + message(REPLY, bytes(24)), "before HELLO"),
    "two hellos": (setup() + hello() + hello(), "HELLO"),
}


@pytest.mark.parametrize("scheme", ["tcp", "rrpc"])
@pytest.mark.parametrize("what", FOREIGN)
def test_clients_name_a_foreign_server(impostor: Callable[..., str], scheme: str, what: str) -> None:
    answer, said = FOREIGN[what]
    address = impostor(answer, scheme)

    def use() -> None:
        with rrpc.connect(address, connect_timeout=10.0) as client:
            client.call("Lab.add", 1, timeout=10)  # the greeting was fine, what followed was not

    with pytest.raises(rrpc.ProtocolError, match=said):
        use()


@pytest.mark.parametrize("scheme", ["tcp", "rrpc", "shm"])
def test_clients_of_a_server_that_hangs_up(impostor: Callable[..., str], scheme: str) -> None:
    with pytest.raises((rrpc.Unavailable, rrpc.ProtocolError)) as raised:
        rrpc.connect(impostor(b"", scheme, close=True), connect_timeout=10.0)
    assert "connecting to" in str(raised.value)


def test_a_server_that_hangs_up_after_its_hello(impostor: Callable[..., str]) -> None:
    address = impostor(setup() + hello(), close=True)
    for _ in range(500):  # whenever it is noticed, before the call or amid it, the reason is told
        with (
            rrpc.connect(address, lazy=True) as client,
            pytest.raises(rrpc.Unavailable, match=r"^peer (closed|lost)"),
        ):
            client.call("Lab.add", 1, timeout=10)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"rrpc-shm" + struct.pack("<II", 9, 0) + bytes(100)]
)
def test_clients_name_a_foreign_unix_server(impostor: Callable[..., str], answer: bytes) -> None:
    with pytest.raises(rrpc.ProtocolError, match=r"rrpc|version|magic"):
        rrpc.connect(impostor(answer, "shm"), connect_timeout=10.0)


def test_a_real_http_server() -> None:
    """It waits for the end of our first line, and complains where one of our random bytes happens to be that."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for scheme in ("tcp", "rrpc"):
                address = f"{scheme}://127.0.0.1:{server.server_port}"
                with pytest.raises(
                    (rrpc.ProtocolError, rrpc.DeadlineExceeded),
                    match=r"HTTP|handshake|no answer|doesn't speak rrpc",
                ):
                    rrpc.connect(address, connect_timeout=0.5)
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (message(REPLY, reply(9)), "call 9"),
        (message(REPLY, b"abc"), ""),
        (message(REPLY, REPLY_HEAD.pack(1, 99, 0, 0, 0xFFFF, 0, 0, 0)), "status 99"),
        (message(REPLY, REPLY_HEAD.pack(1, 0, 0, 0, 3, 0, 0, 0)), "out index"),
        (
            message(REPLY, REPLY_HEAD.pack(1, 0, 1, 1, 0, 0, 0, 0) + DESCRIPTOR.pack(0, 100, 1)),
            "out=",
        ),
        (message(REPLY, REPLY_HEAD.pack(1, 0, 0, 5, 0xFFFF, 0, 0, 0)), "truncated reply"),
        (message(CALL, request(1, "x")), "only the other end"),
        (message(PING, data=50), "credits"),
    ],
    ids=["unknown call", "short", "status", "out index", "out", "descriptors", "request", "credits"],
)
def test_clients_of_a_server_that_answers_nonsense(
    impostor: Callable[..., str], answer: bytes, said: str
) -> None:
    address = impostor(setup() + hello(), then=answer)
    with rrpc.connect(address, connect_timeout=10.0) as client:
        with pytest.raises(rrpc.ProtocolError, match=said):
            client.call("Lab.add", 1, timeout=10)
        with pytest.raises(rrpc.RpcError, match=said):
            client.call("Lab.add", 1, timeout=10)


def test_a_reply_before_its_call(impostor: Callable[..., str]) -> None:
    address = impostor(setup() + hello() + message(REPLY, reply(1)))

    def use() -> None:
        with rrpc.connect(address, connect_timeout=10.0) as client:
            client.call("Lab.add", 1, timeout=10)

    with pytest.raises(rrpc.ProtocolError, match="not under way"):
        use()
