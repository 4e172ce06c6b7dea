"""Arguments of other libraries: what has DLPack or Python's buffer protocol is sent from its own memory."""

import array
import asyncio
import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab import address_to_listen_on
from numpy.typing import NDArray
from two_versions import generate

import rrpc

Floats = NDArray[np.float32]


class Tensor:
    """Has DLPack and nothing else, as a tensor of another library."""

    def __init__(self, array: Any, device: int = 1, error: Exception | None = None) -> None:
        self.array, self.device, self.error = array, device, error

    def __dlpack__(self, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


@dataclass
class Layer:
    weights: Floats
    raw: memoryview


@rrpc.service
class Foreign:
    @rrpc.method
    def double(self, array: Floats) -> Floats:
        return array * 2

    @rrpc.method
    def tensor(self, array: Floats) -> Floats:
        return Tensor(array)  # type: ignore[return-value]

    @rrpc.method
    def layer(self, layer: Layer, more: list[Floats]) -> tuple[Floats, bytes]:
        return layer.weights + sum(more), bytes(layer.raw)

    @rrpc.method
    def view(self, raw: memoryview) -> memoryview:
        return raw

    @rrpc.method
    def both(self, raw: bytes, other: bytearray) -> bytes:
        return raw + bytes(other)

    @rrpc.method
    def octets(self, array: NDArray[np.uint8]) -> int:
        return int(array.sum())


CLIENTS = generate(Foreign)


@pytest.fixture(params=["shm", "tcp"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    server = rrpc.serve(Foreign(), listen=address_to_listen_on(request.param))
    with server, CLIENTS.ForeignClient(server.addresses[0], timeout=20.0) as client:
        yield client


@pytest.mark.parametrize("count", [3, 100_000])
def test_a_tensor_goes_as_an_array(client: Any, count: int) -> None:
    array = np.arange(count, dtype=np.float32)
    assert np.array_equal(client.double(Tensor(array)), 2 * array)
    assert np.array_equal(client.tensor(array), array)
    grid = np.ones((count, 2), np.float32)
    assert client.double(Tensor(grid)).shape == (count, 2)


def test_a_large_tensor_is_not_copied(client: Any) -> None:
    array = np.ones(1 << 20, np.float32)
    client.double(Tensor(array))
    before = rrpc.stats()
    client.double(Tensor(array))
    assert rrpc.stats()["bytes_copied"] == before["bytes_copied"]


def test_in_dataclasses_and_lists(client: Any, tmp_path: Path) -> None:
    array = np.ones(10, np.float32)
    (tmp_path / "raw").write_bytes(b"abc" * 10_000)
    with open(tmp_path / "raw", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        found, raw = client.layer(CLIENTS.Layer(Tensor(array), mapped), [Tensor(array), array])
        assert found.tolist() == [3.0] * 10
        assert raw == b"abc" * 10_000
        del found


@pytest.mark.parametrize("count", [10, 50_000])
def test_buffers_go_as_bytes(client: Any, count: int) -> None:
    shared = (ctypes.c_ubyte * count)(*([7] * count))
    with mmap.mmap(-1, count) as mapped:
        mapped[:] = bytes([7]) * count
        for value in (mapped, shared):
            assert bytes(client.view(value)) == bytes([7]) * count
            assert client.both(value, value) == bytes([7]) * count * 2
            assert client.octets(value) == 7 * count


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Tensor(np.ones(3, np.float32), device=2), r"its memory is on DLPack device 2; copy it to the host"),
        (
            Tensor(np.ones(3, np.float32), error=RuntimeError("it requires grad")),
            r"it requires grad.*\.detach\(\)",
        ),
        (Tensor(np.ones(3)), r"use \.astype\(np\.float32\)"),
        (b"abcd", "expected float32 array, got bytes"),
        ([1.0], r"use np\.asarray"),
        ("abcd", "expected float32 array, got str"),
    ],
    ids=["device", "grad", "dtype", "bytes", "list", "text"],
)
def test_what_cannot_be_shared_says_why(client: Any, value: Any, text: str) -> None:
    with pytest.raises(rrpc.InvalidArgument, match=text):
        client.double(value)


def test_arrays_are_no_bytes(client: Any) -> None:
    for value in (np.ones(3, np.uint8), np.uint8(3), Tensor(np.ones(3, np.uint8))):
        with pytest.raises(rrpc.InvalidArgument, match="expected memoryview"):
            client.view(value)


class OnDevice(Tensor):
    """Which copies itself to the host, as DLPack asks its producer to: no such device is here."""

    def __dlpack__(self, **options: Any) -> Any:
        assert options["copy"] is True
        assert options["dl_device"] == (1, 0)
        return self.array.copy().__dlpack__(max_version=options.get("max_version"))


@pytest.mark.parametrize("count", [3, 100_000])
def test_what_is_on_a_device_is_copied_once_if_that_is_allowed(client: Any, count: int) -> None:
    tensor = OnDevice(np.arange(count, dtype=np.float32), device=2)
    with pytest.raises(
        rrpc.InvalidArgument, match=r"copy it to the host, .*rrpc\.set_device_tensors\('stage'\)"
    ):
        client.double(tensor)
    rrpc.set_device_tensors("stage")
    try:
        before = rrpc.stats()
        assert np.array_equal(client.double(tensor), 2 * tensor.array)
        after = rrpc.stats()
    finally:
        rrpc.set_device_tensors("refuse")
    assert after["device_copies"] - before["device_copies"] == 1
    assert after["bytes_from_devices"] - before["bytes_from_devices"] == tensor.array.nbytes
    with pytest.raises(ValueError, match="'refuse'd or 'stage'd, not 'gpu'"):
        rrpc.set_device_tensors("gpu")  # type: ignore[arg-type]


@dataclass
class Found:
    values: Floats
    count: int


@rrpc.service
class Filler:
    @rrpc.method
    def ones(self, count: int) -> Floats:
        return np.ones(count, np.float32)

    @rrpc.method
    def found(self, count: int) -> tuple[NDArray[np.uint8], list[Found]]:
        return np.full(count, 7, np.uint8), [Found(np.ones(count, np.float32), count)]

    @rrpc.method
    def untyped(self, count: int) -> dict[str, Any]:
        return {"a": np.full(count, 7, np.uint8)}


FILLERS = generate(Filler)


@pytest.fixture(params=["shm", "tcp"])
def filler(request: pytest.FixtureRequest) -> Iterator[Any]:
    server = rrpc.serve(Filler(), listen=address_to_listen_on(request.param))
    with server, FILLERS.FillerClient(server.addresses[0], timeout=20.0) as client:
        yield client


class Writable(Tensor):
    """Whose DLPack says whether it may be written, as since its version 1.0."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("count", [3, 100_000])
def test_out_is_given_back_as_the_object_that_it_was(filler: Any, count: int) -> None:
    tensor = Writable(np.zeros(count, np.float32))
    assert filler.ones(count, out=tensor) is tensor
    assert tensor.array.sum() == count
    tensor.array[:] = 0
    assert filler.call("Filler.ones", count, out=tensor) is tensor
    assert filler.start("Filler.ones", count, out=tensor).result() is tensor
    assert filler.ones.start(count, out=tensor).result() is tensor
    assert tensor.array.sum() == count
    floats = array.array("f", bytes(4 * count))
    assert filler.ones(count, out=floats) is floats
    assert floats[-1] == 1.0


@pytest.mark.parametrize("count", [3, 100_000])
def test_out_within_a_result(filler: Any, count: int) -> None:
    with mmap.mmap(-1, count) as memory:
        filled, rest = filler.found(count, out=memory)
        assert filled is memory
        assert memory[:] == bytes([7]) * count
        assert rest[0].count == count
    tensor = Writable(np.zeros(count, np.float32))
    _, (found,) = filler.found(count, out=tensor)
    assert found.values is tensor
    raw = bytearray(count)
    assert filler.call("Filler.untyped", count, out=raw)["a"] is raw
    assert raw == bytes([7]) * count


def test_out_of_coroutines(filler: Any) -> None:
    async def calls() -> None:
        async with FILLERS.AsyncFillerClient(filler.address, timeout=20.0) as client:
            for _ in range(2):
                tensor = Writable(np.zeros(4, np.float32))
                assert await client.ones(4, out=tensor) is tensor
                assert await client.call("Filler.ones", 4, out=tensor) is tensor
                assert tensor.array.sum() == 4

    asyncio.run(calls())


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ([1.0], "out= must be an array, or share its memory by DLPack or as a buffer, not list"),
        (b"1234", "out= is read-only"),
        (Tensor(np.zeros(4, np.float32)), "out= is read-only"),
        (
            Writable(np.zeros(4), device=2),
            "out=: expected an array, got Writable .its memory is on DLPack device 2",
        ),
        (bytearray(16), "out= is uint8"),
        (np.zeros(8, np.float32)[::2], "out= must be C-contiguous"),
    ],
    ids=["list", "bytes", "old-dlpack", "gpu", "dtype", "strided"],
)
def test_what_out_can_not_be(filler: Any, out: Any, why: str) -> None:
    with pytest.raises(rrpc.InvalidArgument, match=why):
        filler.ones(4, out=out)
