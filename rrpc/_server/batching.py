"""Dynamic batching: calls of one method that wait at the same time are given to its handler together.

Triton's dynamic batcher and Ray Serve's ``serve.batch`` work in the same way. The calls wait in the server's event
loop, so they hold no workers; a synchronous handler runs in a thread of the loop's executor.
"""

# All of this runs in the thread of the server's event loop, so nothing has a lock; only synchronous handlers and
# `batch_sizes` run elsewhere.

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from rrpc._call.context import context
from rrpc.errors import Internal, InvalidArgument, RpcError
from rrpc.memory import empty

_F = TypeVar("_F", bound=Callable[..., Any])
_BATCHERS = "__rrpc_batchers__"


@dataclasses.dataclass(frozen=True)
class _Rules:
    """The arguments of ``batched``, and the method that they are for."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    over: frozenset[str] | None
    max_batch: int
    max_wait: float
    concurrency: int

    def is_batched(self, name: str, value: Any) -> bool:
        """Returns whether the rows of this argument are joined with those of other calls."""
        return isinstance(value, (np.ndarray, list)) if self.over is None else name in self.over


def batched(
    *, max_batch: int = 64, max_wait: float = 0.0, concurrency: int = 1, over: Sequence[str] | None = None
) -> Callable[[_F], _F]:
    """Gives calls that wait at the same time to the method together. It stands under ``@rrpc.method``.

    ::

        @rrpc.method
        @rrpc.batched(max_batch=64, max_wait=0.002)
        def classify(self, images: NDArray[np.float32]) -> NDArray[np.int64]: ...

    The first axis of the arguments is the batch: the arrays of several calls are joined along it, in one array in
    registered memory, and so are lists. The result has one row for each row of the arguments, and each caller gets its
    own: an array, a list, or a tuple or dataclass of these. Callers see an ordinary method; they may send several rows.

    Calls go together if their arrays have the same dtype and the same shape behind the first axis, and if their other
    arguments are equal. Calls that are cancelled, or whose deadline passes, leave the batch before it begins. An error
    that the method raises goes to all its callers; an ``RpcError`` in a list that it returns goes to the caller of
    that row. A batch stands for no single call: it has no ``rrpc.context``.

    Args:
        max_batch: The most rows of one batch. A call with more goes alone.
        max_wait: How long, in seconds, the first call of a batch waits for others. 0: for those only that come while
            the method is busy. A call never waits for longer than half of the time that its caller gives it.
        concurrency: How many batches may run at a time.
        over: The parameters that have a batch axis; default: all that are arrays or lists.

    Returns:
        A decorator, which gives an ``async def`` method in place of the one that it decorates.

    Raises:
        ValueError: A number is out of its range.
        TypeError: What is decorated isn't a method with parameters, it yields, or ``over`` names no parameter of it.
    """
    if max_batch < 1 or concurrency < 1 or not max_wait >= 0:
        raise ValueError(
            f"batched(): max_batch={max_batch} and concurrency={concurrency} must be at least 1, "
            f"max_wait={max_wait} seconds at least 0"
        )

    def decorate(function: Any) -> Any:
        rules = _Rules(
            function,
            _names_of(function, over),
            None if over is None else frozenset(over),
            max_batch,
            max_wait,
            concurrency,
        )

        @functools.wraps(function)
        async def submit(self: Any, *args: Any, **kwargs: Any) -> Any:
            values = dict(zip(rules.names, args)) | kwargs  # noqa: B905  (the server fills in defaults)
            return await _batcher_of(self, rules).submit(values)

        return submit

    return decorate


def batch_sizes(method: Callable[..., Any]) -> dict[int, int]:
    """Returns how many batches of each number of calls a method has run: ``batch_sizes(service.classify)``."""
    found: Counter[int] = Counter()
    service = getattr(method, "__self__", None)
    for (function, _), batcher in list(getattr(service, _BATCHERS, {}).items()):
        if function is inspect.unwrap(method):
            found += batcher.sizes
    return dict(sorted(found.items()))


def _names_of(function: Any, over: Sequence[str] | None) -> tuple[str, ...]:
    name = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
    if not inspect.isfunction(function):
        raise TypeError(f"{name}: @rrpc.batched goes on a plain method, under @rrpc.method")
    if hasattr(function, "__rrpc_method__"):
        raise TypeError(f"{name}(): write @rrpc.method above @rrpc.batched")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name}(): it yields, and streams aren't batched")
    names = tuple(inspect.signature(function).parameters)[1:]
    if not names:
        raise TypeError(f"{name}(): a batch is of arguments, and it has none")
    unknown = set(over or ()) - set(names)
    if unknown or (over is not None and not over):
        raise TypeError(f"{name}(): over={list(over or ())} must name parameters of it: {', '.join(names)}")
    return names


def _batcher_of(service: Any, rules: _Rules) -> _Batcher:
    """Returns the one of this method in this event loop."""
    batchers: dict[Any, _Batcher] = service.__dict__.setdefault(_BATCHERS, {})
    loop = asyncio.get_running_loop()
    found = batchers.get((rules.function, loop))
    if found is None:
        # An instance may be served again, in another loop.
        for key in [key for key in batchers if key[1].is_closed()]:
            del batchers[key]
        found = batchers[rules.function, loop] = _Batcher(service, rules, loop)
    return found


class _Call:
    """One call that waits."""

    __slots__ = ("due", "future", "group", "rows", "values")

    def __init__(self, rules: _Rules, values: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self.values = values
        self.rows = _rows_of(rules, values)
        self.group: Hashable = _group_of(rules, values)
        self.future: asyncio.Future[Any] = loop.create_future()
        left = context().time_left()
        self.due = loop.time() + (rules.max_wait if left is None else min(rules.max_wait, left / 2))


class _Batcher:
    """The calls of one method that wait, and the batches that run; used in its event loop alone."""

    def __init__(self, service: Any, rules: _Rules, loop: asyncio.AbstractEventLoop) -> None:
        self.sizes: Counter[int] = Counter()
        self._service = service
        self._rules = rules
        self._loop = loop
        self._waiting: dict[Hashable, deque[_Call]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def submit(self, values: dict[str, Any]) -> Any:
        """Waits for the batch of this call, and returns its rows of the result."""
        call = _Call(self._rules, values, self._loop)
        self._waiting.setdefault(call.group, deque()).append(call)
        # Requests that have arrived together are handled in one turn of the loop: they are to go together.
        self._loop.call_soon(self._begin)
        try:
            return await call.future
        finally:
            # Frees the arguments, although the batch may refer to the call for longer.
            call.values = {}

    def _begin(self) -> None:
        """Begins the batches that are due, as many as may run."""
        # There is one timer, for the calls that are due first. It is set anew below.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and len(self._running) < self._rules.concurrency:
            for group in [group for group, calls in self._waiting.items() if not self._clean(calls)]:
                del self._waiting[group]
            if not self._waiting:
                return
            calls = min(self._waiting.values(), key=self._due)
            due = self._due(calls)
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self._begin)
                return
            self._start(self._take(calls))

    @staticmethod
    def _clean(calls: deque[_Call]) -> bool:
        """Takes out the calls that nobody waits for; returns whether others are left."""
        if any(call.future.done() for call in calls):
            left = [call for call in calls if not call.future.done()]
            calls.clear()
            calls.extend(left)
        return bool(calls)

    def _due(self, calls: deque[_Call]) -> float:
        """Returns the time at which a batch of these begins: at once if it is full."""
        full = sum(call.rows for call in calls) >= self._rules.max_batch
        return 0.0 if full else min(call.due for call in calls)

    def _take(self, calls: deque[_Call]) -> list[_Call]:
        batch = [calls.popleft()]
        rows = batch[0].rows
        while calls and rows + calls[0].rows <= self._rules.max_batch:
            batch.append(calls.popleft())
            rows += batch[-1].rows
        return batch

    def _start(self, batch: list[_Call]) -> None:
        self.sizes[len(batch)] += 1
        # In a context of its own: it stands for no single call.
        task = contextvars.Context().run(self._loop.create_task, self._run(batch))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._begin()

    async def _run(self, batch: list[_Call]) -> None:
        try:
            parts = _split(await self._call(_joined(self._rules, batch)), [call.rows for call in batch])
        except BaseException as error:
            for call in batch:
                if not call.future.done():
                    call.future.set_exception(_for_one(error))
            if not isinstance(error, Exception):
                raise
            return
        for call, part in zip(batch, parts, strict=True):
            if call.future.done():
                continue
            refused = (
                next((row for row in part if isinstance(row, RpcError)), None) if _is_list(part) else None
            )
            if refused is None:
                call.future.set_result(part)
            else:
                call.future.set_exception(refused)

    def _call(self, values: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        bound = functools.partial(self._rules.function, self._service, **values)
        if inspect.iscoroutinefunction(self._rules.function):
            return bound()  # type: ignore[no-any-return]
        return _in_thread(self._loop, bound)


async def _in_thread(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> Any:
    return await loop.run_in_executor(None, function)


def _for_one(error: BaseException) -> BaseException:
    """Returns what one of several callers gets: raising one exception in several places would join their tracebacks."""
    if isinstance(error, asyncio.CancelledError):
        return Internal("the batch was cancelled by its handler")
    try:
        # Past __init__, whose parameters aren't known.
        copy = error.__class__.__new__(error.__class__, *error.args)
        copy.__dict__.update(error.__dict__)
        copy.__cause__ = error.__cause__
    except Exception:
        return error
    return copy.with_traceback(error.__traceback__)


def _rows_of(rules: _Rules, values: dict[str, Any]) -> int:
    """Returns how many rows the call has; raises InvalidArgument if its arguments don't agree on that."""
    rows: dict[str, int] = {}
    for name, value in values.items():
        if not rules.is_batched(name, value):
            continue
        if getattr(value, "ndim", 1) == 0:
            raise InvalidArgument(f"{name}: the array has no axis; the first axis is the batch")
        rows[name] = len(value)
    if not rows:
        raise InvalidArgument(
            f"no argument has a batch axis: {', '.join(rules.names)} must have an array or a list"
        )
    if len(set(rows.values())) > 1:
        shown = ", ".join(f"{name} has {count}" for name, count in rows.items())
        raise InvalidArgument(f"the arguments differ in the length of their first axis: {shown}")
    return next(iter(rows.values()))


