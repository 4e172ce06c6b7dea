"""Measures 64 MiB as a tensor, a table or a data frame beside the same bytes as an array of numpy, by turns in one run.

usage: python integrations/frameworks/bench.py [--rounds N] [--transport shm|tcp]
Prints medians in milliseconds, and each divided by that of the array.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import torch

import rrpc

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]
ITEMS = 8 << 20
KINDS = ("array", "torch", "jax", "table", "strings", "frame")


def made() -> dict[str, Any]:
    """64 MiB of each kind; float64 where there are numbers, float32 for JAX."""
    array = np.random.default_rng(0).random(ITEMS)
    columns = {f"c{i}": part for i, part in enumerate(array.reshape(4, -1))}
    rows = (8 * ITEMS) // 20
    text = pa.Array.from_buffers(
        pa.string(),
        rows,
        [
            None,
            pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * 16),
            pa.py_buffer(b"sixteen letters " * rows),
        ],
    )
    return {
        "array": array,
        "torch": torch.from_numpy(array.copy()),
        "jax": jax.numpy.asarray(array.view(np.float32)),
        "table": pa.table(columns),
        "strings": pa.table({"s": text}),
        "frame": pd.DataFrame(columns),
    }


@rrpc.service
class Bytes:
    """Takes and gives 64 MiB."""

    def __init__(self) -> None:
        self.made = made()

    @rrpc.method
    def take_array(self, x: np.ndarray) -> int:
        return len(x)

    @rrpc.method
    def take_torch(self, x: torch.Tensor) -> int:
        return len(x)

    @rrpc.method
    def take_jax(self, x: jax.Array) -> int:
        return len(x)

    @rrpc.method
    def take_table(self, x: pa.Table) -> int:
        return int(x.num_rows)

    @rrpc.method
    def take_strings(self, x: pa.Table) -> int:
        return int(x.num_rows)

    @rrpc.method
    def take_frame(self, x: pd.DataFrame) -> int:
        return len(x)

    @rrpc.method
    def give_array(self) -> np.ndarray:
        return self.made["array"]

    @rrpc.method
    def give_torch(self) -> torch.Tensor:
        return self.made["torch"]

    @rrpc.method
    def give_jax(self) -> jax.Array:
        return self.made["jax"]

    @rrpc.method
    def give_table(self) -> pa.Table:
        return self.made["table"]

    @rrpc.method
    def give_strings(self) -> pa.Table:
        return self.made["strings"]

    @rrpc.method
    def give_frame(self) -> pd.DataFrame:
        return self.made["frame"]


def measured(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians in milliseconds, each call in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 3):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number >= 3:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    os.environ.setdefault("RRPC_TEST_TIME_SCALE", "4")  # the libraries take their time to be imported
    from lab import address_to_listen_on
    from processes import ServeFactory
    from two_versions import generate

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--transport", default="shm", choices=["shm", "tcp"])
    options = parser.parse_args()
    factory = ServeFactory(HERE.parents[1] / "build", address_to_listen_on, fork=False)
    address = address_to_listen_on(options.transport)
    try:
        factory.start(["bench:Bytes", "--listen", address], 1, folder=HERE)
        with generate(sys.modules["__main__"].Bytes).BytesClient(address, timeout=60.0) as client:
            values = made()
            calls = {
                f"take_{kind}": (lambda kind=kind: getattr(client, f"take_{kind}")(values[kind]))
                for kind in KINDS
            }
            calls |= {f"give_{kind}": getattr(client, f"give_{kind}") for kind in KINDS}
            medians = measured(calls, options.rounds)
    finally:
        factory.close()
    print(
        f"| 64 MiB over {options.transport} | argument | / array | result | / array |\n|---|---|---|---|---|"
    )
    for kind in KINDS:
        take, give = medians[f"take_{kind}"], medians[f"give_{kind}"]
        ratios = take / medians["take_array"], give / medians["give_array"]
        print(f"| {kind} | {take:.1f} ms | {ratios[0]:.2f} | {give:.1f} ms | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
