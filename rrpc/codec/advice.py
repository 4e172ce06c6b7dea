"""Advice for types that users try to send and that can't be sent as they are."""

from __future__ import annotations

_TABLE = "declare pyarrow.Table, which takes it"
_STREAM = "declare bytes, an array, or Iterator[bytes] for what doesn't fit into memory"
_LOCAL = "it means something in its own process only; pass what the peer can make one of"
_WAYS = {
    "pandas.Series": "send .to_numpy(), NDArray of its dtype, or declare pandas.DataFrame and send .to_frame()",
    "pandas.Index": "send .to_numpy(), NDArray of its dtype",
    "polars.DataFrame": _TABLE,
    "polars.Series": "send .to_numpy(), NDArray of its dtype",
    "pyarrow.RecordBatchReader": "declare Iterator[pyarrow.RecordBatch], or send .read_all()",
    "pyarrow.Array": "declare pyarrow.Table and send it as a column, pyarrow.table({...})",
    "pyarrow.ChunkedArray": "declare pyarrow.Table and send it as a column, pyarrow.table({...})",
    "xarray.DataArray": "send .to_numpy() and its coordinates as arrays, in a dataclass",
    "torch.nn.Parameter": "declare torch.Tensor, and send .detach()",
    "torch.nn.parameter.Parameter": "declare torch.Tensor, and send .detach()",
    "tensorflow.Tensor": "send .numpy(), NDArray of its dtype",
    "cupy.ndarray": "send cupy.asnumpy(...), NDArray of its dtype",
    "scipy.sparse": "send its .data, .indices and .indptr, in a dataclass with its shape",
    "PIL.Image": "send np.asarray(image), NDArray[np.uint8], or the bytes of its file",
    "numpy.matrix": "declare NDArray of its dtype",
    "numpy.dtype": "send its .str",
    "io": _STREAM,
    "_io": _STREAM,
    "typing.IO": _STREAM,
    "typing.BinaryIO": _STREAM,
    "typing.TextIO": _STREAM,
    "builtins.range": "send (start, stop, step), or a list",
    "builtins.slice": "send (start, stop, step)",
    "builtins.type": "send its name",
    "builtins.object": "declare Any",
    "builtins.function": _LOCAL,
    "builtins.method": _LOCAL,
    "builtins.builtin_function_or_method": _LOCAL,
    "builtins.module": _LOCAL,
    "builtins.generator": "declare Iterator[...] as the result or the only parameter for a stream, else send a list",
    "builtins.coroutine": "await it first",
    "builtins.dict_keys": "send list(...) of it",
    "builtins.dict_values": "send list(...) of it",
    "builtins.dict_items": "send list(...) of it",
    "builtins.mappingproxy": "send dict(...) of it",
    "builtins.map": "send list(...) of it",
    "builtins.zip": "send list(...) of it",
    "collections.deque": "declare list and send list(...) of it",
    "collections.abc.Callable": _LOCAL,
    "collections.abc.Iterable": "declare list, or Iterator[...] as the result or the only parameter for a stream",
    "collections.abc.Collection": "declare list",
    "collections.abc.MutableSequence": "declare list",
    "collections.abc.MutableMapping": "declare dict",
    "collections.abc.Set": "declare frozenset",
    "collections.abc.MutableSet": "declare set",
    "collections.abc.Buffer": "declare memoryview, or bytes",
    "concurrent.futures": "send its result",
    "asyncio": "send its result",
    "_asyncio": "send its result",
    "threading": _LOCAL,
    "_thread": _LOCAL,
    "multiprocessing": _LOCAL,
    "queue": _LOCAL,
    "socket": _LOCAL,
    "re.Pattern": "send its .pattern",
    "fractions.Fraction": "send .numerator and .denominator",
    "ipaddress": "send str(...) of it",
    "zoneinfo.ZoneInfo": "send its .key",
    "pydantic": "let a field_serializer turn it into a built-in value",
}


def instead_of(kind: object) -> str:
    """Returns `` (what to do instead)`` for a type, or nothing where no way is known."""
    for base in getattr(kind, "__mro__", (kind,)):
        name = f"{getattr(base, '__module__', '')}.{getattr(base, '__qualname__', '')}"
        if base is not object and (way := _way(name)):
            return f" ({way})"
    return ""


def _way(name: str) -> str:
    """Finds the advice by a class's full name, its package's short one (``pandas.DataFrame``), or its module."""
    parts = name.split(".")
    modules = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((_WAYS[known] for known in (name, f"{parts[0]}.{parts[-1]}", *modules) if known in _WAYS), "")
