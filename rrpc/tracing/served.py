"""The server's part of a traced call: its clock readings, the calls that its handler makes, the answer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from rrpc.context import Around, enter
from rrpc.metadata import TRACE

from .model import SERVER, TracedCall, here
from .record import around
from .timeline import chain
from .wire import ServerPart, pack

if TYPE_CHECKING:
    from rrpc.context import Context

__all__ = ["traced_handler"]

_ANSWER_BYTES_MAX = 30_000
_OVERHEAD_BYTES = 16  # of a name and a value in the metadata


def traced_handler(handler: Any, context: Context, stamps: tuple[int, int, int] | None) -> Any:
    """In the handler's place where the caller asks where the call's time went, else the handler itself."""
    asked = context.metadata.get(TRACE)
    if not isinstance(asked, str) or not asked.isdecimal() or stamps is None:
        return handler
    return _TracedHandler(handler, context, stamps, min(int(asked), _ANSWER_BYTES_MAX))


class _TracedHandler:
    """Stands in a handler's place for one call whose caller asks where its time went.

    It does what the handler does, and notes down when; the reply's metadata says so.
    """

    def __init__(
        self, handler: Any, context: Context, stamps: tuple[int, int, int], answer_bytes: int
    ) -> None:
        """``stamps``: when the request arrived, when its buffers were here, when a worker took it."""
        self._handler = handler
        self._context = context
        self._answer_bytes = answer_bytes
        self._place = here()
        self._begin_ns, ready_ns, taken_ns = stamps
        self._ends = [("remote read", ready_ns), ("queue", taken_ns), ("GIL wait", monotonic_ns())]
        self._calls: list[TracedCall] = []
        self.method = handler.method
        self.function = self._await if handler.is_async else self._run
        enter(Around(context, links=(self._link,)))

    def decode(self, payload: bytes, blocks: Any) -> Any:
        return self._noted("decode", self._handler.decode, payload, blocks)

    def encode(self, result: Any, out: Any, sizes: Any) -> Any:
        encoded = self._noted("encode", self._handler.encode, result, out, sizes)
        self._answer()
        return encoded

    def _run(self, *arguments: Any) -> Any:
        return self._noted("handler", self._handler.function, *arguments)

    async def _await(self, *arguments: Any) -> Any:
        try:
            result = await self._handler.function(*arguments)
        except BaseException:
            self._failed("handler")
            raise
        self._ends.append(("handler", monotonic_ns()))
        return result

    def _noted(self, phase: str, do: Callable[..., Any], *arguments: Any) -> Any:
        try:
            done = do(*arguments)
        except BaseException:
            self._failed(phase)
            raise
        self._ends.append((phase, monotonic_ns()))
        return done

    def _failed(self, phase: str) -> None:
        self._ends.append((phase, monotonic_ns()))
        self._answer()

    def _link(self, call: Any) -> Generator[Any, Any, Any]:
        return around(call, self._calls)

    def _answer(self) -> None:
        """Into the reply's metadata, as far as that has room for it."""
        phases = chain(self._begin_ns, SERVER, self._ends)
        part = ServerPart(self._place, self._begin_ns, phases, list(self._calls))
        room = self._answer_bytes - len(self._context.sent) - len(TRACE) - _OVERHEAD_BYTES
        answer = pack(part, room)
        if answer:
            self._context.set_metadata({TRACE: answer})
