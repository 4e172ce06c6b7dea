"""A trace as a table, as text or by rich."""

# Runs in whichever thread shows a trace, and changes nothing of it.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .traced_call import TracedCall

if TYPE_CHECKING:
    from rich.table import Table

_HEADINGS = ("", "side", "begin", "time", "share")
_BAR_CELLS = 24
_PARTS = " ▏▎▍▌▋▊▉█"
Row = tuple[str, str, str, str, str, str]


def as_text(calls: Iterable[TracedCall]) -> str:
    """Aligned with spaces."""
    rows = [(*_HEADINGS, ""), *_rows(calls)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        name, side, *numbers = (text for text in row[:-1])
        shown = [name.ljust(widths[0]), side.ljust(widths[1])]
        shown += [text.rjust(width) for text, width in zip(numbers, widths[2:], strict=True)]
        lines.append("  ".join([*shown, row[-1]]).rstrip())
    return "\n".join(lines)


def as_table(calls: Iterable[TracedCall]) -> Table:
    """Returns the calls as a table for rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*_HEADINGS, "", box=None, pad_edge=False)
    for place, column in enumerate(table.columns):
        column.no_wrap = True
        column.justify = "right" if 2 <= place <= 4 else "left"
    styles = {"client": "cyan", "server": "green"}
    for *cells, bar in _rows(calls):
        style = styles.get(cells[1], "bold")
        table.add_row(*(Text(cell, style) for cell in (*cells, bar)))
    return table


def _rows(calls: Iterable[TracedCall], depth: int = 0) -> Iterator[Row]:
    indent = "  " * depth
    for call in calls:
        yield (indent + _title(call), "", "", _time(call.seconds), "", "")
        for phase in call.phases:
            begin = (phase.begin_ns - call.begin_ns) * 1e-9
            share = phase.seconds / call.seconds if call.seconds else 0.0
            bar = _bar(begin / call.seconds, share) if call.seconds else ""
            yield (
                f"{indent}  {phase.name}",
                phase.side,
                _time(begin),
                _time(phase.seconds),
                f"{share:.0%}",
                bar,
            )
        yield from _rows(call.children, depth + 2)
        if call.children_left_out:
            yield (f"{indent}    ... and {call.children_left_out} calls more", "", "", "", "", "")


def _title(call: TracedCall) -> str:
    notes = []
    if call.error:
        notes.append(call.error)
    if not call.end_ns:
        notes.append("under way")
    if call.attempts > 1:
        notes.append(f"{call.attempts} attempts")
    if call.items_sent or call.items_received:
        notes.append(f"{call.items_sent} items sent, {call.items_received} received")
    if call.window_waits:
        notes.append(f"{call.window_waits} waits for the window")
    if call.estimated:
        notes.append("the server's clock is another one")
    return call.method + (f" ({', '.join(notes)})" if notes else "")


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def _bar(begin: float, share: float) -> str:
    """Draws the phase's part of the call's time as a bar, at least one eighth of a cell wide."""
    first = int(begin * _BAR_CELLS)
    eighths = max(1, round(share * _BAR_CELLS * 8))
    whole, rest = divmod(eighths, 8)
    return " " * first + _PARTS[8] * whole + (_PARTS[rest] if rest else "")
