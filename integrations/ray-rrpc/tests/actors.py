"""Actors that the tests have."""

import os
import time
from typing import Any

import numpy as np
import ray
import ray_rrpc.owner
from numpy.typing import NDArray
from ray.experimental import set_target_for_ref

import rrpc

ray_rrpc.register()  # before a method names it, in the actors' processes too, which import this
ray_rrpc.register("rrpc_brief", timeout=1.0)
ray_rrpc.register("rrpc_lent", borrow=True)


@ray.remote(enable_tensor_transport=True, num_cpus=0)
class Actor:
    """Makes, takes and passes on arrays."""

    def pid(self) -> int:
        return os.getpid()

    def behind(self, port: int) -> int:
        """Receivers are told that port in place of the owner's own, which is returned."""
        owner = ray_rrpc.owner.owner
        address, _ = owner.hold("first", [np.ones(1)])
        hold = owner.hold

        def told(*args: Any) -> tuple[str, str]:
            return f"rrpc://127.0.0.1:{port}", hold(*args)[1]

        owner.hold = told  # type: ignore[method-assign]
        return int(address.rpartition(":")[2])

    @ray.method(tensor_transport="rrpc")
    def echo(self, data: Any) -> Any:
        return data

    @ray.method(tensor_transport="rrpc")
    def ones(self, count: int) -> NDArray[np.float64]:
        return np.ones(count)

    @ray.method(tensor_transport="rrpc_brief")
    def brief(self, count: int) -> NDArray[np.float64]:
        return np.ones(count)

    @ray.method(tensor_transport="rrpc")
    def in_pool(self, count: int) -> NDArray[np.float64]:
        return rrpc.snapshot(np.ones(count))

    @ray.method(tensor_transport="rrpc_lent")
    def lent(self, count: int, in_pool: bool) -> NDArray[np.float64]:
        ones = np.ones(count)
        return rrpc.snapshot(ones) if in_pool else ones

    @ray.method(tensor_transport="rrpc")
    def everything(self) -> dict[str, Any]:
        return dict(everything())

    def plain_echo(self, data: Any) -> Any:
        return data

    def sum(self, data: Any) -> float:
        if isinstance(data, np.ndarray):
            return float(data.sum())
        return float(sum(array.sum() for array in data))

    def describe(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            name: (a.shape, a.dtype.str, a.flags.f_contiguous, a.flags.writeable) for name, a in data.items()
        }

    def compare(self, data: dict[str, Any]) -> list[str]:
        """Names of the arrays that didn't arrive as they were made."""
        made = dict(everything())
        return [n for n, a in data.items() if a.tobytes() != made[n].tobytes()] + sorted(
            made.keys() - data.keys()
        )

    def put(self, count: int) -> list[Any]:
        return [ray.put(np.arange(count), _tensor_transport="rrpc")]

    def get(self, refs: list[Any]) -> int:
        return int(ray.get(refs[0]).sum())

    def keep(self, data: NDArray[np.float64]) -> bool:
        """Holds the array; whether it is writable."""
        self.kept = data
        return data.flags.writeable

    def sum_of_kept(self) -> float:
        return float(self.kept.sum())

    def let_go(self) -> None:
        del self.kept

    def get_into_target(self, refs: list[Any], count: int) -> tuple[bool, int]:
        """Whether the array is the target itself; the sum of the memory that the target is a view of."""
        memory = np.zeros(count, np.int64)
        into = ray_rrpc.target(memory)
        set_target_for_ref(refs[0], [into])
        return ray.get(refs[0]) is into, int(memory.sum())

    def fetch_for_ever(self, held: Any) -> None:
        """Fetches what the owner holds, again and again."""
        client = rrpc.connect(held.address, timeout=10.0)
        while True:
            client.call("ray.Tensors.fetch", held.key, 0, 1)

    def held(self) -> int:
        return ray_rrpc.owner.owner.held()

    def stats(self) -> dict[str, int]:
        return rrpc.stats()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def everything() -> list[tuple[str, NDArray[Any]]]:
    """Arrays of each kind that can be sent: small and large, of many dtypes, views, without items."""
    numbers = np.arange(120_000)
    point = np.dtype([("x", "<f4"), ("n", "<i8")])
    return [
        ("small", np.array([1, 2, 3])),
        ("scalar", np.array(7.5)),
        ("empty", np.empty((0, 3))),
        ("large", numbers.astype(np.float64)),
        ("fortran", np.asfortranarray(numbers.reshape(300, 400).astype(np.float32))),
        ("view", numbers.reshape(300, 400)[::2, ::3]),
        ("big endian", numbers.astype(">i4")),
        ("bools", numbers % 3 == 0),
        ("complex", numbers * 1j),
        ("halves", (numbers % 1000).astype(np.float16)),
        ("texts", np.array(["a", "bcd"])),
        ("times", np.array(["2026-01-31", "NaT"], "M8[D]")),
        ("records", np.zeros(5000, point)),
    ]
