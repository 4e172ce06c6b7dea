"""Server's part of a trace in the reply's metadata: its phases, and the calls that the handler made."""

# The worker or task that answers packs; the thread or task that ends the client's call unpacks. What is unpacked is
# the server's, and may be anything.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import msgpack

from .traced_call import CLIENT, PHASES, SERVER, Phase, Place, TracedCall

_VERSION = 1
# Characters of each text that are kept of what a server sends.
_TEXT_CHARS = 200
_NUMBERS = {name: number for number, name in enumerate(PHASES)}
_SIDES = (CLIENT, SERVER)


@dataclass
class ServerPart:
    """Server's part of one traced call; times are those of the server's clock."""

    place: Place
    begin_ns: int
    phases: list[Phase]
    children: list[TracedCall] = field(default_factory=list)
    children_left_out: int = 0
    window_waits: int = 0


def pack(part: ServerPart, bytes_max: int) -> bytes:
    """Packs as many of the first calls as there is room for; returns no bytes if there is none."""
    if bytes_max <= 0:
        return b""
    kept = len(part.children)
    while True:
        packed = _packed(part, kept)
        if len(packed) <= bytes_max:
            return packed
        if not kept:
            return b""
        # In proportion, and by one at least, so a few rounds are enough.
        kept = min(kept - 1, kept * bytes_max // len(packed))


def _packed(part: ServerPart, kept: int) -> bytes:
    places: dict[Place, int] = {part.place: 0}
    calls = [_call(call, places) for call in part.children[:kept]]
    left_out = part.children_left_out + len(part.children) - kept
    parts = [
        _VERSION,
        [astuple(place) for place in places],
        part.begin_ns,
        _lengths(part.phases),
        calls,
        left_out,
        part.window_waits,
    ]
    packed: bytes = msgpack.packb(parts, unicode_errors="replace")
    return packed


def _lengths(phases: Sequence[Phase]) -> list[int]:
    """Phases follow each other without a gap, so that their lengths say all."""
    return [
        number
        for phase in phases
        for number in (_NUMBERS[phase.name] * 2 + _SIDES.index(phase.side), phase.end_ns - phase.begin_ns)
    ]


def _call(call: TracedCall, places: dict[Place, int]) -> list[Any]:
    def place(of: Place) -> int:
        return places.setdefault(of, len(places))

    return [
        call.method,
        call.begin_ns,
        call.end_ns,
        place(call.client),
        None if call.server is None else place(call.server),
        call.error,
        call.estimated,
        [call.attempts, call.items_sent, call.items_received, call.window_waits, call.children_left_out],
        _lengths(call.phases),
        [_call(child, places) for child in call.children],
    ]


def unpack(packed: bytes) -> ServerPart | None:
    """Unpacks a server's part; None if it isn't of this version, and the trace goes without it."""
    try:
        version, places, begin_ns, lengths, calls, left_out, waits = msgpack.unpackb(packed)
        if version != _VERSION:
            return None
        known = [Place(_text(h), _count(p), _text(n), _count(t), _text(m)) for h, p, n, t, m in places]
        phases = _phases(_count(begin_ns), lengths)
        children = [_call_from(call, known) for call in calls]
        return ServerPart(known[0], begin_ns, phases, children, _count(left_out), _count(waits))
    except Exception:  # whatever a peer may have written there
        return None


def _call_from(packed: Any, places: Sequence[Place]) -> TracedCall:
    method, begin, end, client, server, error, estimated, counts, lengths, children = packed
    attempts, sent, received, waits, left_out = map(_count, counts)
    return TracedCall(
        _text(method),
        places[client],
        _count(begin),
        _count(end),
        _phases(begin, lengths),
        [_call_from(child, places) for child in children],
        left_out,
        None if server is None else places[server],
        bool(estimated),
        _text(error),
        attempts,
        sent,
        received,
        waits,
    )


def _phases(begin_ns: int, lengths: Sequence[int]) -> list[Phase]:
    phases = []
    for number, length in zip(lengths[::2], lengths[1::2], strict=True):
        end_ns = begin_ns + _count(length)
        phases.append(Phase(PHASES[_count(number) // 2], _SIDES[number % 2], begin_ns, end_ns))
        begin_ns = end_ns
    return phases


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError
    return number


def _text(text: Any) -> str:
    """Checks and shortens a text, and replaces what a terminal mustn't get."""
    if not isinstance(text, str):
        raise TypeError
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_TEXT_CHARS])
