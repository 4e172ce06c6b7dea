"""Torch tensors, where torch is installed. requirements.txt leaves it out: Ray would import it in every process."""

from typing import Any

import numpy as np
import pytest
import ray
import ray_rrpc
from ray.experimental import set_target_for_ref
from ray_rrpc.arrays import array_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("cluster")
ray_rrpc.register("rrpc_torch", torch.Tensor)


def tensors() -> dict[str, Any]:
    numbers = torch.arange(120_000)
    return {
        "floats": numbers.to(torch.float32),
        "bfloat16": numbers.to(torch.bfloat16),
        "float8": (numbers % 100).to(torch.float8_e4m3fn),
        "bools": numbers % 3 == 0,
        "complex": numbers * 1j,
        "conjugate": (numbers * 1j).conj(),
        "scalar": torch.tensor(7.5, dtype=torch.float64),
        "empty": torch.empty((0, 3)),
        "view": numbers.reshape(300, 400).T[::2],
        "leaf": torch.ones(10, requires_grad=True),
    }


@ray.remote(enable_tensor_transport=True, num_cpus=0)
class Holder:
    """Gives and takes tensors."""

    def all(self) -> dict[str, Any]:
        return tensors()

    def sparse(self) -> Any:
        return torch.eye(3).to_sparse()

    def wrong(self, arrived: dict[str, Any]) -> list[str]:
        """Names of the tensors that differ from what was made."""
        return [
            name
            for name, made in tensors().items()
            if (one := arrived[name]).dtype != made.dtype
            or one.shape != made.shape
            or not torch.equal(one.to(torch.complex128), made.detach().to(torch.complex128))
        ]

    def put(self) -> list[Any]:
        return [ray.put(torch.arange(100_000), _tensor_transport="rrpc_torch")]

    def get_into_target(self, refs: list[Any]) -> tuple[bool, int]:
        target = torch.zeros(100_000, dtype=torch.int64)
        set_target_for_ref(refs[0], [target])
        return ray.get(refs[0]) is target, int(target.sum())


def test_each_kind_of_tensor_arrives_as_it_is() -> None:
    first, second = Holder.remote(), Holder.remote()
    ref = first.all.options(tensor_transport="rrpc_torch").remote()
    assert ray.get(second.wrong.remote(ref)) == []


def test_a_tensor_lands_in_the_target() -> None:
    first, second = Holder.remote(), Holder.remote()
    refs = ray.get(first.put.remote())
    assert ray.get(second.get_into_target.remote(refs)) == (True, sum(range(100_000)))


def test_what_is_not_dense_is_refused_with_the_cure() -> None:
    with pytest.raises(TypeError, match=r"does not support .*\.to_dense\(\)"):
        ray.get(Holder.remote().sparse.options(tensor_transport="rrpc_torch").remote())


def test_arrays_share_the_tensors_memory() -> None:
    tensor = torch.zeros(5, dtype=torch.bfloat16)
    array_of(tensor)[...] = np.int16(0x3F80)
    assert torch.equal(tensor, torch.ones(5, dtype=torch.bfloat16))
