"""A peer that speaks the tcp wire format by hand, so that it can speak it wrongly. See docs/protocol.md."""

import socket
import struct
from typing import Any

from rrpc._interface import untyped_request

FRAME = struct.Struct("<BBHIQII")  # magic, type, detail, rkey, address, length, tag
OFFER = struct.Struct("<IHHIII")  # magic, version, flags, slots, slot bytes, epoch
HEADER = struct.Struct("<HBBIIII")  # magic, type, reserved, body bytes, epoch, data and control granted
# call id, status, flags, descriptors, out index, metadata bytes, text bytes, reserved
REPLY_HEAD = struct.Struct("<QBBHHHII")
REQUEST = struct.Struct("<QqHHBxH")  # call id, timeout, method bytes, descriptors, flags, metadata bytes
DESCRIPTOR = struct.Struct("<QQI")  # address, length, rkey
BULK = struct.Struct("<QQQII")  # call id, address, length, rkey, reserved

FRAME_MAGIC, OFFER_MAGIC, HEADER_MAGIC = 0xA7, 0x43505252, 0x7272
SETUP, SEND, READ_REQUEST, READ_RESPONSE, WRITE, WRITE_ACK, NAK, GOODBYE, PUSH = range(1, 10)
HELLO, CALL, CALL_BULK, REPLY, REPLY_BULK, ITEM, ITEM_BULK = range(1, 8)
DONE, CANCEL, CANCEL_ACK, PING, PONG, GO_AWAY, WINDOW, GO_AWAY_ACK = range(64, 72)
CREDIT = 128
EPOCH = 77


def frame(
    kind: int, payload: bytes = b"", *, detail: int = 0, rkey: int = 0, address: int = 0, **more: int
) -> bytes:
    length = more.get("length", len(payload))
    magic, tag = more.get("magic", FRAME_MAGIC), more.get("tag", 0)
    return FRAME.pack(magic, kind, detail, rkey, address, length, tag) + payload


def setup(*, frame_version: int = 1, text: bytes = b"rrpc", read_depth: int = 16, **offer: int) -> bytes:
    magic, version = offer.get("magic", OFFER_MAGIC), offer.get("version", 1)
    slots, slot_bytes = offer.get("slots", 64), offer.get("slot_bytes", 8192)
    private = OFFER.pack(magic, version, 0, slots, slot_bytes, EPOCH)
    return frame(SETUP, text + struct.pack("<I", read_depth) + private, detail=frame_version)


def message(kind: int, body: bytes = b"", **header: int) -> bytes:
    """A SEND frame with one message of rrpc in it."""
    packed = HEADER.pack(
        header.get("magic", HEADER_MAGIC),
        kind,
        0,
        header.get("body_bytes", len(body)),
        header.get("epoch", EPOCH),
        header.get("data", 0),
        header.get("control", 0),
    )
    return frame(SEND, packed + body)


def hello(**fields: bytes) -> bytes:
    """Says `wire`, and more when asked to."""
    parts = [(name.encode(), value) for name, value in {"wire": b"1", **fields}.items()]
    packed = (struct.pack("<H", len(text)) + text for part in parts for text in part)
    return message(HELLO, b"".join(packed))


def hello_fields(body: bytes) -> dict[str, bytes]:
    """The fields of a HELLO."""
    texts, at = [], 0
    while at < len(body):
        (length,) = struct.unpack_from("<H", body, at)
        texts.append(body[at + 2 : at + 2 + length])
        at += 2 + length
    return {name.decode(): value for name, value in zip(texts[::2], texts[1::2], strict=True)}


def request(call_id: int, method: str | bytes, *args: Any, descriptors: bytes = b"", **fixed: int) -> bytes:
    """The body of a request; `fixed` overrides what its first bytes say."""
    payload, _ = untyped_request(args, {}, None)
    name = method.encode() if isinstance(method, str) else method
    count = fixed.get("descriptor_count", len(descriptors) // DESCRIPTOR.size)
    head = REQUEST.pack(
        call_id,
        fixed.get("timeout", -1),
        fixed.get("method_bytes", len(name)),
        count,
        fixed.get("flags", 0),
        fixed.get("metadata_bytes", 0),
    )
    return head + descriptors + name + payload


def reply(call_id: int, payload: bytes = b"", *, status: int = 0, text: bytes = b"") -> bytes:
    """The body of a reply without buffers; `text` is an error's."""
    head = REPLY_HEAD.pack(call_id, status, 0, 0, 0xFFFF, 0, len(text), 0)
    return head + text + payload


class RawPeer:
    """One connection, up to HELLO when wished, which says ``fields`` too."""

    def __init__(self, address: str, *, greet: bool = True, slot_bytes: int = 8192, **fields: bytes) -> None:
        host, port = address.split("://")[1].rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.peer_epoch = 0
        self.reason = ""
        self.hello: dict[str, bytes] = {}
        if greet:
            self.send(setup(slot_bytes=slot_bytes))
            kind, payload = self.read_frame()
            assert kind == SETUP
            self.peer_epoch = OFFER.unpack_from(payload, 8)[5]
            self.send(hello(**fields))
            kind, body = self.read_message()
            assert kind == HELLO
            self.hello = hello_fields(body)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError(self.reason)
            data += part
        return data

    def read_frame(self) -> tuple[int, bytes]:
        """The next frame; a goodbye's reason is kept."""
        _, kind, _, _, _, length, _ = FRAME.unpack(self.read_exactly(FRAME.size))
        payload = self.read_exactly(length) if kind not in (READ_REQUEST, WRITE_ACK) else b""
        if kind in (GOODBYE, NAK):
            self.reason = payload.decode()
        return kind, payload

    def read_message(self) -> tuple[int, bytes]:
        """The next message of rrpc; frames that carry none are passed over."""
        while True:
            kind, payload = self.read_frame()
            if kind == SEND:
                return HEADER.unpack_from(payload)[1], payload[HEADER.size :]

    def wait_for_end(self) -> str:
        """Reads until the other end has closed; gives its reason, "" if it gave none."""
        try:
            while True:
                self.read_frame()
        except (EOFError, ConnectionError):
            return self.reason

    def close(self) -> None:
        self.socket.close()
