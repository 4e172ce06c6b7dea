"""Services whose annotations are classes of torch, JAX, pyarrow and pandas."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray

import rrpc

Rows = Annotated[torch.Tensor, torch.float32, rrpc.Shape("n", "d")]


@dataclass
class Layer:
    weights: torch.Tensor
    bias: torch.Tensor | None = None


@rrpc.service
class Tensors:
    """Tensors, as they are and within others."""

    @rrpc.method
    def same(self, x: torch.Tensor) -> torch.Tensor:
        assert type(x) is torch.Tensor
        return x.add_(0) if x.dtype.is_floating_point and x.dtype.itemsize > 1 else x

    @rrpc.method
    def described(self, x: torch.Tensor) -> str:
        return f"{x.dtype} {tuple(x.shape)}"

    @rrpc.method
    def weighted(
        self, x: Rows, w: Annotated[torch.Tensor, torch.float32, rrpc.Shape("d")]
    ) -> Annotated[torch.Tensor, torch.float32, rrpc.Shape("n")]:
        return x @ w

    @rrpc.method
    def doubled(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x * 2

    @rrpc.method
    def layers(
        self, x: list[torch.Tensor], named: dict[str, torch.Tensor], layer: Layer
    ) -> tuple[Layer, torch.Tensor | None]:
        return Layer(x[0] + named["a"], layer.bias), layer.bias

    @rrpc.method
    def counted(self, n: int, size: int) -> Iterator[torch.Tensor]:
        for number in range(n):
            yield torch.full((size,), float(number))

    @rrpc.method
    def total(self, items: Iterator[torch.Tensor]) -> torch.Tensor:
        return torch.stack(list(items)).sum(0)

    @rrpc.method
    def broken(self, how: str) -> torch.Tensor:
        made = {"grad": {"requires_grad": True}, "meta": {"device": "meta"}}
        return torch.ones(3, **made[how])  # type: ignore[arg-type]

    @rrpc.method
    def squared(self, x: jax.Array) -> jax.Array:
        assert isinstance(x, jax.Array)
        return x * x

    @rrpc.method
    def jax_sum(self, x: Annotated[jax.Array, jnp.float32, rrpc.Shape(None)]) -> float:
        return float(x.sum())

    @rrpc.method
    def jax_same(self, x: jax.Array) -> jax.Array:
        return x

    @rrpc.method
    def kind(self, x: Any) -> str:
        return type(x).__name__

    @rrpc.method
    def counts(self) -> dict[str, int]:
        return rrpc.stats()


@dataclass
class Split:
    train: pa.Table
    test: pd.DataFrame | None = None


@rrpc.service
class Tables:
    """Tables, record batches and data frames."""

    @rrpc.method
    def same(self, table: pa.Table) -> pa.Table:
        assert type(table) is pa.Table
        return table

    @rrpc.method
    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert type(batch) is pa.RecordBatch
        return batch

    @rrpc.method
    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        assert type(frame) is pd.DataFrame
        return frame

    @rrpc.method
    def halves(self, splits: list[Split]) -> dict[str, Split]:
        (split,) = splits
        rows = split.train.num_rows // 2
        return {
            "first": Split(split.train.slice(0, rows), split.test),
            "second": Split(split.train.slice(rows)),
        }

    @rrpc.method
    def batches(self, table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(max_chunksize=rows)

    @rrpc.method
    def joined(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(list(batches))

    @rrpc.method
    def anything(self, value: Any) -> Any:
        return value

    @rrpc.method
    def counts(self) -> dict[str, int]:
        return rrpc.stats() | {"arrow": pa.total_allocated_bytes()}
