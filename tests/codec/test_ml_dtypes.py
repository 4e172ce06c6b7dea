"""Arrays and scalars of the package ml_dtypes: bfloat16, float8, int4."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from lab import address_to_listen_on
from numpy.typing import NDArray
from two_versions import generate

import rrpc
from rrpc._interface.decorators import interface_of
from rrpc.codec import describe_dtype, parse_dtype
from rrpc.idl.emit_python import Unit, emit
from rrpc.schema import ARRAY_ITEMS, Array, from_data, service_of, to_data
from rrpc.schema.model import ML_ITEMS
from rrpc.schema.to_python import to_interface

NAMES = sorted(name for name in ML_ITEMS if hasattr(ml_dtypes, name))


@rrpc.service
class Model:
    @rrpc.method
    def quantized(self, weights: NDArray[ml_dtypes.bfloat16]) -> NDArray[ml_dtypes.int4]:
        return weights.astype(ml_dtypes.int4)

    @rrpc.method
    def scale(self, factor: ml_dtypes.bfloat16, bits: ml_dtypes.int4) -> ml_dtypes.float8_e4m3fn:
        assert type(factor) is ml_dtypes.bfloat16
        return ml_dtypes.float8_e4m3fn(float(factor) * int(bits))

    @rrpc.method
    def same(self, value: Any) -> Any:
        return value


CLIENTS = generate(Model)


@pytest.fixture(params=["shm", "tcp"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    server = rrpc.serve(Model(), listen=address_to_listen_on(request.param))
    with server, CLIENTS.ModelClient(server.addresses[0], timeout=20.0) as client:
        yield client


@pytest.mark.parametrize("name", NAMES)
def test_every_type_arrives_as_it_is(client: Any, name: str) -> None:
    kind = getattr(ml_dtypes, name)
    for shape in [(3,), (200, 300), ()]:
        sent = np.arange(int(np.prod(shape))).reshape(shape).astype(np.float32).astype(kind)
        for array in (sent, sent.T, sent[::2] if shape else sent):
            back = client.same(array)
            assert back.dtype == kind
            assert back.shape == array.shape
            assert back.tobytes() == array.tobytes()


def test_arrays_of_a_struct_with_them(client: Any) -> None:
    sent = np.zeros(5, [("a", ml_dtypes.bfloat16), ("b", np.int32, (2,))])
    sent["a"] = np.arange(5)
    back = client.same(sent)
    assert back.dtype == sent.dtype
    assert back["a"].tolist() == sent["a"].tolist()


@pytest.mark.parametrize("count", [8, 100_000])
def test_a_method_of_them(client: Any, count: int) -> None:
    weights = (np.arange(count) % 8).astype(ml_dtypes.bfloat16)
    back = client.quantized(weights)
    assert back.dtype == ml_dtypes.int4
    assert np.array_equal(back.astype(np.int8), np.arange(count) % 8)
    out = rrpc.empty(count, ml_dtypes.int4)
    assert client.quantized(weights, out=out) is out


def test_another_dtype_is_refused_with_the_way(client: Any) -> None:
    with pytest.raises(rrpc.InvalidArgument, match=r"\(use \.astype\(ml_dtypes\.bfloat16\)\)"):
        client.quantized(np.zeros(3, np.float32))


def test_scalars(client: Any) -> None:
    assert client.scale(1.5, 3) == ml_dtypes.float8_e4m3fn(4.5)
    assert client.scale(ml_dtypes.bfloat16(2), ml_dtypes.int4(-2)) == ml_dtypes.float8_e4m3fn(-4)
    for wrong, why in [
        ((1.5, 8), "8 doesn't fit"),
        (("a", 1), "expected bfloat16"),
        ((1.5, 1.0), "expected int4"),
    ]:
        with pytest.raises(rrpc.InvalidArgument, match=why):
            client.scale(*wrong)


def test_no_other_name_is_looked_up() -> None:
    assert describe_dtype(np.dtype(ml_dtypes.bfloat16)) == b"<bfloat16"
    assert parse_dtype(b"<int4") == ml_dtypes.int4
    for name in (b"<finfo", b"<float8_", b"<float8_e4m3fn.x", b"|int4", b"<bfloat17"):
        with pytest.raises(ValueError, match="isn't one that may be sent"):
            parse_dtype(name)
    with pytest.raises(rrpc.FailedPrecondition, match=r"has no float8_e1m1: upgrade it"):
        parse_dtype(b"<float8_e1m1")


def test_without_the_package_it_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import rrpc.codec as codec\n"
        "try: codec.decode(bytes.fromhex(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    payload = rrpc.codec.encode(np.zeros(2, ml_dtypes.bfloat16), rrpc.codec.Message())
    ran = subprocess.run(
        [sys.executable, "-c", code, payload.hex()], capture_output=True, text=True, check=True
    )
    assert ran.stdout == (
        "FailedPrecondition an array of bfloat16 needs the package ml_dtypes here: pip install rrpc-rdma[ml]\n"
    )


def test_the_schema_names_them(tmp_path: Path) -> None:
    assert ML_ITEMS <= ARRAY_ITEMS
    schema = service_of(Model)
    assert schema.methods[0].parameters[0].type == Array("bfloat16")
    assert from_data(to_data(schema)) == schema
    live = to_interface(schema).methods["quantized"]
    assert live.result == NDArray[ml_dtypes.int4]


def test_the_generated_client_imports_the_package(tmp_path: Path) -> None:
    interface = interface_of(Model)
    assert interface is not None
    text = emit(Unit("a test", [interface]), "0.1.0")
    assert "import ml_dtypes\nimport rrpc\n" in text
    assert "weights: NDArray[ml_dtypes.bfloat16]" in text
