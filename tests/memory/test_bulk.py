"""Arrays and other large buffers between two processes: content, ownership, out=, and the copies made."""

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lab import LAB, LabServer, moved, settles, transient
from numpy.typing import NDArray
from processes import ServeFactory, volume

import rrpc
from rrpc.codec import BULK_BYTES

MIB = 1 << 20
LIFT = BULK_BYTES
N = 3000  # items; above the threshold for every dtype of two bytes and more

DTYPES = [
    "?", "i1", "u1", "<i2", ">i2", "<u4", ">u4", "<i8", ">i8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8",
    "<c8", ">c8", "<c16", "<M8[ns]", ">M8[D]", "<m8[s]", "S5", "<U7", ">U3", "V6",
]  # fmt: skip


def filled(dtype: str, count: int = N) -> NDArray[Any]:
    kind = np.dtype(dtype)
    raw = np.random.default_rng(7).integers(0, 128, count * kind.itemsize, np.uint8)
    if kind.kind == "U":
        return np.array([str(i % 1000) for i in range(count)], kind)
    if kind.kind == "b":
        return raw > 64
    return raw.view(kind)


def same(back: Any, sent: NDArray[Any]) -> None:
    assert isinstance(back, np.ndarray)
    assert back.dtype == sent.dtype
    assert back.dtype.byteorder == sent.dtype.byteorder
    assert back.shape == sent.shape
    assert back.tobytes() == sent.tobytes()
    assert back.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(lab: rrpc.Client, dtype: str) -> None:
    for count in (0, 1, N):
        sent = filled(dtype, count)
        same(lab.call("Lab.echo", sent), sent)


def test_structured_arrays(lab: rrpc.Client) -> None:
    kind = np.dtype([("id", "<i4"), ("name", "S7"), ("where", ">f8", (2, 3)), ("in", [("x", "u1")])])
    packed = np.zeros(500, kind)
    packed["id"], packed["name"], packed["where"] = np.arange(500), b"abc", 2.5
    aligned = np.zeros(500, np.dtype([("a", "u1"), ("b", "<f8")], align=True))
    for sent in (packed, aligned):
        same(lab.call("Lab.echo", sent), sent)


@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (7, 0, 3), (3000,), (30, 100), (2, 3, 5, 7, 11, 2), (1,) * 32]
)
def test_every_shape(lab: rrpc.Client, shape: tuple[int, ...]) -> None:
    sent = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    same(lab.call("Lab.echo", sent), sent)


VIEWS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "every other": lambda a: a[::2],
    "columns": lambda a: a[:, 10:50],
    "backwards": lambda a: a[::-1],
    "transposed": lambda a: a.T,
    "fortran": np.asfortranarray,
    "broadcast": lambda a: np.broadcast_to(a[0], (50, 100)),
    "offset": lambda a: a.reshape(-1)[3:],
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view(lab: rrpc.Client, view: str) -> None:
    base = np.arange(100 * 100, dtype=np.int64).reshape(100, 100)
    before = base.copy()
    sent = VIEWS[view](base)
    back = lab.call("Lab.echo", sent)
    assert np.array_equal(back, sent)
    assert back.flags.f_contiguous or back.flags.c_contiguous
    if sent.flags.f_contiguous:
        assert back.flags.f_contiguous
    assert back.flags.writeable
    assert np.array_equal(base, before)


@pytest.mark.parametrize(
    "size", [0, 1, LIFT - 1, LIFT, LIFT + 1, 8192 - 64, 8192, 8193, MIB - 1, MIB, MIB + 1, 5 * MIB]
)
def test_sizes(lab: rrpc.Client, size: int) -> None:
    sent = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    same(lab.call("Lab.echo", sent), sent)
    raw = sent.tobytes()
    for value in (raw, bytearray(raw), array.array("B", raw)):
        back = lab.call("Lab.echo", value)
        assert type(back) is type(value)
        assert back == value
    back = lab.call("Lab.echo", memoryview(raw))
    assert bytes(back) == raw


