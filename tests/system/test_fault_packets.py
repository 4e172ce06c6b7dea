"""What the man in the middle of an adapter's cable makes of packets (tests/faults/packet_wire.py)."""

import struct
import zlib

import numpy as np
from faults.rxe_packets import RxePackets
from faults.siw_packets import SiwPackets
from raw_peer import CALL, FRAME, PING, message, request

PING_MESSAGE = message(PING)[FRAME.size :]
REQUEST = message(CALL, request(1, "Busy.echo", 7))[FRAME.size :]
CLIENT, SERVER = bytes([10, 8, 2, 1]), bytes([10, 8, 1, 1])
SEND, SEND_ONLY, READ_REQUEST, ACKNOWLEDGE = 0x03, 0x04, 0x0C, 0x11
SYN, ACK, RST = 2, 16, 4


def ip(protocol: int, source: bytes, destination: bytes, body: bytes) -> bytearray:
    """A frame; the header's sum is nothing that is looked at here."""
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0) + source + destination
    return bytearray(b"\x02" * 12 + b"\x08\x00" + head + body)


def roce(opcode: int, sequence: int, payload: bytes, queue_pair: int = 17) -> bytearray:
    padding = -len(payload) % 4
    base = struct.pack(">BBHII", opcode, padding << 4, 0xFFFF, queue_pair, sequence)
    body = base + payload + bytes(padding + 4)
    return ip(17, CLIENT, SERVER, struct.pack(">HHHH", 50_000, 4791, 8 + len(body), 0) + body)


def tcp(sequence: int, payload: bytes, flags: int = ACK, back: bool = False) -> bytearray:
    ports, ends = ((7471, 50_000), (SERVER, CLIENT)) if back else ((50_000, 7471), (CLIENT, SERVER))
    head = struct.pack(">HHIIBBHHH", *ports, sequence, 0, 5 << 4, flags, 1000, 0, 0)
    return ip(6, *ends, head + payload)


def mpa(operation: int, payload: bytes, offset: int = 0) -> bytes:
    """A frame of a message on a queue, with the room for its CRC."""
    body = struct.pack(">BB12xI", 0x41, 0x40 | operation, offset) + payload
    framed = struct.pack(">H", len(body)) + body
    return framed + bytes(-len(framed) % 4 + 4)


def introduced(packets: SiwPackets) -> int:
    """Both ends have sent a SYN and the MPA's first frame; returns the client's next sequence number."""
    first = b"MPA ID Req Frame" + struct.pack(">BBH", 0, 1, 4) + b"abcd"
    for back in (False, True):
        for frame in (tcp(999, b"", SYN, back), tcp(1000, first, back=back)):
            assert packets.messages(frame) == []
            packets.passed(frame)
    return 1000 + len(first)


def test_roce_messages_have_names_once() -> None:
    packets = RxePackets()
    ping = roce(SEND_ONLY, 5, PING_MESSAGE)
    [(name, place)] = packets.messages(ping)
    assert (name, bytes(ping[place])) == ("PING", PING_MESSAGE)
    assert packets.messages(ping) == [], "sent again"
    [(name, place)] = packets.messages(roce(SEND_ONLY, 6, REQUEST))
    assert (name, place.stop - place.start) == ("REQUEST", len(REQUEST)), "without padding"
    assert [name for name, _ in packets.messages(roce(READ_REQUEST, 7, bytes(16)))] == ["READ"]
    assert packets.messages(roce(ACKNOWLEDGE, 9, bytes(4))) == []
    assert packets.messages(roce(SEND_ONLY, 8, PING_MESSAGE)), "an acknowledgement counts the other way"
    assert packets.messages(roce(SEND_ONLY, 1, PING_MESSAGE, queue_pair=1)) == [], "a connection manager's"
    assert packets.messages(roce(SEND_ONLY, 3, PING_MESSAGE, queue_pair=18)), "another queue pair's"


def test_the_icrc_leaves_out_what_routers_change() -> None:
    """RoCE v2's sum over a packet is that over the packet with ones in the fields which change on its way."""
    frame = roce(SEND_ONLY, 5, PING_MESSAGE)
    packets = RxePackets()
    packets.seal(frame)
    sealed = bytes(frame[-4:])
    frame[15], frame[22], frame[24:26], frame[40:42], frame[46] = 0xFF, 0xFF, b"\xff\xff", b"\xff\xff", 0xFF
    assert sealed == struct.pack("<I", zlib.crc32(b"\xff" * 8 + frame[14:-4]))
    packets.seal(frame)
    assert bytes(frame[-4:]) == sealed
    frame[-8] ^= 1
    packets.seal(frame)
    assert bytes(frame[-4:]) != sealed


def test_iwarp_messages_are_found_wherever_their_frames_begin() -> None:
    packets = SiwPackets()
    sequence = introduced(packets)
    both = mpa(SEND, PING_MESSAGE) + mpa(SEND, REQUEST)
    frame = tcp(sequence, both)
    found = packets.messages(frame)
    assert [(name, bytes(frame[place])) for name, place in found] == [
        ("PING", PING_MESSAGE),
        ("REQUEST", REQUEST),
    ]
    assert packets.messages(frame) == [], "sent again"
    sequence += len(both)
    long = mpa(SEND, REQUEST + bytes(100))
    assert [name for name, _ in packets.messages(tcp(sequence, long[:60]))] == ["REQUEST"]
    rest = tcp(sequence + 60, long[60:] + mpa(0x01, bytes(28)))
    assert [name for name, _ in packets.messages(rest)] == ["READ"], "after the end of the one before"
    assert packets.messages(tcp(1, mpa(SEND, PING_MESSAGE), back=True)) == [], "that stream is elsewhere"


def test_resets_come_with_the_number_that_the_receiver_expects() -> None:
    packets = SiwPackets()
    sequence = introduced(packets)
    frame = tcp(sequence, mpa(SEND, PING_MESSAGE))
    packets.messages(frame)
    packets.passed(frame)
    expected = sequence + len(frame) - 54
    resets = packets.resets()
    assert {struct.unpack_from(">H2xI", reset, 34) for reset in resets} == {
        (50_000, expected),
        (7471, sequence),
    }
    assert all(reset[47] == RST for reset in resets)
    assert packets.resets() == [], "they are gone"
    packets.messages(tcp(5, b"", SYN))
    assert packets.resets() == [], "Soft-iWARP mayn't have accepted it yet"


def test_tcp_sums_are_right() -> None:
    frame = tcp(7, PING_MESSAGE + b"x")
    SiwPackets().seal(frame)
    segment = bytes(frame[26:34]) + struct.pack(">HH", 6, len(frame) - 34) + bytes(frame[34:]) + b"\0"
    total = int(np.frombuffer(segment, ">u2").sum())
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
