"""torch.Tensor as arguments, results, items and fields, over real connections."""

import asyncio
import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TENSORS
from processes import eventually

import rrpc

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.bool,
]
DTYPES += [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
DTYPES += [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
MIB = 1 << 20


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives_as_it_is(tensors: Any, dtype: torch.dtype) -> None:
    for shape in [(), (0,), (3,), (3, 0), (200, 300)]:
        sent = (torch.rand(shape) * 3).to(torch.uint8).to(dtype)
        back = tensors.same(sent)
        assert type(back) is torch.Tensor
        assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
        assert bits(back) == bits(sent)


def test_views_of_every_kind(tensors: Any) -> None:
    whole = torch.rand(600, 400)
    views = [
        whole.t(),
        whole[::2, 1::3],
        whole[5],
        whole[:, 0],
        whole.flip(0),
        torch.rand(1, 5).expand(900, 5),
    ]
    views += [torch.rand(3).expand(0, 3), torch.rand(40, 40, 3, 2).to(memory_format=torch.channels_last)]
    for view in views:
        assert torch.equal(tensors.same(view), view)


def test_conj_and_neg_bits_are_resolved(tensors: Any) -> None:
    plain = torch.complex(torch.rand(9), torch.rand(9))
    for lazy in (plain.conj(), plain.conj().imag, torch.complex(torch.rand(9000), torch.rand(9000)).conj()):
        assert lazy.is_conj() or lazy.is_neg()
        assert torch.equal(tensors.same(lazy), lazy.resolve_conj().resolve_neg())


def test_within_lists_dicts_and_dataclasses(tensors: Any) -> None:
    a, b, bias = torch.ones(20_000), torch.full((20_000,), 2.0), torch.rand(3)
    layer, again = tensors.layers([a], {"a": b}, TENSORS.Layer(a, bias))
    assert torch.equal(layer.weights, a + b)
    assert torch.equal(again, bias)
    layer, none = tensors.layers([a], {"a": b}, TENSORS.Layer(a))
    assert (layer.bias, none) == (None, None)


@pytest.mark.parametrize("size", [3, 50_000])
def test_streams(tensors: Any, size: int) -> None:
    items = list(tensors.counted(4, size))
    assert [float(item[0]) for item in items] == [0.0, 1.0, 2.0, 3.0]
    assert all(type(item) is torch.Tensor and item.shape == (size,) for item in items)
    assert torch.equal(tensors.total(iter(items)), torch.full((size,), 6.0))


def test_numpy_and_torch_understand_each_other(tensors: Any) -> None:
    array = np.arange(20_000, dtype=np.float32)
    assert torch.equal(tensors.same(array), torch.from_numpy(array))
    doubled = tensors.doubled(torch.from_numpy(array))
    assert isinstance(doubled, np.ndarray)
    assert np.array_equal(doubled, 2 * array)
    with rrpc.connect(tensors.address, timeout=30.0) as plain:
        found = plain.call("Tensors.same", array)
        assert type(found) is np.ndarray
        assert np.array_equal(found, array)
        assert plain.call("Tensors.kind", torch.ones(3)) == "ndarray"
    read_only = np.arange(5.0)[::-1]
    read_only.flags.writeable = False
    assert tensors.same(read_only).tolist() == [4.0, 3.0, 2.0, 1.0, 0.0]


def test_nothing_is_copied(tensors: Any) -> None:
    sent = torch.ones(8 * MIB, dtype=torch.uint8)
    tensors.same(sent)
    ours, theirs = rrpc.stats(), tensors.counts()
    held = tensors.same(sent)
    assert rrpc.stats()["bytes_copied"] == ours["bytes_copied"]
    assert tensors.counts()["bytes_copied"] == theirs["bytes_copied"]
    # It stands where it landed: that memory is in use for as long as the tensor is.
    assert rrpc.stats()["pool_bytes_used"] >= ours["pool_bytes_used"] + held.nbytes
    held.fill_(7)
    view = held[5:]
    del held
    gc.collect()
    assert rrpc.stats()["pool_bytes_used"] >= ours["pool_bytes_used"] + view.nbytes
    assert int(view.sum()) == 7 * view.numel()
    del view
    eventually(lambda: rrpc.stats()["pool_bytes_used"] <= ours["pool_bytes_used"])


@pytest.mark.parametrize("count", [3, 100_000])
def test_out(tensors: Any, count: int) -> None:
    sent = torch.arange(float(count))
    into = torch.zeros(count)
    assert tensors.same(sent, out=into) is into
    assert torch.equal(into, sent)
    array = np.zeros(count, np.float32)
    given = tensors.same(sent, out=array)
    assert torch.equal(given, sent)
    assert np.array_equal(array, sent.numpy())
    half = torch.zeros(count, dtype=torch.bfloat16)
    assert tensors.same(torch.ones(count, dtype=torch.bfloat16), out=half) is half
    assert float(half.sum()) in (3.0, float(torch.ones(count, dtype=torch.bfloat16).sum()))
    layer, _ = tensors.layers([sent], {"a": sent}, TENSORS.Layer(sent), out=into)
    assert layer.weights is into
    assert torch.equal(into, 2 * sent)
    with pytest.raises(rrpc.InvalidArgument, match="out= is float64"):
        tensors.same(sent, out=torch.zeros(count, dtype=torch.float64))


def test_dtype_and_shape_of_the_annotation(tensors: Any) -> None:
    assert tensors.weighted(torch.ones(4, 3), torch.ones(3)).tolist() == [3.0] * 4
    assert tensors.weighted(np.ones((4, 3), np.float32), torch.ones(3)).shape == (4,)
    for x, w, text in [
        (
            torch.ones(4, 3, dtype=torch.float64),
            torch.ones(3),
            "expected torch.Tensor of float32, .*torch.float64",
        ),
        (np.ones((4, 3)), torch.ones(3), r"expected torch.Tensor of float32, .*\.astype"),
        (torch.ones(4), torch.ones(3), "it has 1 dimension"),
        (torch.ones(4, 3), torch.ones(2), "argument 'w': dimension d is 2, in argument 'x' it is 3"),
        ([1.0], torch.ones(2), "expected torch.Tensor of float32, got list"),
    ]:
        with pytest.raises(rrpc.InvalidArgument, match=text):
            tensors.weighted(x, w)


def test_what_can_not_be_sent_says_what_to_do(tensors: Any) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    sparse = torch.eye(3).to_sparse()
    for value, text in [
        (torch.ones(3, requires_grad=True), r"send \.detach\(\)"),
        (torch.nn.Linear(2, 2).weight, r"send \.detach\(\)"),
        (torch.empty(3, device="meta"), "a meta tensor has no data"),
        (sparse, r"torch.sparse_coo can't be sent: send \.to_dense\(\)"),
        (torch.eye(3).to_sparse_csr(), r"send \.to_dense\(\)"),
        (quantized, r"send \.dequantize\(\)"),
        (np.ones(3, ">f4"), "bytes are in another order"),
        (np.zeros(3, "M8[s]"), "torch has no datetime64"),
        (np.ma.masked_array(np.ones(3), [True, False, False]), "expected torch.Tensor"),
        ("text", "expected torch.Tensor, got str"),
    ]:
        with pytest.raises(rrpc.InvalidArgument, match=text):
            tensors.same(value)
        with pytest.raises(rrpc.InvalidArgument, match=r"'x'\[1\]"):
            tensors.layers([torch.ones(1), value], {}, TENSORS.Layer(torch.ones(1)))
    assert tensors.same(torch.nn.Linear(2, 2).weight.detach()).shape == (2, 2)


def test_a_result_that_can_not_be_sent_is_the_servers_fault(tensors: Any) -> None:
    with pytest.raises(rrpc.Internal, match=r"the result: it requires grad.*\.detach\(\)"):
        tensors.broken("grad")
    with pytest.raises(rrpc.Internal, match="a meta tensor has no data"):
        tensors.broken("meta")


def test_staging_has_no_data_to_copy_of_a_meta_tensor(tensors: Any) -> None:
    rrpc.set_device_tensors("stage")
    try:
        with pytest.raises(rrpc.InvalidArgument, match="a meta tensor has no data"):
            tensors.same(torch.empty(3, device="meta"))
    finally:
        rrpc.set_device_tensors("refuse")


def test_bfloat16_needs_ml_dtypes() -> None:
    code = (
        "import sys, torch\nsys.modules['ml_dtypes'] = None\nimport rrpc\n"
        "from rrpc.codec import Message, Refused, encode\n"
        "encode(torch.ones(3), Message())\n"
        "try:\n    encode(torch.ones(3, dtype=torch.bfloat16), Message())\n"
        "except Refused as refused:\n    print(refused)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "a tensor of bfloat16 needs the package ml_dtypes: pip install rrpc-rdma[ml]" in ran.stdout


def test_coroutines(tensors: Any) -> None:
    async def calls() -> None:
        async with TENSORS.AsyncTensorsClient(tensors.address, timeout=30.0) as client:
            sent, into = torch.rand(50_000), torch.zeros(50_000)
            assert torch.equal(await client.same(sent), sent)
            assert await client.same(sent, out=into) is into
            assert torch.equal(into, sent)
            items = [item async for item in client.counted(3, 5)]
            assert [type(item) for item in items] == [torch.Tensor] * 3
            with pytest.raises(rrpc.InvalidArgument, match=r"send \.detach\(\)"):
                await client.same(torch.ones(3, requires_grad=True))

    asyncio.run(calls())