@pytest.mark.parametrize("slot_bytes", [512, 4096, 65536])
def test_slots_of_other_sizes(lab_address: str, slot_bytes: int) -> None:
    with rrpc.connect(lab_address, slot_bytes=slot_bytes, timeout=30.0) as client:
        for size in (slot_bytes - 200, slot_bytes - 1, slot_bytes, slot_bytes + 1, 3 * slot_bytes):
            sent = np.arange(size, dtype=np.uint8)
            same(client.call("Lab.echo", sent), sent)


def test_nested_and_many(lab: rrpc.Client) -> None:
    big, small = np.arange(5000.0), np.arange(3)
    sent = {
        "a": [big, (small, b"x" * 9000)],
        "b": {"c": big[::2]},
        "d": [np.full(2000, i) for i in range(100)],
    }
    back = lab.call("Lab.echo", sent)
    same(back["a"][0], big)
    same(back["a"][1][0], small)
    assert back["a"][1][1] == b"x" * 9000
    assert np.array_equal(back["b"]["c"], big[::2])
    assert [int(a[0]) for a in back["d"]] == list(range(100))
    assert back["a"][0].base is not back["b"]["c"].base


def test_more_buffers_than_a_message_may_have(lab: rrpc.Client) -> None:
    many = [b"x" * LIFT] * 16385
    with pytest.raises(rrpc.InvalidArgument, match=r"buffers_max: the request has 16385 .* allow 16384;"):
        lab.call("Lab.size", many)
    assert lab.call("Lab.size", many[: volume(4097, 1000)]) == volume(4097, 1000)


def test_object_arrays_are_refused_by_name(lab: rrpc.Client) -> None:
    for value in (np.array([object()]), np.zeros(3, [("ok", "i4"), ("bad", "O")])):
        with pytest.raises(rrpc.InvalidArgument, match=r"(?i)object"):
            lab.call("Lab.echo", value)


