"""``python -m bench.strided [shm] [tcp]``: strided arrays packed, and fetched piece by piece, by turns in one run.

Medians in us of calls that take an array, give one, and give one into ``out=``. Each call has another part of a large
array, so that its bytes are in no cache. What is found here sets ``PIECE_BYTES`` in ``rrpc/codec/wire.py``.
"""

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import rrpc
from numpy.typing import NDArray
from rrpc.codec import wire

from bench.processes import Child
from bench.settings import MIB

WHOLE_BYTES = 160 * MIB
COUNTS = (2, 4, 8, 16)
PIECES_KIB = (128, 256, 512, 1024, 2048)
NEVER, ALWAYS = 1 << 60, 1
ROUNDS, SECONDS = 4, 0.05


class Source:
    """Arrays of `count` pieces, as much between them, one behind the other in a large array."""

    def __init__(self, count: int, piece_bytes: int) -> None:
        parts = max(2, WHOLE_BYTES // (2 * count * piece_bytes))
        self._whole = np.ones((parts, count, 2, piece_bytes), np.uint8)
        self._next = 0

    def take(self) -> NDArray[np.uint8]:
        self._next = (self._next + 1) % len(self._whole)
        array: NDArray[np.uint8] = self._whole[self._next, :, 0]
        return array


def lift_pieces(piece_bytes_min: int) -> None:
    wire.__dict__["PIECE_BYTES"] = piece_bytes_min


@rrpc.service
class Strided:
    """Takes and gives strided arrays."""

    @rrpc.method
    def prepare(self, count: int, piece_bytes: int) -> None:
        self._source = Source(count, piece_bytes)

    @rrpc.method
    def lift(self, piece_bytes_min: int) -> None:
        lift_pieces(piece_bytes_min)

    @rrpc.method
    def take(self, array: NDArray[np.uint8]) -> int:
        return array.nbytes

    @rrpc.method
    def give(self) -> NDArray[np.uint8]:
        return self._source.take()


def timed(call: Callable[[], Any], times: list[float]) -> None:
    call()
    end = time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        call()
        times.append((time.perf_counter() - start) * 1e6)


def compare(client: rrpc.Client, count: int, piece_bytes: int) -> str:
    source = Source(count, piece_bytes)
    client.call("Strided.prepare", count, piece_bytes)
    out = np.empty((count, piece_bytes), np.uint8)
    calls: dict[str, Callable[[], Any]] = {
        "argument": lambda: client.call("Strided.take", source.take()),
        "result": lambda: client.call("Strided.give"),
        "out=": lambda: client.call("Strided.give", out=out),
    }
    times: dict[tuple[str, int], list[float]] = {
        (name, mode): [] for name in calls for mode in (NEVER, ALWAYS)
    }
    for _ in range(ROUNDS):
        for mode in (NEVER, ALWAYS):
            lift_pieces(mode)
            client.call("Strided.lift", mode)
            for name, call in calls.items():
                timed(call, times[name, mode])
    shown = []
    for name in calls:
        packed, pieces = (median(times[name, mode]) for mode in (NEVER, ALWAYS))
        shown.append(f"{name:>9} {packed:7.0f} / {pieces:7.0f} ({packed / pieces:.2f}x)")
    return "".join(shown)


def serve(scheme: str) -> None:
    address = "shm://rrpc-bench-strided" if scheme == "shm" else f"{scheme}://127.0.0.1:0"
    with rrpc.Server(Strided(), listen=address, workers=1) as server:
        print(server.addresses[0], flush=True)
        sys.stdin.read()


def main(schemes: list[str]) -> None:
    for scheme in schemes:
        with (
            Child(["-m", "bench.strided", "serve", scheme], 60) as child,
            rrpc.connect(child.read_line(), timeout=60.0) as client,
        ):
            print(f"{scheme}: packed / in pieces, us")
            for count in COUNTS:
                for piece_kib in PIECES_KIB:
                    print(
                        f"{count:3} x {piece_kib:4} KiB", compare(client, count, piece_kib << 10), flush=True
                    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        main(sys.argv[1:] or ["shm", "tcp"])
