"""A client of rrpc over tcp, written from docs/protocol.md: the standard library, msgpack, one thread."""

import itertools
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct, pack, unpack_from
from typing import Any, NamedTuple

import msgpack

FRAME = Struct("<BBHIQII")  # magic, type, detail, rkey, address, length, tag
OFFER = Struct("<IHHIII")  # magic, version, flags, slots, slot_bytes, epoch
HEADER = Struct("<HBBIIII")  # magic, type, reserved, body_bytes, epoch, data_granted, control_granted
REQUEST_HEAD = Struct("<QqHHBBH")  # call id, timeout, method bytes, descriptors, flags, 0, metadata bytes
REPLY_HEAD = Struct("<QBBHHHII")  # call id, status, flags, descriptors, out index, metadata, text bytes, 0
ITEM_HEAD = Struct("<QIHBB")  # call id, sequence, descriptors, flags, 0
BULK = Struct("<QQQII")  # call id, address, length, rkey, 0 or an item's sequence
WINDOW_ENTRY = Struct("<QIIQ")  # call id, fetched, taken, taken bytes
DESCRIPTOR = Struct("<QQI")  # address, length, rkey
U16, U32, U64 = Struct("<H"), Struct("<I"), Struct("<Q")

FRAME_MAGIC, HEADER_MAGIC, OFFER_MAGIC = 0xA7, 0x7272, 0x43505252
SETUP, SEND, READ_REQUEST, READ_RESPONSE, WRITE, WRITE_ACK, NAK, GOODBYE = range(1, 9)
HELLO, REQUEST, REQUEST_BULK, REPLY, REPLY_BULK, ITEM, ITEM_BULK = range(1, 8)
DONE, CANCEL, CANCEL_ACK, PING, PONG, GOAWAY, WINDOW, GOAWAY_ACK = range(64, 72)
CREDIT, TOP, LOW = 128, 1 << 63, 0xFFFFFFFF
SLOTS, SLOT_BYTES, READS, CHUNK, IN_BUFFER = 64, 8192, 16, 1 << 20, 16 << 10
WINDOW_ITEMS, WINDOW_BYTES, PATIENCE = 1024, 8 << 20, 10.0
CANCELLED, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE = 1, 4, 13, 14
ARRAY, BYTES, DATACLASS = 1, 3, 19  # in buffers: 2 and 4
CONTAINERS: dict[int, Any] = {16: tuple, 17: set, 18: frozenset}
BYTES_LIKE: tuple[Any, ...] = (bytes, bytearray, memoryview)


class CallError(Exception):
    """A call or the connection failed, with gRPC's code. ``not_executed``: no handler has seen the call."""

    def __init__(self, code: int, text: str, details: Any = None, not_executed: bool = False) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.details, self.not_executed = code, text, details or {}, not_executed


def texts(data: bytes, length: Struct) -> Iterator[bytes]:
    """Yields texts that follow each other, each with its length before it."""
    while data:
        end = length.size + length.unpack_from(data)[0]
        yield data[length.size : end]
        data = data[end:]


class Array(NamedTuple):
    """An array in C order; ``np.frombuffer(array.data, array.dtype).reshape(array.shape)`` is numpy's."""

    dtype: str
    shape: tuple[int, ...]
    data: Any  # bytes-like


def encode(value: Any, buffers: list[memoryview]) -> bytes:
    """Returns the payload. Appends to ``buffers`` what the peer is to READ."""
    return b"\xc1" + msgpack.packb(_prepared(value, buffers))  # there may be marked lists


def _prepared(value: Any, buffers: list[memoryview]) -> Any:
    if isinstance(value, Array):
        rank = len(value.shape)
        header = pack(f"<BB{rank}Q", 0, rank, *value.shape) + value.dtype.encode()
        return _in_buffer(ARRAY, pack("<H", len(header)) + header, value.data, buffers)
    if isinstance(value, BYTES_LIKE):
        return _in_buffer(BYTES, bytes((BYTES_LIKE.index(type(value)), 0)), value, buffers)
    if isinstance(value, dict):
        return {key: _prepared(item, buffers) for key, item in value.items()}
    mark = [msgpack.ExtType(code, b"") for code, kind in CONTAINERS.items() if isinstance(value, kind)]
    return mark + [_prepared(item, buffers) for item in value] if mark or isinstance(value, list) else value


