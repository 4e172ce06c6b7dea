"""``python bench.py``: an array from actor to actor, through Ray's object store and over rrpc, by turns in one run.

A cluster of two nodes on this host; each way has actors of its own. "lent" is rrpc with ``borrow=True`` and an array
in pool memory, where the receiver reads it. "nothing" is a tensor transport that moves nothing: what Ray's direct
transport takes by itself. Times are medians; those of the first transfer are printed apart.
"""

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # nodes then keep to 127.0.0.1

import numpy as np
import ray
import ray_rrpc
from numpy.typing import NDArray
from ray.cluster_utils import Cluster
from ray.experimental import TensorTransportMetadata, register_tensor_transport

import rrpc

WAYS = {"object store": None, "rrpc": "rrpc", "lent": "lent", "nothing": "nothing"}


class Nothing(ray_rrpc.RrpcTransport):  # type: ignore[misc]
    """Gives the receiver new memory as it is."""

    name = "NOTHING"

    def extract_tensor_transport_metadata(
        self, obj_id: str, rdt_object: list[Any]
    ) -> TensorTransportMetadata:
        return TensorTransportMetadata([(array.shape, array.dtype) for array in rdt_object], "cpu")

    def fetch_multiple_tensors(
        self, obj_id: str, held: Any, communicator: Any, target_buffers: Any = None
    ) -> Any:
        return ray.experimental.rdt.tensor_transport_manager.FetchRequest(
            obj_id, [np.empty(shape, dtype) for shape, dtype in held.tensor_meta]
        )

    def wait_fetch_complete(self, fetch_request: Any, timeout: float = -1) -> list[Any]:
        return list(fetch_request.tensors)

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        pass


def register() -> None:
    """Makes the transports known in this process."""
    ray_rrpc.register()
    ray_rrpc.register("lent", borrow=True)
    with contextlib.suppress(ValueError):  # registered already
        register_tensor_transport("nothing", ["cpu"], Nothing, np.ndarray)


register()


@ray.remote(enable_tensor_transport=True, num_cpus=1)
class Actor:
    """Has an array, or takes one."""

    def __init__(self, nbytes: int, way: str) -> None:
        register()  # Ray may have the actor called before it tells it of the driver's
        ones = np.ones(nbytes, np.uint8)
        self.array = rrpc.snapshot(ones) if way == "lent" else ones

    def make(self) -> NDArray[np.uint8]:
        return self.array

    def take(self, array: NDArray[np.uint8]) -> int:
        return int(array[-1])

    def put(self, transport: str | None) -> tuple[float, list[Any]]:
        """Seconds to make an object of the array, and a reference to that."""
        start = time.perf_counter()
        ref = ray.put(self.array, _tensor_transport=transport) if transport else ray.put(self.array)
        return time.perf_counter() - start, [ref]

    def get(self, refs: list[Any]) -> float:
        """Seconds to get it."""
        start = time.perf_counter()
        ray.get(refs[0])
        return time.perf_counter() - start


def passed(near: Any, far: Any, transport: str | None) -> float:
    """Seconds from the call that makes the array to the answer of the actor that it is given to."""
    start = time.perf_counter()
    make = near.make.options(tensor_transport=transport) if transport else near.make
    ray.get(far.take.remote(make.remote()))
    return time.perf_counter() - start


def put_and_got(near: Any, far: Any, transport: str | None) -> float:
    """Seconds that ray.put takes in one actor and ray.get in another, without the calls around them."""
    seconds, refs = ray.get(near.put.remote(transport))
    return float(seconds + ray.get(far.get.remote(refs)))


def measure(nbytes: int, rounds: int) -> None:
    """Prints a row for each place of the receiver and each way to hand over an array."""
    hand_over: dict[str, Callable[..., float]] = {"put and got": put_and_got, "passed to a method": passed}
    print(
        f"| {nbytes / 1e6:.0f} MB | {' | '.join(WAYS)} | object store / rrpc | / lent |\n|---|---|---|---|---|---|---|"
    )
    for place, resource in (("same node", "near"), ("two nodes", "far")):
        pairs = {
            way: tuple(
                Actor.options(resources={where: 1}).remote(nbytes, way) for where in ("near", resource)
            )
            for way in WAYS
        }
        for name, seconds_of in hand_over.items():
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds + 1):
                for way, transport in WAYS.items():
                    times[way].append(seconds_of(*pairs[way], transport) * 1e3)
            for label, of in (
                ("first", lambda all_: all_[0]),
                ("median", lambda all_: statistics.median(all_[1:])),
            ):
                found = {way: of(times[way]) for way in WAYS}
                cells = " | ".join(f"{milliseconds:.2f} ms" for milliseconds in found.values())
                ratios = " | ".join(f"{found['object store'] / found[way]:.2f}" for way in ("rrpc", "lent"))
                print(f"| {place}, {name}, {label} | {cells} | {ratios} |", flush=True)
        for actor in (actor for pair in pairs.values() for actor in pair):
            ray.kill(actor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=16)
    options = parser.parse_args()
    node = {"num_cpus": 8, "object_store_memory": 500 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "resources": {"near": 10}})
    try:
        cluster.add_node(**node, resources={"far": 10})
        ray.init(address=cluster.address, log_to_driver=False)
        measure(options.megabytes * 1_000_000, options.rounds)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
