"""Converts clock readings of both ends to phases on one time line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .server_part import ServerPart
from .traced_call import CLIENT, SERVER, Phase, TracedCall


def chain(begin_ns: int, side: str, ends: Iterable[tuple[str, int]]) -> list[Phase]:
    """Phases that follow each other; those that take no time are left out, and no end is before its beginning."""
    phases = []
    for name, end_ns in ends:
        if end_ns > begin_ns:
            phases.append(Phase(name, side, begin_ns, end_ns))
            begin_ns = end_ns
    return phases


def join(
    call: TracedCall,
    part: ServerPart | None,
    sent_ns: int,
    replied_ns: int,
    last: tuple[str, str] = ("reply", SERVER),
) -> list[Phase]:
    """The phases between a request's leaving and its reply's arrival; ``last`` comes behind the server's."""
    if part is None:
        return chain(sent_ns, CLIENT, [("away" if last[1] == SERVER else last[0], replied_ns)])
    end_ns = part.phases[-1].end_ns if part.phases else part.begin_ns
    offset_ns = 0
    room_ns, took_ns = replied_ns - sent_ns, end_ns - part.begin_ns
    same_clock = part.place.host == call.client.host
    # A container may have a clock of its own (a time namespace), under the same kernel.
    if not same_clock or end_ns < sent_ns or part.begin_ns > replied_ns:
        # In the middle, as if both ways took the same time.
        offset_ns = sent_ns + (room_ns - took_ns) // 2 - part.begin_ns
    call.estimated = offset_ns != 0
    call.server = part.place
    call.children_left_out = part.children_left_out
    call.window_waits += part.window_waits
    call.children = part.children

    def here(there_ns: int) -> int:
        if offset_ns and took_ns > room_ns:  # by a faster clock: pressed together, so that each phase is seen
            return sent_ns + (there_ns - part.begin_ns) * room_ns // took_ns
        return min(max(there_ns + offset_ns, sent_ns), replied_ns)

    if offset_ns:
        for child in part.children:
            child.move(here)
    begin_ns, end_ns = here(part.begin_ns), here(end_ns)
    phases = [replace(p, begin_ns=here(p.begin_ns), end_ns=here(p.end_ns)) for p in part.phases]
    return [
        *chain(sent_ns, CLIENT, [("send", begin_ns)]),
        *(phase for phase in phases if phase.end_ns > phase.begin_ns),
        *chain(end_ns, last[1], [(last[0], replied_ns)]),
    ]
