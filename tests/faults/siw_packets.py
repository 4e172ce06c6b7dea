"""Packets of iWARP, as Soft-iWARP sends them: Ethernet, IPv4, TCP, and in its stream MPA frames without markers or CRC.

RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP).
"""

import struct
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .gate import message_name

Flow: TypeAlias = bytes
"""Both addresses and ports, as they stand in a packet."""
_ETHERNET_BYTES, _IP_BYTES, _TCP_BYTES = 14, 20, 20
_HEADERS_BYTES = _ETHERNET_BYTES + _IP_BYTES + _TCP_BYTES
_FIN, _SYN, _RST = 1, 2, 4
_MODULUS = 1 << 32  # of sequence numbers
_LENGTH_BYTES, _CRC_BYTES = 2, 4
_MPA_REQUEST_BYTES = 20
_UNTAGGED_BYTES, _TAG_AT = 20, 4  # headers of a frame, its length included; where the tag of a tagged one is
_LAST = 0x40
_READ_REQUEST, _READ_RESPONSE = 1, 2
_SENDS = (3, 4, 5, 6)
_READ_BYTES = 28  # sink's tag and offset, size, source's tag and offset


@dataclass
class _Stream:
    """One direction of a connection."""

    frame_begin: int
    """The sequence number at which the next MPA frame begins."""
    expected: int
    """The sequence number that its receiver expects next."""
    introduced: bool = False
    in_response: bool = False
    headers: bytes = b""
    """Ethernet's, IP's and TCP's, of the last packet."""


class SiwPackets:
    """Of any number of connections."""

    def __init__(self) -> None:
        self._streams: dict[Flow, _Stream] = {}

    def messages(self, frame: bytearray) -> list[tuple[str, slice]]:
        """Returns the messages that begin in a frame, but for those that are sent again."""
        if not _is_tcp(frame):
            return []
        flow, sequence, flags, begin, end = _parsed(frame)
        if flags & _SYN:
            self._streams[flow] = _Stream(_plus(sequence, 1), sequence)
        stream = self._streams.get(flow)
        found: list[tuple[str, slice]] = []
        while stream is not None:
            at = begin + (stream.frame_begin - sequence) % _MODULUS
            if at > end - _LENGTH_BYTES:  # in another packet
                break
            found += _message(stream, frame, at, end)
        return found

    def seal(self, frame: bytearray) -> None:
        """Makes TCP's sum right, which the kernel leaves to an adapter."""
        if _is_tcp(frame):
            begin = _ETHERNET_BYTES + _IP_BYTES
            _, _, _, _, end = _parsed(frame)
            frame[begin + 16 : begin + 18] = b"\0\0"
            pseudo = bytes(frame[begin - 8 : begin]) + struct.pack(">HH", 6, end - begin)
            frame[begin + 16 : begin + 18] = _sum(pseudo + frame[begin:end])

    def passed(self, frame: bytearray) -> None:
        """Notes what the receiver of the frame expects now."""
        if not _is_tcp(frame):
            return
        flow, sequence, flags, begin, end = _parsed(frame)
        if flags & _RST:
            self._streams.pop(flow, None)
        if stream := self._streams.get(flow):
            stream.headers = bytes(frame[:_HEADERS_BYTES])
            after = _plus(sequence, end - begin + bool(flags & (_SYN | _FIN)))
            if (after - stream.expected) % _MODULUS < _MODULUS // 2:
                stream.expected = after

    def resets(self) -> list[bytes]:
        """Returns a RST for each direction of each connection, whose receiver takes it for its peer's.

        Not for one whose peers aren't introduced: for that a Soft-iWARP that hasn't accepted it closes its listener.
        """
        streams, self._streams = self._streams, {}
        answered = {flow for flow, stream in streams.items() if stream.introduced}
        return [_reset(streams[flow]) for flow in answered if _back(flow) in answered]


def _message(stream: _Stream, frame: bytearray, at: int, end: int) -> list[tuple[str, slice]]:
    """The message of the MPA frame that begins there; the stream goes on to the next one."""
    if not stream.introduced:
        stream.introduced = True
        (private_bytes,) = struct.unpack_from(">H", frame, at + _MPA_REQUEST_BYTES - _LENGTH_BYTES)
        stream.frame_begin = _plus(stream.frame_begin, _MPA_REQUEST_BYTES + private_bytes)
        return []
    (length,) = struct.unpack_from(">H", frame, at)
    unpadded = _LENGTH_BYTES + length
    stream.frame_begin = _plus(stream.frame_begin, unpadded + -unpadded % 4 + _CRC_BYTES)
    end = min(at + unpadded, end)
    if end - at < _UNTAGGED_BYTES:
        return []
    placement, operation, *_, offset = struct.unpack_from(">BB12xI", frame, at + _LENGTH_BYTES)
    operation &= 0xF
    if operation in _SENDS and offset == 0:
        message = slice(at + _UNTAGGED_BYTES, end)
        return [(message_name(bytes(frame[message])), message)]
    if operation == _READ_REQUEST:
        return [("READ", slice(at + _UNTAGGED_BYTES, at + _UNTAGGED_BYTES + _READ_BYTES))]
    if operation == _READ_RESPONSE:
        begins, stream.in_response = not stream.in_response, not placement & _LAST
        return [("READ_DATA", slice(at + _TAG_AT, end))] if begins else []
    return []


def _is_tcp(frame: bytearray) -> bool:
    return frame[12:15] == b"\x08\x00\x45" and frame[_ETHERNET_BYTES + 9] == 6


def _parsed(frame: bytearray) -> tuple[Flow, int, int, int, int]:
    """Which flow, the sequence number, the flags, and where the payload begins and ends."""
    ip, tcp = _ETHERNET_BYTES, _ETHERNET_BYTES + _IP_BYTES
    (total,) = struct.unpack_from(">H", frame, ip + 2)
    sequence, length, flags = struct.unpack_from(">4xI4xBB", frame, tcp)
    return bytes(frame[tcp - 8 : tcp + 4]), sequence, flags, tcp + 4 * (length >> 4), ip + total


def _back(flow: Flow) -> Flow:
    """The other direction."""
    return flow[4:8] + flow[:4] + flow[10:] + flow[8:10]


def _plus(sequence: int, more: int) -> int:
    return (sequence + more) % _MODULUS


def _sum(data: bytes) -> bytes:
    """The Internet's checksum (RFC 1071)."""
    total = int(np.frombuffer(data + b"\0" * (len(data) % 2), ">u2").sum(dtype=np.uint64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~total & 0xFFFF)


def _reset(stream: _Stream) -> bytes:
    frame = bytearray(stream.headers)
    ip, tcp = _ETHERNET_BYTES, _ETHERNET_BYTES + _IP_BYTES
    frame[ip + 2 : ip + 4] = struct.pack(">H", _IP_BYTES + _TCP_BYTES)
    frame[ip + 10 : ip + 12] = b"\0\0"
    frame[ip + 10 : ip + 12] = _sum(bytes(frame[ip:tcp]))
    struct.pack_into(">I4xBB", frame, tcp + 4, stream.expected, _TCP_BYTES // 4 << 4, _RST)
    SiwPackets().seal(frame)
    return bytes(frame)
