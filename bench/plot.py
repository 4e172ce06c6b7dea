"""The run as one picture: a panel for each of the first four workloads and one for connections."""

from pathlib import Path
from typing import Any

from bench.peers.optional import load
from bench.targets import Medians, number

PANELS = (
    ("W1", "p50_us", "32 B call, one in flight: p50, µs (less is better)", True),
    ("W2", "calls_per_s", "64 in flight: calls/s (more is better)", False),
    ("W3", "gbps", "array as argument: GB/s (more is better)", False),
    ("W4", "gbps", "array as result: GB/s (more is better)", False),
    ("W5", "calls_per_s", "calls/s over many connections (more is better)", False),
    ("W5", "rss_kib_each", "server memory per connection, KiB (less is better)", True),
)
OURS, THEIRS, LIMIT = "#c0392b", "#7f8c8d", "#2c3e50"


def color(subject: str) -> str:
    return LIMIT if subject.startswith("limit") else OURS if subject.startswith("rrpc") else THEIRS


def write_plot(found: Medians, path: Path) -> None:
    load("matplotlib").use("Agg")
    pyplot = load("matplotlib.pyplot")
    panels = [panel for panel in PANELS if any_values(found, panel[0], panel[1])]
    if not panels:
        return
    size = (14, 2 + 2.6 * len(panels))
    figure, axes = pyplot.subplots((len(panels) + 1) // 2, 2, figsize=size, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (workload, metric, title, logarithmic) in zip(axes.flat, panels, strict=False):
        draw_panel(axis, found, workload, metric, logarithmic)
        axis.set_title(title, fontsize=10, loc="left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def any_values(found: Medians, workload: str, metric: str) -> bool:
    return metric in found.metrics(workload)


def draw_panel(axis: Any, found: Medians, workload: str, metric: str, logarithmic: bool) -> None:
    """Horizontal bars: a group for each subject, a bar for each case, the first case on top."""
    cases, subjects = found.cases(workload), found.subjects(workload)
    height = 0.8 / len(cases)
    for row, subject in enumerate(subjects):
        for offset, case in enumerate(cases):
            value = found.get(workload, case, subject, metric)
            if value is None or value <= 0:
                continue
            at = row + (offset - (len(cases) - 1) / 2) * height
            axis.barh(at, value, height * 0.9, color=color(subject), alpha=1 - 0.6 * offset / len(cases))
            axis.text(
                value, at, f" {number(value)}  {case if len(cases) > 1 else ''}", va="center", fontsize=6
            )
    axis.set_yticks(range(len(subjects)), subjects, fontsize=8)
    axis.invert_yaxis()
    if logarithmic:
        axis.set_xscale("log")
    axis.margins(x=0.18)
    axis.spines[["top", "right"]].set_visible(False)
