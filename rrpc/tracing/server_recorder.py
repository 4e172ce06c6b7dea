"""The server's part of a traced call: its clock readings, the calls that its handler makes, the answer."""

# Runs in the worker or task that handles the call.

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from rrpc._call.context import Around, enter
from rrpc.metadata import TRACE

from .client_recorder import link
from .server_part import ServerPart, pack
from .timeline import chain
from .traced_call import SERVER, TracedCall, here

if TYPE_CHECKING:
    from rrpc._call.context import Context

_DIGITS_MAX = 10  # of the bytes that a caller has room for
_OVERHEAD_BYTES = 16  # of a name and a value in the metadata


class _Part:
    """Phases and outgoing calls that a server records for one traced call."""

    def __init__(
        self, context: Context, stamps: tuple[int, int, int], reached_ns: int, answer_bytes: int
    ) -> None:
        """``stamps``: when the request arrived, when its buffers were here, when a worker took it."""
        self._context = context
        self._answer_bytes = answer_bytes
        self._place = here()
        self._begin_ns, ready_ns, taken_ns = stamps
        self._ends = [("remote read", ready_ns), ("queue", taken_ns), ("GIL wait", reached_ns)]
        self._calls: list[TracedCall] = []
        self.window_waits = 0
        # From here on the handler's own calls are recorded too.
        enter(Around(context, links=(self._link,)))

    def around(self, handler: Any) -> _TracedHandler:
        """Wraps the handler so that its phases are recorded for this call."""
        return _TracedHandler(handler, self)

    def ends(self, phase: str) -> None:
        """Records that ``phase`` ends now."""
        self._ends.append((phase, monotonic_ns()))

    def answer(self) -> None:
        """Into the reply's metadata, as far as that has room for it."""
        phases = chain(self._begin_ns, SERVER, self._ends)
        part = ServerPart(
            self._place, self._begin_ns, phases, list(self._calls), window_waits=self.window_waits
        )
        room = self._answer_bytes - len(self._context.sent) - len(TRACE) - _OVERHEAD_BYTES
        answer = pack(part, room)
        if answer:
            self._context.set_metadata({TRACE: answer})

    def _link(self, call: Any) -> Generator[Any, Any, Any]:
        return link(call, self._calls)


def traced_call(
    context: Context, stamps: tuple[int, int, int] | None, reached_ns: int, bytes_max: int
) -> _Part | None:
    """``reached_ns``: when Python had the call. None where the caller doesn't ask where the call's time goes."""
    asked = context.metadata.get(TRACE)
    # A caller may send any text. int() refuses some thousands of digits, and is slow before it does.
    if not isinstance(asked, str) or len(asked) > _DIGITS_MAX or not asked.isdecimal() or stamps is None:
        return None
    # The server's own limit holds too, whatever the caller asks for.
    return _Part(context, stamps, reached_ns, min(int(asked), bytes_max))


class _TracedHandler:
    """Does what the handler does, and notes down when; the reply's metadata says so."""

    def __init__(self, handler: Any, part: _Part) -> None:
        self._handler = handler
        self._part = part
        self.method = handler.method
        self.function = self._await if handler.is_async else self._run

    def decode(self, payload: bytes, blocks: Any) -> Any:
        return self._noted("decode", self._handler.decode, payload, blocks)

    def encode(self, result: Any, out: Any, sizes: Any) -> Any:
        encoded = self._noted("encode", self._handler.encode, result, out, sizes)
        self._part.answer()
        return encoded

    def _run(self, *arguments: Any) -> Any:
        return self._noted("handler", self._handler.function, *arguments)

    async def _await(self, *arguments: Any) -> Any:
        try:
            result = await self._handler.function(*arguments)
        except BaseException:
            self._failed("handler")
            raise
        self._part.ends("handler")
        return result

    def _noted(self, phase: str, do: Callable[..., Any], *arguments: Any) -> Any:
        try:
            done = do(*arguments)
        except BaseException:
            self._failed(phase)
            raise
        self._part.ends(phase)
        return done

    def _failed(self, phase: str) -> None:
        self._part.ends(phase)
        self._part.answer()
