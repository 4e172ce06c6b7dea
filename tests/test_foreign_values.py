"""Arguments of other libraries: what has DLPack or Python's buffer protocol is sent from its own memory."""

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
