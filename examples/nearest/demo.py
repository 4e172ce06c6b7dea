"""Start the service as a user would, call it, and hold its answers against scikit-learn's own."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import rrpc
from nearest_client import NearestClient
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

FOLDER = Path(__file__).resolve().parent
LARGE_ROWS = 64 * (1 << 20) // (64 * 4)  # of 64 float32: 64 MiB
K = 5
COPIES = ("bytes_read", "bytes_written", "bytes_copied", "bytes_staged")

Rows = NDArray[np.float32]


@contextmanager
def serving() -> Iterator[str]:
    """`rrpc-serve nearest:Nearest` in its own process; gives the address that it prints."""
    command = [sys.executable, "-m", "rrpc.cli.serve", "nearest:Nearest", "--listen", "rrpc://127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=FOLDER)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        if not line:
            raise SystemExit("demo: rrpc-serve did not start")
        yield line.split()[-1]
    finally:
        server.terminate()
        server.wait()


def queries() -> Rows:
    """The digits themselves, every pixel a little off: no query is a row of the table."""
    rows = load_digits().data
    blurred = rows + np.random.default_rng(7).integers(-2, 3, rows.shape)
    asked: Rows = np.clip(blurred, 0, 16).astype(np.float32)
    return asked


def wrong_answers(nearest: NearestClient, asked: Rows) -> list[str]:
    """Every difference from scikit-learn; a tie at the k-th place may be broken either way."""
    digits = load_digits()
    ids, distances = nearest.search(asked, K + 1)
    expected, _ = NearestNeighbors(n_neighbors=K + 1, algorithm="brute").fit(digits.data).kneighbors(asked)
    classifier = KNeighborsClassifier(K, algorithm="brute").fit(digits.data, digits.target)
    unique = distances[:, K - 1] < distances[:, K]
    labels_agree = nearest.classify(asked, K) == classifier.predict(asked)
    own = np.linalg.norm(digits.data[ids] - asked[:, None, :], axis=2)
    checks = {
        "distances": np.isclose(distances, expected, rtol=1e-5).all(axis=1),
        "ids": np.isclose(own, expected, rtol=1e-5).all(axis=1),
        "labels": labels_agree | ~unique,
    }
    return [
        f"{name}: {np.sum(~good)} of {len(asked)} differ" for name, good in checks.items() if not good.all()
    ]


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each call, after some to warm up."""
    for _ in range(max(3, times // 10)):
        call()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


class Moves:
    """GB/s and copies of a call that moves a large array one way."""

    def __init__(self, nearest: NearestClient, nbytes: int) -> None:
        self._nearest = nearest
        self._nbytes = nbytes

    def row(self, call: Callable[[], object]) -> tuple[str, str]:
        gb_per_s = self._nbytes / median(timed(call, 9)) / 1e9
        before = self._moved()
        call()
        return f"{gb_per_s:.2f} GB/s", f"{(self._moved() - before) / self._nbytes:.2f}"

    def _moved(self) -> int:
        """Bytes moved or copied so far by either process."""
        return sum(
            counters.get(key, 0) for counters in (rrpc.stats(), self._nearest.counters()) for key in COPIES
        )


def measurements(nearest: NearestClient, asked: Rows) -> Iterator[tuple[str, str, str]]:
    """Rows for the table: what, how fast, how many copies."""
    for name, call in (("size()", nearest.size), ("search, one query", lambda: nearest.search(asked[:1], K))):
        seconds = timed(call, 2000)
        yield (
            f"{name}, p50 / p99",
            f"{median(seconds) * 1e6:.1f} / {quantiles(seconds, n=100)[98] * 1e6:.1f} µs",
            "",
        )
    ordinary = np.resize(asked, (LARGE_ROWS, asked.shape[1]))
    registered = rrpc.empty(ordinary.shape, np.float32)
    registered[:] = ordinary
    moves = Moves(nearest, ordinary.nbytes)
    yield "64 MiB sent, ordinary array", *moves.row(lambda: nearest.count(ordinary))
    yield "64 MiB sent, rrpc.empty array", *moves.row(lambda: nearest.count(registered))
    yield "64 MiB fetched, ordinary array", *moves.row(lambda: nearest.repeated(LARGE_ROWS))
    yield (
        "64 MiB fetched, rrpc.empty array",
        *moves.row(lambda: nearest.repeated(LARGE_ROWS, registered=True)),
    )


def table(nearest: NearestClient, asked: Rows) -> Table:
    result = Table(title="rrpc: k-nearest-neighbour search over handwritten digits", title_justify="left")
    result.add_column("")
    result.add_column("", justify="right")
    result.add_column("copies", justify="right")
    for row in measurements(nearest, asked):
        result.add_row(*row)
    info = nearest.info()
    result.add_section()
    result.add_row("transport", str(info["transport"]))
    result.add_row("large arrays move by", str(info["bulk_method"]))
    result.add_row("calls made", f"{rrpc.stats()['calls_started']:,}")
    return result


def main() -> int:
    console, asked = Console(), queries()
    with serving() as address, NearestClient(address) as nearest:
        console.print(f"{nearest.size()} digits served on {address}", highlight=False)
        wrong = wrong_answers(nearest, asked)
        console.print(table(nearest, asked))
    for difference in wrong:
        console.print(f"[bold red]not what scikit-learn says:[/] {difference}", highlight=False)
    if not wrong:
        console.print(
            f"{len(asked)} searches and classifications: all as scikit-learn's own", highlight=False
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
