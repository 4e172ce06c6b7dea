"""What a few bytes of a stranger may cost a decoder: collisions, objects, nesting."""

import dataclasses
import struct
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import msgpack
import numpy as np
import pytest
from lab import LabServer, still_answers
from raw_peer import CALL, REPLY, RawPeer, message, request

import rrpc
from rrpc.codec import Message, Refused, decode, encode
from rrpc.codec.wire import BIG_INT, FROZENSET, MAX_DEPTH, SET, TUPLE

MODULUS = 2**61 - 1  # of CPython's hash of an int
MANY = 2000


def big_int(value: int) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(BIG_INT, value.to_bytes(12, "little")))
    return packed


def as_map(keys: Iterable[bytes]) -> bytes:
    entries = [key + b"\xc0" for key in keys]
    return b"\xdf" + struct.pack(">I", len(entries)) + b"".join(entries)


def as_marked(code: int, items: Iterable[bytes]) -> bytes:
    listed = [msgpack.packb(msgpack.ExtType(code, b"")), *items]
    return b"\xc1\xdd" + struct.pack(">I", len(listed)) + b"".join(listed)


COLLIDING = [big_int(MODULUS * i) for i in range(1, MANY + 1)]


@pytest.mark.parametrize(
    "payload",
    [
        as_map(COLLIDING),
        as_marked(SET, COLLIDING),
        as_marked(FROZENSET, COLLIDING),
        b"\x91" + as_map(COLLIDING),
        as_marked(SET, [big_int(MODULUS * i + i % 10) for i in range(1, MANY + 1)]),
    ],
    ids=["dict", "set", "frozenset", "dict in a list", "ten hashes"],
)
def test_keys_that_collide_are_refused(payload: bytes) -> None:
    with pytest.raises(rrpc.ProtocolError, match=r"a (set|dict) of \d+ items whose hashes collide"):
        decode(payload)


KEYS: dict[str, Callable[[int], Hashable]] = {
    "numbers": lambda i: i,
    "negative numbers": lambda i: -i,
    "addresses": lambda i: 0x7F00_0000_0000 + 64 * i,
    "large steps": lambda i: i << 40,
    "big ints": lambda i: 3**i if i < 300 else 10**20 + i,
    "floats": lambda i: i / 1024,
    "tenths": lambda i: i / 10,
    "complex": lambda i: complex(i, -1),
    "pairs": lambda i: (i % 50, i // 50),
    "text": lambda i: f"name {i}",
    "bytes": lambda i: i.to_bytes(4, "big"),
    "mixed": lambda i: i if i % 2 else str(i),
}


@pytest.mark.parametrize("kind", KEYS)
def test_usual_keys_are_taken(kind: str) -> None:
    keys = [KEYS[kind](i) for i in range(MANY)]
    for value in (dict.fromkeys(keys, 1), set(keys), frozenset(keys)):
        assert decode(encode(value, Message())) == value


def test_a_server_goes_on(lab_server: LabServer) -> None:
    peer = RawPeer(lab_server.address("tcp"))
    body = (
        request(1, "Lab.echo")[: -len(msgpack.packb([]))] + b"\xc1\x91" + as_marked(SET, COLLIDING[:500])[1:]
    )
    peer.send(message(CALL, body))
    kind, answer = peer.read_message()
    assert kind == REPLY
    assert b"items whose hashes collide" in answer
    peer.close()
    still_answers(lab_server.address("tcp"))


def test_objects_are_limited_by_the_bytes() -> None:
    count = 1_000_000
    bomb = b"\xdd" + struct.pack(">I", count) + b"\x80" * count
    with pytest.raises(
        rrpc.ProtocolError, match=r"more than 387144 lists, dicts and other objects in 1000005 "
    ):
        decode(bomb)
    with pytest.raises(Refused, match="pass numbers as arrays"):
        encode([{}] * count, Message())
    usual: Any
    for usual in ([[]] * 200_000, [(i, i + 1) for i in range(300_000)], [{"x": 1.5, "y": 2.5}] * 300_000):
        assert decode(encode(usual, Message())) == usual


def test_a_caller_is_told_of_too_many_objects(lab: rrpc.Client) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="lists, dicts and other objects"):
        lab.call("Lab.size", [[]] * 1_000_000)


@dataclasses.dataclass
class Node:
    inner: Any


def nested(wrap: Callable[[Any], Any], depth: int) -> Any:
    value: Any = 7
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, Node])
def test_the_deepest_value_arrives(lab: rrpc.Client, wrap: Callable[[Any], Any]) -> None:
    deepest = nested(wrap, MAX_DEPTH)
    back = lab.call("Lab.echo", deepest)
    for _ in range(MAX_DEPTH):
        back = back[0] if isinstance(back, list | tuple) else next(iter(back.values()))
    assert back == 7


@pytest.mark.parametrize("deeper", [b"\x91", b"\x81\xa1k", b"\xdd\0\0\0\1"])
def test_what_is_nested_deeper_is_refused(deeper: bytes) -> None:
    for depth in (MAX_DEPTH + 3, 1000):
        with pytest.raises(rrpc.ProtocolError, match="nested deeper than"):
            decode(deeper * depth + b"\x07")


def test_counts_are_held_to_the_bytes() -> None:
    with pytest.raises(rrpc.ProtocolError, match="a list of 1073741824 items in 200 bytes"):
        decode(b"\xdd\x40\0\0\0" + b"\x07" * 200)


@pytest.mark.parametrize(
    "seconds", [b"\xd6\xff\0\0\0\1", b"\xd7\xff" + bytes(8), b"\xc7\x0c\xff" + bytes(12)]
)
def test_messagepacks_timestamp_is_unknown(seconds: bytes) -> None:
    for payload in (seconds, b"\x92" + seconds + b"\xc0", as_marked(TUPLE, [seconds] * 100)):
        with pytest.raises(rrpc.ProtocolError, match="extension code -1 is unknown"):
            decode(payload)
    assert decode(encode([-1, b"\xff" * 10], Message())) == [-1, b"\xff" * 10]


def test_ten_thousand_tensors(lab: rrpc.Client) -> None:
    """Their bytes aren't of interest, but that each has a buffer of its own."""
    state = {f"layer.{i}": np.full(2048, i, np.float64) for i in range(10_000)}
    back = lab.call("Lab.echo", state)
    assert back.keys() == state.keys()
    assert all(np.array_equal(back[name], tensor) for name, tensor in state.items())
