"""Draws explanations, as the server answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archive.picture_files import PageTable, check_picture_path, write_picture
from archive.pictures import empty_figure, printable, rings, short_name

_MOST_LABELS = 40
_MOST_FEATURES = 20
_COLORS = "RdBu"
_FAINT = 0.1  # of the largest: its color would hardly be seen


def draw_explanation(answer: Mapping[str, Any], path: Path) -> None:
    """Draw what mattered: blue is what raised the score, red what lowered it.

    Each node and each edge of the sample is drawn once, nodes on rings by hop, the larger and the darker the
    more they mattered. Beside it stand the features.

    Args:
        answer: of one node or pair, with all nodes and edges.
        path: `.png`, or `.html` for a page that needs no other file and lists everything.

    Raises:
        GraphInputError: the file has another ending or cannot be written.
    """
    check_picture_path(path)
    figure, (axes, bars) = empty_figure(15, 10, columns=2)
    axes.set_box_aspect(1)
    _draw_sample(axes, answer)
    _draw_features(bars, answer["features"][:_MOST_FEATURES])
    title = title_of(answer)
    figure.suptitle(printable(title), parse_math=False)
    rows = [
        *_rows("node", answer["nodes"], lambda row: f"{row['node_id']} (hop {row['hop']})"),
        *_rows("edge", answer["edges"], lambda row: f"{row['source']} to {row['target']} (hop {row['hop']})"),
        *_rows("feature", answer["features"], lambda row: str(row["feature"])),
    ]
    write_picture(figure, path, title, PageTable(["what", "which", "importance"], rows))


def title_of(answer: Mapping[str, Any]) -> str:
    """What an explanation is of, in one line."""
    if "pair" in answer:
        about = f"the link from {answer['pair'][0]} to {answer['pair'][1]}"
    else:
        about = "the described node" if answer["node_id"] is None else f"node {answer['node_id']}"
    (kind, name), *_ = answer["explained"].items()
    what = f"{kind} {name}" if kind in {"label", "target"} else kind
    return (
        f"{about}: {what}, score {answer['score']:.3g}, and {answer['baseline']:.3g} without any features"
        f" (by {answer['method'].replace('_', ' ')})"
    )


def _rows(what: str, rows: Sequence[Mapping[str, Any]], name: Any) -> list[list[str]]:
    return [[what, name(row), f"{row['importance']:+.4g}"] for row in rows]


def _draw_sample(axes: Any, answer: Mapping[str, Any]) -> None:
    import matplotlib as mpl

    nodes = sorted(answer["nodes"], key=lambda row: row["hop"])
    number = {row["node_id"]: place for place, row in enumerate(nodes)}
    place = _places(nodes, answer["edges"], number)
    colors = mpl.colormaps[_COLORS]
    edges = [row for row in answer["edges"] if row["source"] in number and row["target"] in number]
    strength = _relative([row["importance"] for row in edges])
    for at in np.argsort(np.abs(strength)):  # what matters is drawn over what does not
        row, share = edges[at], strength[at]
        ends = place[[number[row["source"]], number[row["target"]]]]
        color = colors(0.5 + share / 2) if abs(share) > _FAINT else "#cccccc"
        axes.plot(*ends.T, color=color, lw=0.6 + 4 * abs(share), zorder=1)
    share = _relative([row["importance"] for row in nodes])
    is_seed = np.array([row["hop"] == 0 for row in nodes])
    size = 25 + 350 * np.abs(share)
    for marker, chosen in (("o", ~is_seed), ("*", is_seed)):
        axes.scatter(
            *place[chosen].T,
            s=size[chosen] * (2.5 if marker == "*" else 1),
            c=share[chosen],
            cmap=_COLORS,
            vmin=-1,
            vmax=1,
            marker=marker,
            edgecolors="#444444",
            linewidths=0.6,
            zorder=2,
        )
    for at in np.argsort(-np.abs(share) - is_seed)[:_MOST_LABELS]:
        axes.annotate(
            short_name(nodes[at]["node_id"]),
            place[at],
            (5, 5),
            textcoords="offset points",
            fontsize=8,
            parse_math=False,
        )
    axes.set_title("nodes and edges of the sample: blue raises the score, red lowers it", fontsize=10)
    axes.set_aspect("equal")
    axes.margins(0.1)
    axes.set_axis_off()


def _places(
    nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]], number: Mapping[Any, int]
) -> NDArray[np.float64]:
    """float64 [num_nodes, 2]; several seeds stand on a first ring."""
    hop = np.array([row["hop"] for row in nodes])
    several = int((hop == 0).sum()) > 1
    above = np.zeros(len(nodes), dtype=np.int64)
    for edge in sorted(edges, key=lambda row: -row["hop"]):  # the smallest hop is written last
        source, target = number.get(edge["source"]), number.get(edge["target"])
        if source is not None and target is not None and hop[target] < hop[source]:
            above[source] = target
    if several:  # around a middle that is not drawn
        above = np.concatenate([[0], np.where(hop == 0, 0, above + 1)])
        return rings(np.concatenate([[0], hop + 1]), above)[1:]
    return rings(hop, above)


def _relative(importance: Sequence[float]) -> NDArray[np.float64]:
    """From -1 to 1, by the one that matters most."""
    values = np.array(importance, dtype=np.float64)
    largest = np.abs(values).max(initial=0)
    relative: NDArray[np.float64] = values / largest if largest else values
    return relative


def _draw_features(axes: Any, features: Sequence[Mapping[str, Any]]) -> None:
    import matplotlib as mpl

    if not features:
        axes.set_axis_off()
        return
    share = _relative([row["importance"] for row in features])
    axes.barh(
        [str(row["feature"]) for row in features],
        [row["importance"] for row in features],
        color=mpl.colormaps[_COLORS](0.5 + share / 2),
        edgecolor="#444444",
        linewidth=0.6,
    )
    axes.invert_yaxis()
    axes.axvline(0, color="#444444", lw=0.8)
    axes.set_xlabel("importance")
    axes.set_ylabel("feature")
    axes.set_title("features, over all nodes of the sample", fontsize=10)