def _group_of(rules: _Rules, values: dict[str, Any]) -> Hashable:
    """Returns what is equal for calls that may go together."""
    group: list[Hashable] = []
    for name, value in values.items():
        if not rules.is_batched(name, value):
            # The type counts: 1, 1.0 and True are equal, but not the same argument.
            group.append((name, type(value), value))
        elif isinstance(value, np.ndarray):
            group.append((name, value.dtype, value.shape[1:]))
        else:
            group.append((name, type(value)))
    try:
        hash(key := tuple(group))
    except TypeError:  # such a value: the call goes alone
        return object()
    return key


def _joined(rules: _Rules, batch: list[_Call]) -> dict[str, Any]:
    """Returns the arguments of the batch; those of a single call as they are."""
    if len(batch) == 1:
        return batch[0].values
    joined: dict[str, Any] = {}
    for name, value in batch[0].values.items():
        parts = [call.values[name] for call in batch]
        if not rules.is_batched(name, value):
            joined[name] = value
        elif isinstance(value, np.ndarray):
            whole = empty((sum(len(part) for part in parts), *value.shape[1:]), value.dtype)
            joined[name] = np.concatenate(parts, out=whole)
        else:
            joined[name] = [row for part in parts for row in part]
    return joined


def _split(result: Any, rows: list[int]) -> list[Any]:
    """Returns each call's rows of the result."""
    if result is None:
        return [None] * len(rows)
    if isinstance(result, tuple) or (dataclasses.is_dataclass(result) and not isinstance(result, type)):
        return _split_fields(result, rows)
    if not _is_list(result) and getattr(result, "ndim", 0) == 0:
        raise Internal(
            f"the batch gave {type(result).__name__}: it gives an array, a list, or a tuple or dataclass of them"
        )
    if len(result) != sum(rows):
        raise Internal(f"the batch has {sum(rows)} rows, and its result {len(result)}")
    ends = np.cumsum(rows).tolist()
    return [result[end - count : end] for end, count in zip(ends, rows, strict=True)]


def _split_fields(result: Any, rows: list[int]) -> list[Any]:
    if not isinstance(result, tuple):
        names = [field.name for field in dataclasses.fields(result)]
        parts = [_split(getattr(result, name), rows) for name in names]
        return [
            dataclasses.replace(result, **dict(zip(names, part, strict=True)))
            for part in zip(*parts, strict=True)
        ]
    parts = [_split(field, rows) for field in result]
    make = getattr(type(result), "_make", tuple)
    return [make(part) for part in zip(*parts, strict=True)]


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
