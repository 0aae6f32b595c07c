"""Draws how latency goes against throughput under settings that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive.picture_files import PageTable, check_picture_path, write_picture

_PRESENT_COLOR = "#ff7f0e"
_PROPOSED_COLOR = "#2ca02c"
_OTHER_COLOR = "#1f77b4"
_TARGET_COLOR = "#d62728"
_MOST_LABELS = 30


@dataclass(frozen=True)
class TradeOff:
    """One point of the picture.

    Args:
        p99_ms: infinite where no end was to be seen; such a point is only counted.
        is_best: whether no other has more throughput and a lower latency.
    """

    label: str
    per_s: float
    p99_ms: float
    is_present: bool = False
    is_proposed: bool = False
    is_best: bool = False


def draw_trade_offs(
    points: Sequence[TradeOff], target_ms: float | None, path: Path, title: str, table: PageTable
) -> None:
    """Draw the p99 over the throughput, with the Pareto front, the target, and the settings that matter.

    Args:
        target_ms: of the p99, or none.
        path: `.png`, or `.html` for a page that needs no other file and has the table.

    Raises:
        GraphInputError: the file has another ending or cannot be written.
    """
    check_picture_path(path)
    # Not pyplot, which keeps figures, and looks for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    drawn = [point for point in points if math.isfinite(point.p99_ms)]
    front = sorted((point for point in drawn if point.is_best), key=lambda point: point.per_s)
    axes.plot(
        [point.per_s for point in front],
        [point.p99_ms for point in front],
        color=_OTHER_COLOR, linestyle="--", linewidth=1, label="Pareto front", zorder=1,
    )  # fmt: skip
    if target_ms is not None:
        label = f"target: {target_ms:g} ms"
        axes.axhline(target_ms, color=_TARGET_COLOR, linewidth=1, label=label, zorder=1)
    _draw_points(axes, drawn)
    axes.set_xlabel("requests per second at most")
    axes.set_ylabel("p99, ms")
    axes.set_xlim(0, 1.2 * axes.get_xlim()[1])
    axes.set_ylim(bottom=0)
    axes.margins(0.15)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    missing = len(points) - len(drawn)
    more = f"\n{missing} not drawn: more requests came than were answered" if missing else ""
    axes.set_title(title + more, parse_math=False, fontsize=11)
    write_picture(figure, path, title, table)


def _draw_points(axes: Any, drawn: Sequence[TradeOff]) -> None:
    kinds = {
        "measured": [point for point in drawn if not point.is_present and not point.is_proposed],
        "present": [point for point in drawn if point.is_present and not point.is_proposed],
        "proposed": [point for point in drawn if point.is_proposed and not point.is_present],
        "present, and to be kept": [point for point in drawn if point.is_proposed and point.is_present],
    }
    styles = {
        "measured": (_OTHER_COLOR, "o", 40),
        "present": (_PRESENT_COLOR, "s", 90),
        "proposed": (_PROPOSED_COLOR, "*", 220),
        "present, and to be kept": (_PROPOSED_COLOR, "s", 110),
    }
    for kind, points in kinds.items():
        if points:
            color, marker, size = styles[kind]
            x, y = [point.per_s for point in points], [point.p99_ms for point in points]
            axes.scatter(x, y, c=color, marker=marker, s=size, edgecolors="black", label=kind, zorder=3)
    for point in drawn if len(drawn) <= _MOST_LABELS else ():
        place = (point.per_s, point.p99_ms)
        axes.annotate(
            point.label, place, (6, 6), textcoords="offset points", fontsize=8, parse_math=False, zorder=4
        )
