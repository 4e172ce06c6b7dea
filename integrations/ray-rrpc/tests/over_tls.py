"""``python over_tls.py ADDRESS_FILE FOLDER``: an array from the driver to an actor, in a Ray that is secured by TLS."""

import sys
from pathlib import Path

import numpy as np
import ray
import ray_rrpc
from numpy.typing import NDArray
from ray_rrpc.owner import owner

ray_rrpc.register()


@ray.remote(enable_tensor_transport=True, num_cpus=0)
class Actor:
    """Adds up."""

    def sum(self, array: NDArray[np.float64]) -> float:
        return float(array.sum())


def main() -> None:
    ray.init("local", num_cpus=2, log_to_driver=False, include_dashboard=False, _temp_dir=sys.argv[2])
    ref = ray.put(np.ones(100_000), _tensor_transport="rrpc")
    print(ray.get(Actor.remote().sum.remote(ref)))
    Path(sys.argv[1]).write_text(owner.hold("another", [np.ones(2)])[0])
    print("ready", flush=True)
    sys.stdin.readline()
    ray.shutdown()


if __name__ == "__main__":
    main()
