"""Arrays in memory that their sender lends: marked where they are sent, copied or read-only where they arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_trip import STRUCTURED

import rrpc
from rrpc import _core
from rrpc.codec import Lent, Message, copies, decode, decode_frames, encode, encode_frames, frozen

LARGE = np.arange(64 * 100, dtype=np.float64).reshape(64, 100)


def lent_blocks(message: Message) -> list[Any]:
    """Returns the blocks that the buffers of a message arrive in, every one lent."""
    arrays = [buffer.buffer if isinstance(buffer, Lent) else buffer for buffer in message]
    return [memoryview(np.asarray(array).tobytes()) for array in arrays]


def sent(value: Any, lend: bool = True) -> tuple[bytes, Message]:
    message = Message()
    message.lend = lend
    return encode(value, message), message


@pytest.mark.parametrize("value", [LARGE, LARGE.T, LARGE.astype(">f4"), np.zeros(1000, STRUCTURED)])
def test_contiguous_arrays_are_lent(value: Any) -> None:
    (buffer,) = sent([value])[1]
    assert type(buffer) is Lent
    assert buffer.buffer.base is value or buffer.buffer is value or np.shares_memory(buffer.buffer, value)


@pytest.mark.parametrize("value", [LARGE[:, ::2], LARGE.data, memoryview(bytes(20_000)), bytes(20_000)])
def test_other_buffers_are_sent_as_ever(value: Any) -> None:
    (buffer,) = sent([value])[1]
    assert type(buffer) is not Lent


def test_small_arrays_stay_in_the_message() -> None:
    payload, message = sent([np.zeros(3)])
    assert not message
    assert payload == encode([np.zeros(3)], Message())


def test_a_mark_lends_one_array() -> None:
    message = Message()
    encode([LARGE, Lent(LARGE), LARGE], message)
    assert [type(buffer) is Lent for buffer in message] == [False, True, False]


def test_the_array_for_out_is_not_lent() -> None:
    message = Message()
    message.out = other = LARGE.copy()
    encode([Lent(other), Lent(LARGE)], message)
    assert [type(buffer) is Lent for buffer in message] == [False, True]
    assert message.out_index == 0


@pytest.mark.parametrize("value", [LARGE, LARGE.T, LARGE.astype(">f4"), np.zeros(1000, STRUCTURED)])
def test_lent_arrays_are_copied_unless_borrowed(value: Any) -> None:
    payload, message = sent([value])
    blocks = lent_blocks(message)
    before = copies()
    (copy,) = decode(payload, blocks)
    assert copy.flags.writeable
    assert (copy.dtype, copy.strides) == (value.dtype, value.strides)
    assert copy.tobytes() == value.tobytes()
    assert not np.shares_memory(copy, np.frombuffer(blocks[0], np.uint8))
    assert copies()["unpacks"] - before["unpacks"] == 1
    assert copies()["bytes_unpacked"] - before["bytes_unpacked"] == value.nbytes

    (view,) = decode(payload, blocks, borrow=True)
    assert not view.flags.writeable
    assert np.shares_memory(view, np.frombuffer(blocks[0], np.uint8))
    assert view.tobytes() == value.tobytes()
    assert copies()["unpacks"] - before["unpacks"] == 1


def test_a_copy_has_the_bytes_between_fields_too() -> None:
    padded = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [0, 8], "itemsize": 16})
    value = np.frombuffer(bytes(range(256)) * 100, padded)
    payload, message = sent(value)
    copy = decode(payload, lent_blocks(message))
    assert copy.view(np.uint8).tobytes() == bytes(range(256)) * 100


@pytest.mark.parametrize("value", [LARGE.data, memoryview(bytearray(20_000))])
@pytest.mark.parametrize("borrow", [False, True])
def test_buffers_are_copied_even_if_a_peer_lends_them(value: memoryview, borrow: bool) -> None:
    payload, message = sent(value)
    arrived = decode(payload, lent_blocks(message), borrow=borrow)
    assert not arrived.readonly
    assert (arrived.format, arrived.tobytes()) == (value.format, value.tobytes())


def test_a_lent_list_of_buffers_is_left_to_the_decoder() -> None:
    payload, message = encode_frames([bytearray(20_000), b"end"])
    assert message is not None
    assert decode_frames(payload, [memoryview(bytearray(20_000))]) is not None
    assert decode_frames(payload, lent_blocks(message)) is None
    assert [view.readonly for view in decode(payload, lent_blocks(message))] == [False, False]


def test_frozen_arrays() -> None:
    out, arrays = np.zeros(2), [np.zeros(2) for _ in range(4)]
    value = {"a": arrays[0], "b": [arrays[1], (arrays[2], out)], "c": arrays[3], "d": 1}
    assert frozen(value, out) is value
    assert out.flags.writeable
    assert not any(array.flags.writeable for array in arrays)


def test_lent_blocks_of_the_pool_are_kept_by_their_views() -> None:
    block = _core.allocate(LARGE.nbytes)
    payload, _ = sent(LARGE)
    view = decode(payload, [block], borrow=True)
    del block
    view[...] = LARGE
    assert view.tobytes() == LARGE.tobytes()


def test_like() -> None:
    for model in (LARGE, LARGE.T, LARGE[:, ::2], LARGE.astype(">i2"), np.zeros((), np.float32)):
        made = rrpc.like(model)
        assert (made.shape, made.dtype) == (model.shape, model.dtype)
        assert made.flags.f_contiguous == model.flags.f_contiguous or model is not LARGE.T
        assert isinstance(made.base, _core.Block)
    assert rrpc.like(LARGE.T).strides == LARGE.T.strides
    assert rrpc.like([[1, 2], [3, 4]]).shape == (2, 2)
    with pytest.raises(TypeError, match="no fixed size"):
        rrpc.like(np.array([object()]))
