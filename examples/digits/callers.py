"""Have many callers read one digit at a time, with batching and without."""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np
import rrpc
from digits_client import AsyncDigitsClient
from numpy.typing import NDArray
from sklearn.datasets import load_digits

DEFAULT_SERVER = "rrpc://127.0.0.1:7473"
CALL_SECONDS = 60.0

Images = NDArray[np.float32]
Read = Callable[[Images], Awaitable[NDArray[np.int64]]]


def tests() -> tuple[Images, NDArray[np.int64]]:
    """Every fifth digit, which the model hasn't seen, and what it shows."""
    digits = load_digits()
    chosen = np.arange(len(digits.target)) % 5 == 0
    return digits.data[chosen].astype(np.float32), digits.target[chosen].astype(np.int64)


async def measure(read: Read, callers: int, calls: int) -> tuple[float, float, float, float]:
    """Returns the calls per second, the median and the 99th percentile of a call's seconds, and the accuracy."""
    images, labels = tests()

    async def call(caller: int) -> list[tuple[float, bool]]:
        seen = []
        for n in range(calls):
            row = (caller + n * callers) % len(labels)
            start = time.perf_counter()
            (digit,) = await read(images[row : row + 1])
            seen.append((time.perf_counter() - start, bool(digit == labels[row])))
        return seen

    start = time.perf_counter()
    parts = await asyncio.gather(*(call(caller) for caller in range(callers)))
    seconds = time.perf_counter() - start
    seen = np.array([each for part in parts for each in part])
    return (
        len(seen) / seconds,
        float(np.median(seen[:, 0])),
        float(np.quantile(seen[:, 0], 0.99)),
        float(seen[:, 1].mean()),
    )


async def run(options: argparse.Namespace) -> None:
    async with AsyncDigitsClient(options.server, timeout=CALL_SECONDS) as digits:
        before = await digits.batch_sizes()
        rates = {}
        print(
            f"{options.callers} callers, {options.calls} calls each, one row a call, by {digits.info()['transport']}"
        )
        for name, read in (("alone", digits.read_alone), ("batched", digits.read)):
            rates[name], median, slowest, accuracy = await measure(read, options.callers, options.calls)
            print(
                f"{name:8} {rates[name]:7,.0f} calls/s   p50 {median * 1e3:6.1f} ms   p99 {slowest * 1e3:6.1f} ms"
                f"   accuracy {accuracy:.3f}"
            )
        after = await digits.batch_sizes()
        batches = {size: count - before.get(size, 0) for size, count in after.items()}
        calls, runs = sum(size * count for size, count in batches.items()), sum(batches.values())
        print(
            f"gain     {rates['batched'] / rates['alone']:.1f} times; {calls / runs:.1f} calls in a batch on average"
        )


def count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="callers", description=__doc__)
    parser.add_argument(
        "--server", default=DEFAULT_SERVER, metavar="ADDRESS", help=f"default {DEFAULT_SERVER}"
    )
    parser.add_argument("--callers", type=count, default=64, help="at the same time; default 64")
    parser.add_argument("--calls", type=count, default=20, help="of each caller; default 20")
    try:
        asyncio.run(run(parser.parse_args()))
    except rrpc.RpcError as error:
        print(f"callers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
