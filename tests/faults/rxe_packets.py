"""Packets of RoCE v2, as Soft-RoCE sends them: Ethernet, IPv4, UDP, a base transport header, and at the end the ICRC.

InfiniBand Architecture Specification, volume 1, chapter 9 and annex A17 (RoCE v2).
"""

import struct
import zlib

from .gate import message_name

ETHERNET_BYTES = 14
_UDP_BYTES, _ROCE_PORT = 8, 4791
_BASE = struct.Struct(">BBHII")  # opcode, flags, partition key, destination, packet sequence number
_SEND_FIRST, _SEND_ONLY, _SEND_ONLY_INVALIDATE = 0x00, 0x04, 0x17
_READ_REQUEST, _RESPONSE_FIRST, _RESPONSE_ONLY = 0x0C, 0x0D, 0x10
_RESPONSES = range(_RESPONSE_FIRST, _RESPONSE_ONLY + 1)
_ACKNOWLEDGE = 0x11
_INVALIDATE_BYTES = _ADDRESS_BYTES = 4
_READ_BYTES = 16  # address, rkey, length
_ICRC_BYTES = 4
_MANAGEMENT = 1  # the queue pair of the connection manager
_HALF = 1 << 23  # of the sequence numbers


class RxePackets:
    """Of any number of connections."""

    def __init__(self) -> None:
        self._last: dict[tuple[bytes, int, bool], int] = {}

    def messages(self, frame: bytearray) -> list[tuple[str, slice]]:
        """Returns the message that begins in a frame, unless it is sent again."""
        begin = _transport_header(frame)
        if begin == 0:
            return []
        opcode, flags, _, destination, sequence = _BASE.unpack_from(frame, begin)
        queue_pair, number = destination & 0xFFFFFF, sequence & 0xFFFFFF
        if queue_pair == _MANAGEMENT or opcode == _ACKNOWLEDGE:
            return []
        address = bytes(frame[begin - _UDP_BYTES - _ADDRESS_BYTES : begin - _UDP_BYTES])
        if not self._is_new((address, queue_pair, opcode in _RESPONSES), number):
            return []
        begin += _BASE.size
        end = len(frame) - _ICRC_BYTES - (flags >> 4 & 3)
        if opcode in (_SEND_FIRST, _SEND_ONLY, _SEND_ONLY_INVALIDATE):
            begin += _INVALIDATE_BYTES if opcode == _SEND_ONLY_INVALIDATE else 0
            return [(message_name(bytes(frame[begin:end])), slice(begin, end))]
        if opcode == _READ_REQUEST:
            return [("READ", slice(begin, begin + _READ_BYTES))]
        if opcode in (_RESPONSE_FIRST, _RESPONSE_ONLY):
            return [("READ_DATA", slice(begin, end))]
        return []

    def _is_new(self, queue: tuple[bytes, int, bool], number: int) -> bool:
        """Requests and responses to a queue pair are counted apart: both by the numbers of the requests."""
        last = self._last.get(queue)
        if last is not None and (number - last - 1) % (1 << 24) >= _HALF:
            return False
        self._last[queue] = number
        return True

    def seal(self, frame: bytearray) -> None:
        """Makes the ICRC right."""
        begin = _transport_header(frame)
        if begin:
            frame[-_ICRC_BYTES:] = struct.pack("<I", _icrc(frame, begin))

    def passed(self, frame: bytearray) -> None:
        """Nothing is to be noted."""

    def resets(self) -> list[bytes]:
        """None: nobody but an end can end such a connection."""
        return []


def _transport_header(frame: bytearray) -> int:
    """Where it begins, 0 in other frames."""
    begin = ETHERNET_BYTES + 4 * (frame[ETHERNET_BYTES] & 0xF)
    is_ipv4_udp = frame[12:14] == b"\x08\x00" and frame[ETHERNET_BYTES + 9] == 17
    if not is_ipv4_udp or struct.unpack_from(">H", frame, begin + 2)[0] != _ROCE_PORT:
        return 0
    return begin + _UDP_BYTES


def _icrc(frame: bytearray, begin: int) -> int:
    """Over all from the IP header on; what routers change counts as ones, and so do eight bytes in front."""
    masked = frame[ETHERNET_BYTES:-_ICRC_BYTES]
    udp, base = begin - _UDP_BYTES - ETHERNET_BYTES, begin - ETHERNET_BYTES
    for place in (
        slice(1, 2),
        slice(8, 9),
        slice(10, 12),
        slice(udp + 6, udp + 8),
        slice(base + 4, base + 5),
    ):
        masked[place] = b"\xff" * (place.stop - place.start)
    return zlib.crc32(b"\xff" * 8 + masked)