def test_a_hundred_mebibytes(lab: rrpc.Client) -> None:
    sent = np.random.default_rng(0).integers(0, 1 << 60, volume(100, 16) * MIB // 8, np.int64)
    back = lab.call("Lab.echo", sent)
    assert np.array_equal(back, sent)
    text = "y" * (volume(20, 4) * MIB)
    assert lab.call("Lab.size", text) == len(text)  # a message body fetched as bulk


def test_arrays_in_flight_together(lab: rrpc.Client) -> None:
    arrays = [np.full(20_000, i, np.int32) for i in range(200)]
    futures = [lab.start("Lab.echo", a) for a in arrays]
    for i, future in reversed(list(enumerate(futures))):
        assert np.array_equal(future.result(), arrays[i])


# Ownership


def test_arguments_are_not_changed_by_the_server(lab: rrpc.Client) -> None:
    for sent in (np.ones(100_000), rrpc.zeros(100_000) + 1, np.ones(10)):
        assert lab.call("Lab.overwrite", sent) == 0.0
        assert sent.sum() == sent.size


def test_results_are_the_callers_own(lab: rrpc.Client) -> None:
    first = lab.call("Lab.make", 100_000, 1)
    first[:] = 9
    second = lab.call("Lab.make", 100_000, 2)
    assert first.sum() == 900_000
    assert second.sum() == 200_000
    future = lab.start("Lab.make", 100_000, 3)
    assert future.result() is future.result()


def test_the_server_may_keep_its_arguments(lab: rrpc.Client) -> None:
    sent = np.ones(50_000)
    lab.call("Lab.keep", sent)
    sent[:] = 5
    for _ in range(20):
        lab.call("Lab.total", np.full(50_000, 7.0))
    assert lab.call("Lab.drop_kept") == 50_000.0


def test_results_outlive_connection_and_server(serve: ServeFactory, transport: str) -> None:
    served = serve(LAB, "Lab", listen=transport, module="lab_service")
    client = rrpc.connect(served.address, timeout=30.0)
    plain, pool = client.call("Lab.make", 300_000, 3), client.call("Lab.make", 300_000, 4, pool=True)
    raw = client.call("Lab.blob", 300_000)
    client.close()
    assert plain.sum() == 900_000
    served.kill()
    assert (plain.sum(), pool.sum(), raw) == (900_000, 1_200_000, bytes(300_000))
    plain[:] = pool[:] = 1
    assert plain.sum() == pool.sum() == 300_000


def test_memory_goes_back(lab: rrpc.Client) -> None:
    idle = transient(rrpc.stats()), transient(lab.call("Lab.counts"))
    results = [lab.call("Lab.echo", np.ones(100_000)) for _ in range(5)]
    assert rrpc.stats()["pool_bytes_used"] >= idle[0]["pool_bytes_used"] + 5 * 800_000
    view = results[0][5:]
    del results
    assert view.sum() == 99_995
    del view
    settles(rrpc.stats, idle[0])
    settles(lambda: lab.call("Lab.counts"), idle[1])


def test_arrays_born_in_registered_memory(lab: rrpc.Client) -> None:
    for array_ in (
        rrpc.empty((100, 70), np.float32),
        rrpc.empty(50_000),
        rrpc.zeros((3, 1000, 2), ">i2", "F"),
    ):
        array_[...] = np.arange(array_.size).reshape(array_.shape)
        same(lab.call("Lab.echo", array_), array_)
        part = array_[1:]
        assert np.array_equal(lab.call("Lab.echo", part), part)


# out=


def test_out_takes_the_result(lab: rrpc.Client) -> None:
    for out in (np.empty(40_000), rrpc.empty(40_000), np.empty(3), np.empty((80_000,))[40_000:], np.empty(0)):
        sent = np.arange(out.size, dtype=np.float64)
        assert lab.call("Lab.scale", sent, 2.0, out=out) is out
        assert np.array_equal(out, sent * 2)
        out[...] = 0
        assert lab.start("Lab.scale", sent, 3.0, out=out).result() is out
        assert np.array_equal(out, sent * 3)


def test_out_of_several_dimensions(lab: rrpc.Client) -> None:
    out = np.empty((50, 60), np.int16)
    sent = np.arange(3000, dtype=np.int16).reshape(50, 60)
    assert lab.call("Lab.echo", sent, out=out) is out
    assert np.array_equal(out, sent)
    assert lab.call("Lab.echo", sent.T.copy(), out=np.empty((60, 50), np.int16)).shape == (60, 50)


def test_out_may_be_the_argument(lab: rrpc.Client) -> None:
    both = np.arange(30_000.0)
    assert lab.call("Lab.scale", both, 2.0, out=both) is both
    assert np.array_equal(both, np.arange(30_000.0) * 2)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (np.empty(39_999), "out="),
        (np.empty(40_000, np.float32), "out="),
        (np.empty((2, 20_000)), "out="),
        (np.empty(80_000)[::2], "contiguous"),
        (np.frombuffer(bytes(320_000)), "read-only"),
        (bytearray(320_000), "out= is uint8"),
        (np.empty(40_000, object), "out="),
    ],
    ids=["length", "dtype", "shape", "strided", "read-only", "bytes", "objects"],
)
def test_out_that_does_not_fit(lab: rrpc.Client, out: Any, said: str) -> None:
    before = bytes(out) if isinstance(out, bytearray) else out.tobytes()
    with pytest.raises(rrpc.InvalidArgument, match=said):
        lab.call("Lab.scale", np.ones(40_000), 2.0, out=out)
    assert (bytes(out) if isinstance(out, bytearray) else out.tobytes()) == before
    assert lab.call("Lab.add", 1) == 2


def test_out_without_an_array_in_the_result(lab: rrpc.Client) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="out="):
        lab.call("Lab.echo", 5, out=np.empty(10))


# Copies


