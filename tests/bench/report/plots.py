"""The pictures of a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.bench.report.ratios import SHARES, over_rounds
from tests.bench.report.results import CACHED, LIVE, NOOP, Results

_WIDTH = 0.8


def write_plots(folder: Path, results: Results) -> list[str]:
    """Draw what was measured; returns the names of the files."""
    written = []
    for name, draw in _PLOTS.items():
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        if draw(axes, results):
            figure.savefig(folder / name, dpi=120)
            written.append(name)
    return written


def _throughput(axes: Axes, results: Results) -> bool:
    kinds = [kind for kind in results.kinds("served") if kind[2] is None]
    return _closed_bars(axes, results, "served", [kind[:2] for kind in kinds])


def _workers_batches(axes: Axes, results: Results) -> bool:
    drawn = False
    for part in ("workers", "batches"):
        for name in dict.fromkeys(kind[0] for kind in results.kinds(part)):
            counts = sorted({kind[1] for kind in results.kinds(part) if kind[0] == name})
            rates = [over_rounds(results.closed(part, name, n).values(), lambda t: t.per_s) for n in counts]
            axes.bar([f"{name}\n{count} conn." for count in counts], rates)
            drawn = True
    axes.tick_params(axis="x", labelsize=7, rotation=45)
    _titled(axes, "Live answers by workers and by batchSize", "", "requests/s")
    return drawn


def _closed_bars(axes: Axes, results: Results, part: str, kinds: list[tuple[str, int]]) -> bool:
    names = list(dict.fromkeys(name for name, _ in kinds))
    counts = sorted({count for _, count in kinds})
    for place, name in enumerate(names):
        found = [results.closed(part, name, count).values() for count in counts]
        rates = [over_rounds(turns, lambda t: t.per_s) if turns else 0 for turns in found]
        width = _WIDTH / len(names)
        axes.bar(np.arange(len(counts)) + place * width, rates, width, label=name)
    axes.set_xticks(np.arange(len(counts)) + _WIDTH / 2 - _WIDTH / max(1, len(names)) / 2, map(str, counts))
    _titled(axes, "Throughput in a closed loop", "connections", "requests/s")
    return bool(kinds)


def _latency(axes: Axes, results: Results) -> bool:
    drawn = False
    for name in (NOOP, LIVE, CACHED):
        found = [turns for share in SHARES if (turns := results.opened("served", name, share))]
        rates = [over_rounds(turns, lambda t: t.rate or 0) for turns in found]
        for line, value in (
            ("-", lambda t: t.p50_ms),
            ("--", lambda t: t.p99_ms),
            (":", lambda t: t.p999_ms),
        ):
            label = f"{name} " + {"-": "p50", "--": "p99", ":": "p99.9"}[line]
            axes.plot(rates, [over_rounds(turns, value) for turns in found], line, marker="o", label=label)
        drawn = drawn or bool(found)
    if drawn:
        axes.set_yscale("log")
    _titled(axes, "Latency from when a request is due (open loop)", "requests/s that are sent", "ms")
    return drawn


def _stages(axes: Axes, results: Results) -> bool:
    sizes = sorted({each.batch for each in results.stages})
    for place, key in enumerate(("stages_us", "floor_us")):
        bottom = np.zeros(len(sizes))
        names = list(dict.fromkeys(name for each in results.stages for name in getattr(each, key)))
        for name in names:
            found = [[getattr(e, key)[name] for e in results.stages if e.batch == size] for size in sizes]
            heights = np.array([np.median(values) for values in found])
            label = name if key == "stages_us" else f"floor: {name}"
            axes.bar(np.arange(len(sizes)) + place * 0.4, heights, 0.38, bottom=bottom, label=label)
            bottom += heights
    axes.set_xticks(np.arange(len(sizes)) + 0.2, map(str, sizes))
    _titled(axes, "The pipeline, and its floor on the right", "nodes in a batch", "µs per node")
    return bool(sizes)


def _growth(axes: Axes, results: Results) -> bool:
    sizes = sorted({each.num_edges for each in results.growth})
    for key, label in (("p50_us", "p50"), ("p99_us", "p99")):
        found = [[getattr(e, key) for e in results.growth if e.num_edges == size] for size in sizes]
        axes.plot(sizes, [float(np.median(values)) for values in found], marker="o", label=label)
    if sizes:
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
    _titled(axes, "A live answer about one node, in process", "edges", "µs")
    return bool(sizes)


def _titled(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


_PLOTS: dict[str, Callable[[Axes, Results], bool]] = {
    "throughput.png": _throughput,
    "latency.png": _latency,
    "stages.png": _stages,
    "growth.png": _growth,
    "workers_batches.png": _workers_batches,
}
