"""rrpc.empty and rrpc.zeros: arrays like numpy's."""

from typing import Any, Literal

import numpy as np
import pytest

import rrpc


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", ">i8", "M8[s]", "S3", [("a", "u1"), ("b", "f8")]])
def test_empty_is_an_array_like_any_other(dtype: Any, order: Literal["C", "F"]) -> None:
    made, like = rrpc.empty((3, 4), dtype, order), np.empty((3, 4), dtype, order)
    assert (made.dtype, made.shape, made.strides) == (like.dtype, like.shape, like.strides)
    made[...] = np.zeros((), made.dtype)
    assert rrpc.zeros((3, 4), dtype, order).tobytes() == np.zeros((3, 4), dtype, order).tobytes()
    assert rrpc.empty(5).dtype == np.float64
    assert rrpc.empty((2, 0)).shape == (2, 0)
    assert rrpc.empty(()).shape == ()


def test_empty_refuses_what_numpy_refuses() -> None:
    with pytest.raises(ValueError, match="negative dimensions"):
        rrpc.empty((2, -1))
    with pytest.raises(ValueError, match="too big"):
        rrpc.empty((1 << 40, 1 << 40))
    with pytest.raises(TypeError, match="no fixed size"):
        rrpc.empty(3, object)
    with pytest.raises(TypeError):
        rrpc.empty(2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="interpreted as an integer"):
        rrpc.empty("3")  # type: ignore[arg-type]