def _in_buffer(code: int, header: bytes, data: Any, buffers: list[memoryview]) -> Any:
    view = memoryview(data).cast("B")
    if view.nbytes < IN_BUFFER:
        return msgpack.ExtType(code, header + view)
    buffers.append(view)
    return msgpack.ExtType(code + 1, pack("<I", len(buffers) - 1) + header)


def decode(payload: bytes, buffers: Sequence[bytearray] = ()) -> Any:
    """Returns the value of a payload whose buffers have been read."""

    def extension(code: int, data: bytes) -> Any:
        source: Any = None
        if code in (ARRAY + 1, BYTES + 1):
            source, data, code = buffers[unpack_from("<I", data)[0]], data[4:], code - 1
        if code == ARRAY:
            length, flags, rank = unpack_from("<HBB", data)
            if flags & 1:
                raise ValueError("this client knows no arrays in Fortran order")
            dtype, shape = data[4 + 8 * rank : 2 + length].decode(), unpack_from(f"<{rank}Q", data, 4)
            return Array(dtype, shape, bytearray(data[2 + length :]) if source is None else source)
        if code == BYTES:
            return BYTES_LIKE[data[0]](data[2:] if source is None else source)
        return msgpack.ExtType(code, data)

    def container(items: list[Any]) -> Any:
        code, _ = items[0] if items and isinstance(items[0], msgpack.ExtType) else (0, b"")
        if code == DATACLASS:
            return items[1]  # its fields
        return CONTAINERS[code](items[1:]) if code in CONTAINERS else items

    marked = payload[:1] == b"\xc1"
    hooks = {"ext_hook": extension, "list_hook": container if marked else None}
    return msgpack.unpackb(payload[marked:], strict_map_key=False, **hooks)


