"""Train one network in several processes, which share its weights through a parameter server."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import rrpc
from network import FLOATS, accuracy, digits, gradient
from parameters_client import ParametersClient

DEFAULT_SERVER = "rrpc://127.0.0.1:7473"
BATCH_ROWS = 64
RATE = np.float32(0.2)
CALL_SECONDS = 10.0


def work(server: str, worker: int, steps: int) -> None:
    """One worker's part: each step pulls the weights as they are, and pushes what a batch says of them."""
    pixels, labels = digits(training=True)
    random = np.random.default_rng(worker)
    weights, change = rrpc.empty(FLOATS, np.float32), rrpc.empty(FLOATS, np.float32)
    with ParametersClient(server, timeout=CALL_SECONDS) as parameters:
        for _ in range(steps):
            parameters.pull(out=weights)
            chosen = random.integers(0, len(labels), BATCH_ROWS)
            np.multiply(gradient(weights, pixels[chosen], labels[chosen]), -RATE, out=change)
            parameters.push(change)  # when it has returned, `change` is ours again


def run(options: argparse.Namespace) -> None:
    with ParametersClient(options.server, timeout=CALL_SECONDS) as parameters:
        pixels, labels = digits(training=False)
        before = parameters.counters()
        print(f"before     accuracy {accuracy(parameters.pull(), pixels, labels):.3f}")
        start = time.perf_counter()
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            parts = [pool.submit(work, options.server, n, options.steps) for n in range(options.workers)]
            for part in parts:
                part.result()
        seconds = time.perf_counter() - start
        after = parameters.counters()
        steps = after["steps"] - before["steps"]
        print(f"after      accuracy {accuracy(parameters.pull(), pixels, labels):.3f}")
        print(f"steps      {steps} by {options.workers} workers in {seconds:.1f} s, their start included")
        print(f"weights    {FLOATS * 4:,} bytes, pulled and pushed in each step")
        print(f"changed    {after['arrays_changed']} while they were read (counted with RRPC_CHECK_ARRAYS=1)")
        print(f"transport  {parameters.info()['transport']}")


def count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="train", description=__doc__)
    parser.add_argument(
        "--server", default=DEFAULT_SERVER, metavar="ADDRESS", help=f"default {DEFAULT_SERVER}"
    )
    parser.add_argument("--workers", type=count, default=2, help="processes; default 2")
    parser.add_argument("--steps", type=count, default=300, help="of each worker; default 300")
    try:
        run(parser.parse_args())
    except rrpc.RpcError as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