@pytest.mark.parametrize("pool", [False, True])
def test_one_copy_for_an_array(lab: rrpc.Client, pool: bool) -> None:
    """The remote read is the one copy: nothing is staged, packed or copied besides."""
    size = 4 * MIB
    sent = (rrpc.zeros if pool else np.zeros)(size, np.uint8)
    lab.call("Lab.total", sent)
    with moved(lab) as argument:
        assert lab.call("Lab.total", sent) == 0
    with moved(lab) as result:
        assert lab.call("Lab.make", size, 1, pool=pool)[-1] == 1
    for counts in (*argument.values(), *result.values()):
        assert {counts[n] for n in ("stagings", "copies", "bytes_copied", "packs", "unpacks", "writes")} == {
            0
        }
    assert (argument["there"]["bytes_read"], argument["here"]["bytes_read"]) == (size, 0)
    assert (result["there"]["bytes_read"], result["here"]["bytes_read"]) == (0, size)
    assert argument["here"]["bytes_inline_sent"] < 1000
    assert result["there"]["bytes_inline_sent"] < 3000  # with the counts themselves
    if pool:
        assert argument["here"]["registrations_made"] == 0


def test_one_copy_into_out(lab: rrpc.Client) -> None:
    out = np.empty(MIB, np.uint8)
    lab.call("Lab.make", MIB, out=out)
    with moved(lab) as counts:
        lab.call("Lab.make", MIB, 1, out=out)
    here, there = counts["here"], counts["there"]
    assert here["bytes_read"] + there["bytes_written"] == MIB
    assert here["bytes_copied"] == there["bytes_copied"] == here["stagings"] == there["stagings"] == 0


def test_a_strided_array_is_packed_once(lab: rrpc.Client) -> None:
    sent = np.ones((1000, 1000))[:, ::2]
    with moved(lab) as counts:
        assert lab.call("Lab.total", sent) == 500_000
    assert counts["here"]["packs"] == 1
    assert counts["here"]["bytes_copied"] == counts["here"]["bytes_packed"] == sent.nbytes
    assert counts["here"]["stagings"] == counts["there"]["bytes_copied"] == 0


def test_one_registration_for_an_array_passed_often(lab: rrpc.Client) -> None:
    sent = np.ones(MIB)
    lab.call("Lab.total", sent)
    with moved(lab) as counts:
        for _ in range(5):
            lab.call("Lab.total", sent)
    assert counts["here"]["registrations_made"] == 0
    assert counts["here"]["registrations_reused"] >= 5


@pytest.mark.parametrize("forbidden", ["server", "client"])
def test_staged_where_reading_is_forbidden(
    serve: ServeFactory, forbidden: str, monkeypatch: pytest.MonkeyPatch, lab_server: LabServer
) -> None:
    """Without process_vm_readv the bytes go through the pool, and the statistics say so."""
    if forbidden == "client":
        monkeypatch.setenv("RRPC_SHM_NO_VM_READV", "1")
    env = {"RRPC_SHM_NO_VM_READV": "1"} if forbidden == "server" else {}
    served = serve(LAB, "Lab", listen="shm", module="lab_service", env=env)
    sent, pool = np.ones(100_000), rrpc.zeros(100_000) + 1
    with rrpc.connect(served.address, timeout=30.0) as client:
        assert client.info()["transport"] == "shm"
        with moved(client) as counts:
            same(client.call("Lab.echo", sent), sent)
        stagings = counts["here"]["stagings"] + counts["there"]["stagings"]
        assert stagings >= 1
        assert counts["here"]["bytes_staged"] + counts["there"]["bytes_staged"] == stagings * sent.nbytes
        with moved(client) as counts:
            assert client.call("Lab.total", rrpc.zeros(100_000)) == 0
        assert counts["here"]["stagings"] == counts["there"]["stagings"] == 0  # the pool is mapped
        out = np.empty(100_000)
        assert np.array_equal(client.call("Lab.scale", pool, 2.0, out=out), pool * 2)
