"""A service that lends arrays and borrows those of its callers, and its generated clients."""

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

import rrpc

ROWS, COLUMNS = 1024, 64
Floats = NDArray[np.float32]
Lent = rrpc.Borrowed[Floats]
Rows = rrpc.Borrowed[Annotated[Floats, rrpc.Shape("n", COLUMNS)]]


def ordinary(start: int = 0) -> Any:
    """Returns an array of numbers from ``start``."""
    return np.arange(start, start + ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


def pooled(start: int = 0) -> Any:
    """Returns the same in pool memory."""
    return rrpc.snapshot(ordinary(start))


@rrpc.service
class Loans:
    def __init__(self) -> None:
        self.weights_: Floats = pooled()
        self.kept: list[Any] = []

    @rrpc.method
    def weights(self) -> Rows:
        return self.weights_

    @rrpc.method
    def ordinary(self) -> Lent:
        """Returns an array that isn't in pool memory."""
        return np.array(self.weights_)

    @rrpc.method
    def small(self) -> Lent:
        return self.weights_[:2]

    @rrpc.method
    def layers(self) -> dict[str, Lent | None]:
        return {"first": self.weights_, "second": None, "third": self.weights_[:2]}

    @rrpc.method
    def plain(self) -> Floats:
        return self.weights_

    @rrpc.method
    def sum(self, rows: Rows) -> tuple[float, bool]:
        """Returns the sum, and whether the array may be written into."""
        return float(rows.sum(dtype=np.float64)), bool(rows.flags.writeable)

    @rrpc.method
    def change(self, rows: Floats) -> tuple[float, bool]:
        rows += 1
        return float(rows.sum(dtype=np.float64)), bool(rows.flags.writeable)

    @rrpc.method
    def mixed(
        self, lent: list[Lent], own: Floats, also: Lent | None = None
    ) -> tuple[Lent, Floats, list[bool]]:
        writable = [array.flags.writeable for array in (*lent, own, *([] if also is None else [also]))]
        return lent[0], own, writable

    @rrpc.method
    def halves(self, rows: Lent) -> Iterator[Floats]:
        yield np.array(rows[: ROWS // 2])
        yield np.array(rows[ROWS // 2 :])

    @rrpc.method
    def joined(self, parts: Iterator[Floats]) -> Lent:
        return rrpc.snapshot(np.concatenate(list(parts)))

    @rrpc.method
    def keep(self, rows: Lent) -> int:
        """Keeps the array beyond the call."""
        self.kept.append(rows)
        return len(self.kept)

    @rrpc.method
    def kept_sums(self) -> list[float]:
        return [float(array.sum(dtype=np.float64)) for array in self.kept]

    @rrpc.method
    def let_go(self) -> None:
        self.kept.clear()

    @rrpc.method
    def fresh(self, value: float) -> Lent:
        """Returns an array of this value that the server itself doesn't keep."""
        array = rrpc.empty((ROWS, COLUMNS), np.float32)
        array[...] = value
        return array

    @rrpc.method
    def twice(self) -> tuple[Lent, Lent]:
        return self.weights_, self.weights_

    @rrpc.method
    def add(self, amount: float) -> None:
        """Changes the array that ``weights`` lends."""
        self.weights_ += np.float32(amount)

    @rrpc.method
    def counters(self) -> dict[str, int]:
        return rrpc.stats()


@rrpc.service
class AsyncLoans:
    @rrpc.method
    async def echo(self, rows: Lent, own: Floats) -> tuple[Lent, Floats, list[bool]]:
        return rows, own, [rows.flags.writeable, own.flags.writeable]

    @rrpc.method
    @rrpc.batched(max_batch=8192)
    def double(self, rows: Lent) -> Lent:
        result = rrpc.like(rows)
        np.multiply(rows, 2, out=result)
        return result