class Call:
    """One call under way: send and finish, iterate, then result()."""

    def __init__(self, wire: "Wire", number: int, seconds: float | None) -> None:
        self.wire, self.number = wire, number
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.reply: tuple[int, bytes] | None = None  # the type and the body
        self.error: CallError | None = None
        self.items: deque[tuple[int, bytes]] = deque()  # as in reply; 0 and the payload: one of several
        self.arrived = self.taken = self.taken_bytes = 0
        self.sent = self.sent_bytes = self.peer_fetched = self.peer_taken = self.peer_taken_bytes = 0

    def send(self, value: Any) -> None:
        """Sends an item once the server's window has room."""
        buffers: list[memoryview] = []
        payload = encode(value, buffers)
        size = len(payload) + sum(buffer.nbytes for buffer in buffers)
        self.wire.wait(lambda: self.reply or self.has_room(size), self)
        if self.reply:
            return  # the server wants no more items
        descriptors = b"".join(self.wire.expose(buffer, self.number, self.sent) for buffer in buffers)
        body = ITEM_HEAD.pack(self.number, self.sent & LOW, len(buffers), 0, 0) + descriptors + payload
        if bulk := len(body) > self.wire.body_bytes:
            where = self.wire.expose(memoryview(body), self.number, self.sent)
            body = U64.pack(self.number) + where + pack("<IQ", self.sent & LOW, size)
        self.sent, self.sent_bytes = self.sent + 1, self.sent_bytes + size
        self.wire.send_data(ITEM_BULK if bulk else ITEM, body, self)

    def has_room(self, size: int) -> bool:
        (items, most), out = self.wire.peer_window, self.sent_bytes - self.peer_taken_bytes
        return self.sent - self.peer_taken < items and (out + size <= most or out <= most // 4)

    def finish(self) -> None:
        """Ends this end's items."""
        self.wire.send_data(ITEM, ITEM_HEAD.pack(self.number, self.sent & LOW, 0, 1 | 2, 0), self)

    def on_item(self, kind: int, body: bytes) -> None:
        _, sequence, _, flags, _ = ITEM_HEAD.unpack_from(body)
        if kind == ITEM_BULK:
            sequence, flags = BULK.unpack_from(body)[4], 0
        if sequence != self.arrived & LOW:
            raise CallError(INTERNAL, f"item {sequence} in the place of {self.arrived}")
        come = [] if flags & 2 else [(kind, body)]
        if flags & 8:
            come = [(0, payload) for payload in texts(body[ITEM_HEAD.size :], U32)]
        self.arrived += len(come)
        if flags & 4:
            self.taken, self.taken_bytes = 1, len(body) - ITEM_HEAD.size  # metadata, which isn't used here
        else:
            self.items += come

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.wire.wait(lambda: self.items or self.reply, self)
            if not self.items:
                break
            kind, body = self.items.popleft()
            _, buffers, payload = self.wire.unfold(kind, body, ITEM_HEAD, 2) if kind else ((), [], body)
            self.taken += 1
            self.taken_bytes += sum(map(len, [payload, *buffers]))
            if buffers or kind == ITEM_BULK or self.taken % (WINDOW_ITEMS // 4) == 0:
                taken = self.taken & LOW
                self.wire.send_control(WINDOW, WINDOW_ENTRY.pack(self.number, taken, taken, self.taken_bytes))
            yield decode(payload, buffers)
        self.result()

    def result(self) -> Any:
        """Waits for the result. Raises CallError."""
        self.wire.wait(lambda: self.reply, self)
        kind, body = self.reply or (0, b"")
        head, buffers, rest = self.wire.unfold(kind, body, REPLY_HEAD, 3)
        if buffers or kind == REPLY_BULK or self.arrived:
            self.wire.send_control(DONE, U64.pack(self.number))
        _, status, flags, _, _, metadata_bytes, text_bytes, _ = head
        text, payload = rest[:text_bytes].decode(errors="replace"), rest[text_bytes + metadata_bytes :]
        if status:
            raise CallError(status, text, payload and decode(payload), bool(flags & 2))
        return decode(payload, buffers)

    def cancel(self, code: int = CANCELLED, text: str = "the call was cancelled") -> None:
        """Gives the call up: whatever waits for it raises CallError."""
        if self.reply is None and self.error is None:
            self.error = CallError(code, text)
            self.wire.send_control(CANCEL, U64.pack(self.number | (code == DEADLINE_EXCEEDED) << 63))


class Wire:
    """One connection. It answers PINGs and READs while a method waits."""

    def __init__(self, host: str, port: int) -> None:
        self.hello: dict[bytes, bytes] = {}
        self.draining: str | None = None  # GOAWAY's reason
        self.calls: dict[int, Call] = {}
        self.exposed: dict[int, tuple[memoryview, int, int]] = {}  # by rkey, with the call and the item
        self._numbers, self._tags = itertools.count(1), itertools.count()
        self._reads: deque[tuple[int, memoryview]] = deque()  # unanswered: the tag, where the bytes go
        self._sent, self._granted, self._windows = [0, 0], [0, 0], (0, 0)  # of data and control messages
        self._taken, self._told, self._own_window = [0, 0], [0, 0], 0  # those that come
        self._owed: deque[tuple[int, bytes]] = deque()  # control messages that wait for a credit
        self._epoch, self._peer_epoch, self._reads_max, self.body_bytes = secrets.randbits(32), 0, 0, 0
        self._socket = socket.create_connection((host, port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        offer = OFFER.pack(OFFER_MAGIC, 1, 0, SLOTS, SLOT_BYTES, self._epoch)
        self._frame(SETUP, b"rrpc" + U32.pack(READS) + offer, detail=1)
        self.wait(lambda: self.body_bytes)
        fields = (b"wire", b"1", b"window", f"{WINDOW_ITEMS},{WINDOW_BYTES}".encode())
        self.send_data(HELLO, b"".join(U16.pack(len(text)) + text for text in fields))
        self.wait(lambda: self.hello)
        if b"refused" in self.hello or b"go_to" in self.hello:  # the port in go_to takes the calls
            raise CallError(UNAVAILABLE, str(self.hello), not_executed=True)
        self.peer_window = [int(number) for number in self.hello[b"window"].split(b",")]

    def _on_setup(self, version: int, body: bytes) -> None:
        magic, offered, _, slots, slot_bytes, self._peer_epoch = OFFER.unpack_from(body, 8)
        if (version, body[:4], magic, offered) != (1, b"rrpc", OFFER_MAGIC, 1):
            raise CallError(INTERNAL, "the server doesn't speak version 1 of rrpc over tcp")
        self._reads_max = min(READS, *U32.unpack_from(body, 4))
        self.body_bytes = min(SLOT_BYTES, slot_bytes) - HEADER.size
        self._windows, self._own_window = (min(slots, 2 * SLOTS) - 8, 4), min(SLOTS, 2 * slots) - 8

    def _take(self, count: int) -> bytes:
        data = bytearray(count)
        if count and self._socket.recv_into(data, 0, socket.MSG_WAITALL) < count:
            raise CallError(UNAVAILABLE, "the server has closed the connection")
        return bytes(data)

    def _frame(self, kind: int, payload: Any = b"", detail: int = 0, tag: int = 0) -> None:
        self._socket.sendall(FRAME.pack(FRAME_MAGIC, kind, detail, 0, 0, len(payload), tag))
        self._socket.sendall(payload)

    def _message(self, kind: int, body: bytes) -> None:
        self._told = list(self._taken)
        header = HEADER.pack(HEADER_MAGIC, kind, 0, len(body), self._epoch, *(n & LOW for n in self._taken))
        self._frame(SEND, header + body, tag=next(self._tags) & LOW)

    def _has_credit(self, which: int) -> bool:
        return self._sent[which] - self._granted[which] < self._windows[which]

    def send_data(self, kind: int, body: bytes, call: Call | None = None) -> None:
        """Sends a data message once there is a credit for it."""
        self.wait(lambda: self._has_credit(0), call)
        self._sent[0] += 1
        self._message(kind, body)

    def send_control(self, kind: int, body: bytes = b"") -> None:
        """Sends a control message, now or when a credit comes."""
        self._owed.append((kind, body))
        self._flush()

    def _flush(self) -> None:
        while self._owed and self._has_credit(1):
            self._sent[1] += 1
            self._message(*self._owed.popleft())
        owed = [taken - told for taken, told in zip(self._taken, self._told, strict=True)]
        if owed[0] >= (self._own_window + 1) // 2 or owed[1] >= 2:
            self._message(CREDIT, b"")

    def wait(self, ready: Callable[[], Any], call: Call | None = None) -> None:
        """Receives until it's ready. Raises CallError when the call or the connection ends first."""
        while not ready():
            if call is not None and call.error is not None:
                raise call.error
            deadline = time.monotonic() + PATIENCE if call is None else call.deadline
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if select.select([self._socket], [], [], left)[0]:
                self._receive()
            elif call is None:
                raise CallError(UNAVAILABLE, "the server is silent")
            else:
                call.cancel(DEADLINE_EXCEEDED, "the call's deadline has passed")

    def _receive(self) -> None:
        magic, kind, detail, rkey, address, length, tag = FRAME.unpack(self._take(FRAME.size))
        payload = b"" if kind == READ_REQUEST else self._take(length)
        if magic == FRAME_MAGIC and kind == SETUP:
            self._on_setup(detail, payload)
        elif magic == FRAME_MAGIC and kind == SEND:
            self._on_message(payload)
        elif kind == READ_REQUEST:
            memory = self.exposed[rkey][0] if rkey in self.exposed else memoryview(b"")
            if address + length > len(memory):
                raise CallError(INTERNAL, "the server READs memory that isn't exposed")
            self._frame(READ_RESPONSE, memory[address : address + length], tag=tag)
        elif kind == READ_RESPONSE and self._reads and self._reads[0][0] == tag:
            self._reads.popleft()[1][:] = payload
        elif kind in (NAK, GOODBYE):
            raise CallError(UNAVAILABLE, payload.decode(errors="replace"))
        else:
            raise CallError(INTERNAL, f"a frame of type {kind} out of turn")

    def _on_message(self, message: bytes) -> None:
        magic, kind, _, length, epoch, *granted = HEADER.unpack_from(message)
        body = message[HEADER.size :]
        if (magic, length, epoch) != (HEADER_MAGIC, len(body), self._peer_epoch):
            raise CallError(INTERNAL, "a message with a bad header")
        self._granted = [old + ((new - old) & LOW) for old, new in zip(self._granted, granted, strict=True)]
        if kind != CREDIT:
            self._taken[kind >= DONE] += 1
        if kind == HELLO:
            found = list(texts(body, U16))
            self.hello = dict(zip(found[::2], found[1::2], strict=True))
        elif kind == GOAWAY:
            self.draining = body.decode(errors="replace")
            self.send_control(GOAWAY_ACK)
        elif kind == PING:
            self.send_control(PONG)
        elif kind == WINDOW:
            for number, fetched, taken, taken_bytes in WINDOW_ENTRY.iter_unpack(body):
                call = self.calls[number & ~TOP]
                call.peer_fetched += (fetched - call.peer_fetched) & LOW
                call.peer_taken += (taken - call.peer_taken) & LOW
                call.peer_taken_bytes = taken_bytes
                self.take_back(call.number, call.peer_fetched)
        elif kind in (ITEM, ITEM_BULK):
            self.calls[U64.unpack_from(body)[0] & ~TOP].on_item(kind, body)
        elif kind in (REPLY, REPLY_BULK, CANCEL_ACK):
            self._on_end(kind, body)
        self._flush()

    def _on_end(self, kind: int, body: bytes) -> None:
        for (number,) in U64.iter_unpack(body if kind == CANCEL_ACK else body[: U64.size]):
            call = self.calls[number & ~TOP]
            call.reply = None if kind == CANCEL_ACK else (kind, body)
            del self.calls[call.number]
            self.take_back(call.number, TOP)
            if call.error is not None and (call.reply or call.arrived):
                self.send_control(DONE, U64.pack(call.number))  # nobody wants the results

    def expose(self, memory: memoryview, number: int, item: int = TOP - 1) -> bytes:
        """Lets the server READ memory at address 0, for an item or until the call's end. Returns the descriptor."""
        rkey = secrets.randbits(32)
        self.exposed[rkey] = memory, number, item
        return DESCRIPTOR.pack(0, memory.nbytes, rkey)

    def take_back(self, number: int, end: int) -> None:
        self.exposed = {key: own for key, own in self.exposed.items() if own[1] != number or own[2] >= end}

    def unfold(self, kind: int, body: bytes, head: Struct, at: int) -> tuple[Any, list[bytearray], bytes]:
        """Fetches what a REPLY or an ITEM refers to. Returns its head, buffers, and the rest."""
        if kind in (REPLY_BULK, ITEM_BULK):
            body = bytes(self.fetch([BULK.unpack_from(body)[1:4]])[0])
        fields = head.unpack_from(body)
        end = head.size + fields[at] * DESCRIPTOR.size
        return fields, self.fetch(DESCRIPTOR.iter_unpack(body[head.size : end])), body[end:]

    def fetch(self, descriptors: Iterable[tuple[int, ...]]) -> list[bytearray]:
        """READs buffers."""
        buffers = [bytearray()]
        for address, length, rkey in descriptors:
            piece = memoryview(bytearray(length & ~TOP))
            for start in range(0, len(piece), CHUNK):
                part, tag = piece[start : start + CHUNK], next(self._tags) & LOW
                self._reads.append((tag, part))
                where = rkey, address + start, len(part)
                self._socket.sendall(FRAME.pack(FRAME_MAGIC, READ_REQUEST, 0, *where, tag))
                self.wait(lambda: len(self._reads) < self._reads_max)
            self.wait(lambda: not self._reads)
            buffers[-1] += piece
            if not length & TOP:
                buffers.append(bytearray())
        return buffers[:-1]

    def start(self, method: str, *args: Any, timeout: float | None = None, streams: int = 0) -> Call:
        """Begins a call. ``streams``: 2 if this end sends items, 4 if the server does, 6 if both do."""
        self.wait(lambda: self._has_credit(0))
        if self.draining is not None:
            raise CallError(UNAVAILABLE, f"the server takes no new calls: {self.draining}", not_executed=True)
        buffers: list[memoryview] = []
        payload, call = encode(list(args), buffers), Call(self, next(self._numbers), timeout)
        left = -1 if timeout is None else int(timeout * 1e9)
        head = REQUEST_HEAD.pack(call.number, left, len(method), len(buffers), streams, 0, 0)
        descriptors = b"".join(self.expose(buffer, call.number) for buffer in buffers)
        body = head + descriptors + method.encode() + payload
        if bulk := len(body) > self.body_bytes:
            body = U64.pack(call.number) + self.expose(memoryview(body), call.number) + bytes(4)
        self.calls[call.number] = call
        self.send_data(REQUEST_BULK if bulk else REQUEST, body)
        return call

    def close(self) -> None:
        """Says GOODBYE; calls under way are lost."""
        self._frame(GOODBYE, b"the client has closed the connection")
        self._socket.close()
