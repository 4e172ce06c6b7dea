"""What a stranger may send: it decodes, or the error names the fault."""

import array
import contextlib
import datetime
import decimal
import random
from typing import Any

import msgpack
import numpy as np
import pytest
from codec_trip import STRUCTURED, Point, block_of, sent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made import examples

import rrpc
from rrpc.codec import decode


def ext(code: int, data: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(code, data))
    return packed


def head(dtype: bytes, *shape: int, flags: int = 0) -> bytes:
    dimensions = b"".join(n.to_bytes(8, "little") for n in shape)
    body = bytes((flags, len(shape))) + dimensions + dtype
    return len(body).to_bytes(2, "little") + body


INDEX_0 = bytes(4)
HUGE = 1 << 62
MALFORMED = [
    (b"", "empty"),
    (b"\xc1", "malformed"),
    (b"\x92\x01", "malformed"),
    (b"\x01\x02", "extra"),
    (b"\xdd\xff\xff\xff\xff", "a list of 4294967295 items in 0 bytes"),
    (b"\x91" * 4000 + b"\xc0", "malformed"),
    (b"\xa1\xff", "utf-8"),
    (ext(99, b""), "extension code 99"),
    (ext(1, b"\x00"), "index out of range"),
    (ext(1, head(b"<f4", 2) + bytes(7)), "doesn't fill 7 bytes"),
    (ext(1, head(b"<f4", HUGE, HUGE) + bytes(8)), "doesn't fill"),
    (ext(1, head(b"<f4", 0, HUGE, HUGE)), "malformed"),
    (ext(1, head(b"|V0", HUGE)), "without bytes"),
    (ext(1, head(b"|O", 1) + bytes(8)), "isn't one that may be sent"),
    (ext(1, head(b"|O8", 1) + bytes(8)), "isn't one that may be sent"),
    (ext(1, head(b"f4,f4", 1) + bytes(8)), "bad dtype"),
    (ext(1, head(b"<M8[zz]", 1) + bytes(8)), "bad dtype"),
    (ext(1, head(b"<f4", flags=64) + bytes(4)), "flags 0x40"),
    (ext(1, bytes((2, 0, 0, 65))), "rank 65"),
    (ext(1, head(msgpack.packb([8, False, [["a", None, 0, b"|O", []]]]), 1) + bytes(8)), "bad dtype"),
    (ext(1, head(msgpack.packb([8, False, [["a", None, -4, b"<f8", []]]]), 1) + bytes(8)), "bad field"),
    (ext(1, head(msgpack.packb([4, False, [["a", None, 0, b"<f8", []]]]), 1) + bytes(4)), "bad dtype"),
    (ext(1, head(msgpack.packb([8, False, [["a", None, 0, b"<f8", [-1]]]]), 1) + bytes(8)), "shape"),
    (ext(2, (7).to_bytes(4, "little") + head(b"<f4", 2)), "buffer 7 of 1"),
    (ext(2, INDEX_0 + head(b"<f4", 3)), "doesn't fill 8 bytes"),
    (ext(2, INDEX_0 + head(b"<f4", 2) + b"x"), "bytes behind"),
    (ext(2, b"\x00"), "malformed"),
    (b"\x92" + ext(2, INDEX_0 + head(b"<f4", 2)) * 2, "stands for two values"),
    (ext(4, INDEX_0 + b"\x09\x00"), "kind 9"),
    (ext(4, INDEX_0 + b"\x03?"), "malformed"),
    (ext(3, b"\x03i\x00\x00\x00"), "malformed"),
    (ext(3, b"\x03u\xff\xff\xff\xff"), "not in range"),
    (ext(5, b""), "out="),
    (ext(32, bytes(1 << 17)), "an int of 131072 bytes"),
    (ext(33, b"12"), "malformed"),
    (ext(34, b"2024-13-01"), "malformed"),
    (ext(38, b"one"), "malformed"),
    (ext(39, b"short"), "malformed"),
    (b"\xc1\x92" + ext(17, b"") + b"\x90", "unhashable"),
    (b"\xc1\x92" + ext(19, b"Point") + b"\x01", "without its fields"),
    (b"\x81\x90\x01", "unhashable"),
]


@pytest.mark.parametrize(("payload", "fault"), MALFORMED, ids=[fault for _, fault in MALFORMED])
def test_a_malformed_payload_is_a_protocol_error_that_names_the_fault(payload: bytes, fault: str) -> None:
    with pytest.raises(rrpc.ProtocolError, match="malformed payload") as caught:
        decode(payload, [block_of(b"12345678")])
    assert fault in str(caught.value)


SEEDS = [
    [1, "a", b"b", 2.5, None, True],
    {"rows": np.arange(6, dtype=np.float32).reshape(2, 3), "at": (1, {2})},
    [np.zeros(3, STRUCTURED), np.arange(5000), bytes(5000), np.float32(1)],
    [Point(1, 2**80), 1j, datetime.datetime(2024, 1, 1), decimal.Decimal(1), array.array("i", [1])],
]


def decodes_or_is_refused(payload: bytes, blocks: list[Any]) -> None:
    with contextlib.suppress(rrpc.ProtocolError):
        repr(decode(payload, blocks))


@given(st.binary(max_size=200))
@example(b"\xc7\x05\x02")
@settings(max_examples=examples(500))
def test_random_bytes_decode_or_are_refused(payload: bytes) -> None:
    decodes_or_is_refused(payload, [block_of(bytes(16))])
    decodes_or_is_refused(b"\xc1" + payload, [])


@pytest.mark.parametrize("seed", range(4))
def test_mutated_payloads_decode_or_are_refused(seed: int) -> None:
    payload, blocks = sent(SEEDS[seed])
    chance = random.Random(seed)
    for _ in range(3000):
        mutated = bytearray(payload)
        for _ in range(chance.randint(1, 4)):
            where = chance.randrange(len(mutated))
            choice = chance.random()
            if choice < 0.6:
                mutated[where] = chance.randrange(256)
            elif choice < 0.8:
                del mutated[where : where + chance.randint(1, 3)]
            else:
                mutated[where:where] = chance.randbytes(chance.randint(1, 3))
            mutated = mutated or bytearray(b"\x00")
        decodes_or_is_refused(bytes(mutated), blocks)
