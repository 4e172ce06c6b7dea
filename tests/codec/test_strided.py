"""Strided arrays of a few large pieces go as they are, piece by piece; all others are packed once."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from codec_trip import STRUCTURED
from lab import LAB, LabServer, moved, settles, transient
from numpy.typing import NDArray
from processes import ServeFactory

import rrpc
from rrpc.codec import Message, encode
from rrpc.codec.wire import PIECE_BYTES, PIECES_MAX

MOVERS = ("packs", "unpacks", "copies", "bytes_copied", "stagings")


def spaced(count: int, dtype: str = "<f8", nbytes: int = PIECE_BYTES) -> NDArray[Any]:
    """`count` pieces with as much between them."""
    whole = np.resize(np.arange(97, dtype=np.uint8), 2 * count * nbytes)
    return whole.view(dtype).reshape(count, 2, -1)[:, 0]


def in_registered_memory() -> NDArray[Any]:
    whole = rrpc.empty((4, 2, PIECE_BYTES), np.uint8)
    whole[...] = np.arange(8).reshape(4, 2, 1)
    return whole[:, 1]


IN_PIECES: dict[str, Callable[[], NDArray[Any]]] = {
    "every other plane": lambda: spaced(7).reshape(7, 8, -1),
    "half of each row": lambda: np.arange(4 * PIECE_BYTES, dtype="<u2").reshape(4, -1)[:, : PIECE_BYTES // 2],
    "two outer dimensions": lambda: spaced(16).reshape(4, 4, -1)[::2, 1:3],
    "planes backwards": lambda: spaced(5)[::-1],
    "planes in another order": lambda: np.arange(6 * PIECE_BYTES // 8).reshape(2, 3, -1).transpose(1, 0, 2),
    "dimensions of one": lambda: spaced(3)[:, None, :, None],
    "as many as may be": lambda: spaced(PIECES_MAX, "u1"),
    "times": lambda: spaced(3, "<i8").view("M8[us]"),
    "the other byte order": lambda: spaced(2, ">i4"),
    "registered memory": in_registered_memory,
}

PACKED: dict[str, Callable[[], NDArray[Any]]] = {
    "one piece too many": lambda: spaced(PIECES_MAX + 1, "u1"),
    "pieces a little too short": lambda: spaced(3)[:, 1:],
    "every other item": lambda: np.ones(1 << 20)[::2],
    "items backwards": lambda: np.ones(1 << 20)[::-1],
    "repeated": lambda: np.broadcast_to(np.ones(PIECE_BYTES, np.uint8), (3, PIECE_BYTES)),
    "overlapping": lambda: np.lib.stride_tricks.sliding_window_view(
        np.ones(PIECE_BYTES + 4, "u1"), PIECE_BYTES
    ),
    "padding between fields": lambda: np.zeros((3, 2, PIECE_BYTES // 8), STRUCTURED)[:, 0],
}


def lifted(value: NDArray[Any]) -> Any:
    message = Message()
    encode([value], message)
    (buffer,) = message
    return buffer


@pytest.mark.parametrize("kind", IN_PIECES)
def test_a_few_large_pieces_are_lifted_as_they_are(kind: str) -> None:
    value = IN_PIECES[kind]()
    assert not value.flags.c_contiguous
    assert not value.flags.f_contiguous
    assert np.shares_memory(lifted(value), value)


@pytest.mark.parametrize("kind", PACKED)
def test_whatever_else_is_strided_is_packed(kind: str) -> None:
    value = PACKED[kind]()
    before = rrpc.stats()["packs"]
    buffer = lifted(value)
    assert buffer.flags.c_contiguous
    assert not np.shares_memory(buffer, value)
    assert rrpc.stats()["packs"] == before + 1
    assert np.array_equal(buffer, value)


def same(back: Any, sent: NDArray[Any]) -> None:
    assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
    assert np.array_equal(back, sent)
    assert back.flags.c_contiguous
    assert back.flags.writeable


@pytest.mark.parametrize("kind", IN_PIECES)
def test_arguments_arrive_without_a_copy(lab: rrpc.Client, kind: str) -> None:
    sent = IN_PIECES[kind]()
    idle = transient(rrpc.stats())
    with moved(lab) as counts:
        same(lab.call("Lab.echo", sent), sent)
    assert [counts[side][name] for side in ("here", "there") for name in MOVERS] == [0] * 10
    assert counts["there"]["bytes_read"] == counts["here"]["bytes_read"] == sent.nbytes
    settles(rrpc.stats, idle)


def test_arguments_in_containers(lab: rrpc.Client) -> None:
    sent: dict[str, Any] = {
        "a": [spaced(3), (np.arange(5), spaced(16, "<u2"))],
        "b": np.arange(9000.0),
        "c": spaced(2)[::-1],
    }
    with moved(lab) as counts:
        back = lab.call("Lab.echo", sent)
    same(back["a"][0], sent["a"][0])
    same(back["a"][1][0], sent["a"][1][0])
    same(back["a"][1][1], sent["a"][1][1])
    same(back["b"], sent["b"])
    same(back["c"], sent["c"])
    assert [counts["here"][name] for name in MOVERS] == [0] * 5


@pytest.mark.parametrize("count", [2, 5, PIECES_MAX])
def test_results_and_out(lab: rrpc.Client, count: int) -> None:
    lab.call("Lab.spaced", count, PIECE_BYTES)
    with moved(lab) as counts:
        back = lab.call("Lab.spaced", count, PIECE_BYTES)
    expected = np.repeat(np.arange(count, dtype=np.uint8), PIECE_BYTES).reshape(count, PIECE_BYTES)
    same(back, expected)
    assert [counts[side][name] for side in ("here", "there") for name in MOVERS] == [0] * 10
    out = np.empty((count, PIECE_BYTES), np.uint8)
    with moved(lab) as counts:
        assert lab.call("Lab.spaced", count, PIECE_BYTES, out=out) is out
    same(out, expected)
    assert [counts[side][name] for side in ("here", "there") for name in MOVERS] == [0] * 10
    assert counts["here"]["bytes_read"] + counts["there"]["bytes_written"] == out.nbytes


def test_the_memory_of_the_array_stays_while_pieces_of_it_are_read(lab: rrpc.Client) -> None:
    futures = [lab.start("Lab.echo", spaced(4)) for _ in range(8)]
    for future in futures:
        same(future.result(), spaced(4))


def test_a_cached_registration_for_each_piece(lab: rrpc.Client) -> None:
    sent = spaced(4)
    lab.call("Lab.total", sent)
    with moved(lab) as counts:
        for _ in range(3):
            lab.call("Lab.total", sent)
    assert counts["here"]["registrations_made"] == 0
    assert counts["here"]["registrations_reused"] >= 12


@pytest.mark.parametrize("forbidden", ["server", "client"])
def test_pieces_are_staged_where_reading_is_forbidden(
    serve: ServeFactory, forbidden: str, monkeypatch: pytest.MonkeyPatch, lab_server: LabServer
) -> None:
    if forbidden == "client":
        monkeypatch.setenv("RRPC_SHM_NO_VM_READV", "1")
    env = {"RRPC_SHM_NO_VM_READV": "1"} if forbidden == "server" else {}
    served = serve(LAB, "Lab", listen="shm", module="lab_service", env=env)
    sent = spaced(3)
    with rrpc.connect(served.address, timeout=30.0) as client, moved(client) as counts:
        same(client.call("Lab.echo", sent), sent)
        out = np.empty((3, PIECE_BYTES), np.uint8)
        assert client.call("Lab.spaced", 3, PIECE_BYTES, out=out)[2, -1] == 2
    staged = counts["here"]["bytes_staged"] + counts["there"]["bytes_staged"]
    assert staged >= math.prod(sent.shape) * sent.itemsize
