"""A trace as Chrome's trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .traced_call import CLIENT, SERVER, Phase, Place, TracedCall

Event = dict[str, Any]
_MADE_UP = 1_000_000_000  # ids from here on are no process's or thread's: Linux has 2^22 at most
_WAITING = ("remote read", "queue")


@dataclass(eq=False)
class _Group:
    """One call at one end, or its wait there: a slice with its phases in it."""

    call: TracedCall
    place: Place
    begin_ns: int
    end_ns: int
    phases: list[Phase]
    waiting: bool = False
    """Before a thread of the server has it."""
    parent: _Group | None = None
    lane: _Lane | None = None
    inside: dict[Phase, int] = field(default_factory=dict)
    """Until when the calls take up a phase that they were made in."""


@dataclass(eq=False)
class _Lane:
    """A row of slices. Those of one row may not overlap, so a thread with several calls at once has several."""

    pid: int
    tid: int
    name: str
    taken_until_ns: int = 0


def events(calls: Iterable[TracedCall]) -> list[Event]:
    """Everything about the calls, the names of processes and threads first."""
    # Of those that begin at once the longer comes first, so a parent comes before what is inside it.
    groups = sorted((g for call in calls for g in _groups(call, None)), key=lambda g: (g.begin_ns, -g.end_ns))
    if not groups:
        return []
    tracks = _Tracks()
    for group in groups:
        group.lane = tracks.lane_for(group)
    start_ns = groups[0].begin_ns
    shown = [event for group in groups for event in _slices(group, start_ns)]
    return [*tracks.names(), *shown, *_flows(groups, start_ns)]


def _groups(call: TracedCall, parent: _Group | None) -> Iterator[_Group]:
    ours = [phase for phase in call.phases if phase.side == CLIENT]
    # A call that is under way is shown up to its last phase.
    end_ns = call.end_ns or (call.phases[-1].end_ns if call.phases else call.begin_ns)
    yield _Group(call, call.client, call.begin_ns, end_ns, ours, parent=parent)
    theirs = [phase for phase in call.phases if phase.side == SERVER and phase.name != "reply"]
    waits = [phase for phase in theirs if phase.name in _WAITING]
    work = theirs[len(waits) :]
    handling = parent
    if call.server is not None and waits:
        yield _Group(call, call.server, waits[0].begin_ns, waits[-1].end_ns, waits, waiting=True)
    if call.server is not None and work:
        handling = _Group(call, call.server, work[0].begin_ns, work[-1].end_ns, work)
        yield handling
    for child in call.children:
        yield from _groups(child, handling)


class _Tracks:
    def __init__(self) -> None:
        self._pids: dict[tuple[str, int], tuple[int, str]] = {}
        self._lanes: dict[tuple[int, object], list[_Lane]] = {}
        self._made_up = _MADE_UP

    def lane_for(self, group: _Group) -> _Lane:
        return self._inside_parent(group) or self._of_thread(group)

    def _inside_parent(self, group: _Group) -> _Lane | None:
        parent = group.parent
        if parent is None or parent.place != group.place:
            return None
        for phase in parent.phases:
            if phase.begin_ns <= group.begin_ns and group.end_ns <= phase.end_ns:
                if parent.inside.get(phase, 0) > group.begin_ns:
                    return None
                parent.inside[phase] = group.end_ns
                return parent.lane
        return None

    def _of_thread(self, group: _Group) -> _Lane:
        place = group.place
        pid = self._pid(place)
        name = "waiting calls" if group.waiting else place.thread
        lanes = self._lanes.setdefault((pid, None if group.waiting else place.tid), [])
        lane = next((lane for lane in lanes if lane.taken_until_ns <= group.begin_ns), None)
        if lane is None:
            tid = self._new_id() if lanes or group.waiting else place.tid
            lane = _Lane(pid, tid, f"{name} ({len(lanes) + 1})" if lanes else name)
            lanes.append(lane)
        lane.taken_until_ns = group.end_ns
        return lane

    def _pid(self, place: Place) -> int:
        """The process's own, but for one that another host has too."""
        key = (place.host, place.pid)
        if key not in self._pids:
            clash = any(pid == place.pid for _, pid in self._pids)
            self._pids[key] = (self._new_id() if clash else place.pid, place.process)
        return self._pids[key][0]

    def _new_id(self) -> int:
        self._made_up += 1
        return self._made_up

    def names(self) -> Iterator[Event]:
        for pid, process in self._pids.values():
            yield _name("process_name", pid, 0, process)
        for lanes in self._lanes.values():
            for lane in lanes:
                yield _name("thread_name", lane.pid, lane.tid, lane.name)


def _name(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slices(group: _Group, start_ns: int) -> Iterator[Event]:
    """The call's own, then its phases: of two that begin at once the outer one comes first."""
    yield _slice(group, start_ns, group.call.method, group.begin_ns, group.end_ns, _args(group.call))
    for phase in group.phases:
        yield _slice(group, start_ns, phase.name, phase.begin_ns, phase.end_ns, {})


def _slice(
    group: _Group, start_ns: int, name: str, begin_ns: int, end_ns: int, args: dict[str, Any]
) -> Event:
    times = {"ts": _us(begin_ns - start_ns), "dur": _us(end_ns - begin_ns)}
    return {"ph": "X", "name": name, "cat": "rrpc", **_where(group), **times, "args": args}


def _where(group: _Group) -> dict[str, int]:
    assert group.lane is not None
    return {"pid": group.lane.pid, "tid": group.lane.tid}


def _args(call: TracedCall) -> dict[str, Any]:
    every = {
        "error": call.error,
        "attempts": call.attempts if call.attempts > 1 else 0,
        "items sent": call.items_sent,
        "items received": call.items_received,
        "waits for the window": call.window_waits,
        "calls left out": call.children_left_out,
        "server's clock": "another one: its part is put into the middle" if call.estimated else "",
    }
    return {name: value for name, value in every.items() if value}


def _flows(groups: Iterable[_Group], start_ns: int) -> Iterator[Event]:
    """An arrow from where a request is sent to where it arrives."""
    sent: dict[TracedCall, _Group] = {}
    for group in groups:
        source = sent.setdefault(group.call, group)
        if group is source or (source.place == group.place and source.waiting):
            continue
        times = [phase.begin_ns for phase in source.phases if phase.name == "send"]
        if times and not source.waiting:
            # id() is unique among them, as all groups live until the events are made.
            flow = {"cat": "rrpc", "name": "request", "id": id(group)}
            yield {"ph": "s", **flow, **_where(source), "ts": _us(times[0] - start_ns)}
            yield {"ph": "f", "bp": "e", **flow, **_where(group), "ts": _us(group.begin_ns - start_ns)}


def _us(ns: int) -> float:
    return round(ns / 1000, 3)
