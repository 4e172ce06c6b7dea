"""jax.Array as arguments and results, over real connections."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from processes import eventually

import rrpc

DTYPES = [
    jnp.float32,
    jnp.float16,
    jnp.bfloat16,
    jnp.complex64,
    jnp.bool_,
    jnp.int8,
    jnp.int32,
    jnp.uint8,
    jnp.uint32,
]
DTYPES += [jnp.float8_e4m3fn, jnp.float8_e5m2]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_every_dtype_arrives_as_it_is(tensors: Any, dtype: Any) -> None:
    for shape in [(), (0,), (3,), (200, 300)]:
        sent = jnp.asarray(np.random.default_rng(1).integers(0, 2, shape)).astype(dtype)
        back = tensors.jax_same(sent)
        assert isinstance(back, jax.Array)
        assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
        assert np.asarray(back).tobytes() == np.asarray(sent).tobytes()


def test_numpy_torch_and_jax_understand_each_other(tensors: Any) -> None:
    array = np.arange(20_000, dtype=np.float32)
    for given in (array, torch.from_numpy(array), jnp.asarray(array)):
        assert np.array_equal(tensors.squared(given), array * array)
        assert torch.equal(tensors.same(given), torch.from_numpy(array))
        assert np.array_equal(tensors.doubled(given), 2 * array)
    assert tensors.jax_sum(jnp.ones(5)) == 5.0


def test_large_ones_stay_where_they_landed(tensors: Any) -> None:
    sent = jnp.ones((1 << 20, 2), jnp.float32)
    tensors.jax_same(sent)
    before = rrpc.stats()
    held = tensors.jax_same(sent)
    assert rrpc.stats()["bytes_copied"] == before["bytes_copied"]
    assert rrpc.stats()["pool_bytes_used"] >= before["pool_bytes_used"] + held.nbytes
    assert float(held.sum()) == 2 << 20
    del held
    gc.collect()
    eventually(lambda: rrpc.stats()["pool_bytes_used"] <= before["pool_bytes_used"])


def test_copies_are_counted(tensors: Any) -> None:
    sent = jnp.ones((1 << 20, 2), jnp.bfloat16)  # XLA takes none of these over from numpy
    before = rrpc.stats()
    assert tensors.jax_same(sent).dtype == jnp.bfloat16
    assert rrpc.stats()["bytes_unpacked"] == before["bytes_unpacked"] + sent.nbytes


def test_what_can_not_be_sent_says_what_to_do(tensors: Any) -> None:
    for value, text in [
        (np.ones(3), "JAX would make it float32: jax.config.update"),
        (np.array(["a"]), "JAX has no <U1"),
        (jax.random.key(0), "PRNG"),
        ([1.0], "expected jax.Array, got list"),
    ]:
        with pytest.raises(rrpc.InvalidArgument, match=text):
            tensors.jax_same(value)
    with pytest.raises(rrpc.InvalidArgument, match="it has items of int32"):
        tensors.jax_sum(jnp.ones(3, jnp.int32))
    deleted = jnp.ones(3)
    deleted.delete()
    with pytest.raises(rrpc.InvalidArgument, match="deleted"):
        tensors.jax_same(deleted)


def test_a_traced_array_has_no_value(tensors: Any) -> None:
    with pytest.raises(
        rrpc.InvalidArgument, match=r"traced and has no value yet: call from outside of jax\.jit"
    ):
        jax.jit(lambda x: tensors.jax_same(x))(jnp.ones(3))


def test_out_is_refused_as_jax_arrays_do_not_change(tensors: Any) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="out= is read-only"):
        tensors.jax_same(jnp.ones(3), out=jnp.zeros(3))
    into = np.zeros(3, np.float32)
    assert isinstance(tensors.jax_same(jnp.ones(3), out=into), jax.Array)
    assert into.tolist() == [1.0] * 3
