"""Train a softmax regression on batches that a server streams, until it is good enough."""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass

import rrpc
from batches_client import AsyncBatchesClient, Batch, UnknownSplit
from rrpc.interceptors import ClientToken
from softmax import SoftmaxRegression

DEFAULT_SERVER = "rrpc://127.0.0.1:7473"
PREFETCH = 4  # batches on the way to us, at most
CALL_SECONDS = 5.0


@dataclass
class Progress:
    """How good the model is, and what that took."""

    accuracy: float = 0.0
    epochs: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0


async def train(batches: AsyncBatchesClient, validation: Batch, options: argparse.Namespace) -> Progress:
    """Epoch after epoch until the target is reached; what is left of the last one is never sent."""
    model, progress, start = SoftmaxRegression(validation.pixels.shape[1]), Progress(), time.perf_counter()
    while progress.accuracy < options.target and progress.epochs < options.epochs:
        progress.epochs += 1
        stream = batches.epoch(options.split, options.size, progress.epochs, timeout=options.epoch_timeout)
        async with stream:  # leaving it cancels the call, and the server's generator ends
            async for batch in stream:
                model.learn(batch)
                progress.batches += 1
                progress.bytes += batch.pixels.nbytes + batch.labels.nbytes
                progress.accuracy = model.accuracy(validation)
                if progress.accuracy >= options.target:
                    break
        print(f"epoch {progress.epochs:2}: accuracy {progress.accuracy:.3f} after {progress.batches} batches")
    progress.seconds = time.perf_counter() - start
    return progress


async def counters(batches: AsyncBatchesClient, epochs: int = 0) -> Counter[str]:
    """Of both processes, once the server has ended so many epochs: it hears a moment later that we left one."""
    for _ in range(500):
        there = await batches.counters(timeout=CALL_SECONDS)
        if there["epochs_ended"] >= epochs:
            break
        await asyncio.sleep(0.01)
    return Counter(there) + Counter(rrpc.stats())


async def run(options: argparse.Namespace) -> None:
    token = os.environ.get("BATCHES_TOKEN")
    client = AsyncBatchesClient(
        options.server,
        interceptors=[ClientToken(token, allow_clear=True)] if token else [],
        retry=rrpc.RetryPolicy(max_attempts=4),  # of what is idempotent: whole() and counters()
        stream_window_items=PREFETCH,
    )
    async with client as batches:
        validation = await batches.whole("validation", timeout=CALL_SECONDS)
        before = await counters(batches)
        done = await train(batches, validation, options)
        spent = await counters(batches, before["epochs_ended"] + done.epochs) - before
        transport = batches.info()["transport"]
    copied = spent["bytes_copied"] + spent["bytes_staged"]
    print(f"trained    {done.batches} batches, {done.batches / done.seconds:,.0f} a second")
    print(f"arrays     {done.bytes:,} bytes: {spent['bytes_read']:,} read remotely, {copied:,} copied")
    print(f"server     {spent['batches_made']} batches made, epochs left early: {spent['epochs_left_early']}")
    print(f"transport  {transport}")


def count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="train", description=f"{__doc__} The token is BATCHES_TOKEN's.")
    add = result.add_argument
    add("--server", default=DEFAULT_SERVER, metavar="ADDRESS", help=f"default {DEFAULT_SERVER}")
    add("--split", default="train", help="what to learn from; default train")
    add("--size", type=count, default=64, metavar="ROWS", help="of a batch; default 64")
    add("--target", type=float, default=0.95, metavar="ACCURACY", help="default 0.95")
    add("--epochs", type=count, default=30, help="at most; default 30")
    add("--epoch-timeout", type=float, default=10.0, metavar="SECONDS", help="default 10")
    add("--trace", metavar="FILE", help="write the timeline of all calls, for https://ui.perfetto.dev")
    return result


def main() -> int:
    options = parser().parse_args()
    trace = rrpc.trace() if options.trace else None
    try:
        with trace or nullcontext():
            asyncio.run(run(options))
        if trace:
            trace.save(options.trace)
    except UnknownSplit as error:
        print(f"train: no split {error.split!r}; there are {', '.join(error.known)}", file=sys.stderr)
        return 1
    except (rrpc.RpcError, OSError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("train: given up", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
