"""Draws what people want to see of a graph: its degrees, and samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from archive.degrees import Degrees
from archive.picture_files import PageTable, check_picture_path, write_picture
from handler.graph.ids import NodeId
from handler.graph.sampler import SampledTrees
from handler.graph.snapshot import Snapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS_PER_DECADE = 8
_MOST_LABELS = 150
_MANY_EDGES = 500
_SHOWN_CHARACTERS = 16
_SEED_COLOR = "#d62728"


def draw_degrees(degrees: Degrees, path: Path, title: str) -> None:
    """Draw how many nodes have how many in-neighbours, both axes logarithmic.

    Bins are single degrees where these are small, and eight a decade further on. Nodes without
    in-neighbours have no place on such an axis, and are told in words.

    Args:
        path: `.png`, or `.html` for a page that needs no other file.

    Raises:
        GraphInputError: the file has another ending or cannot be written.
    """
    check_picture_path(path)
    bounds, count = _binned(degrees)
    figure, axes = empty_figure(8, 5)
    if len(count):
        axes.stairs(count, bounds, fill=True, color="#1f77b4", alpha=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)  # a bin of one node has a height
    axes.set_xlabel("in-neighbors")
    axes.set_ylabel("nodes per bin")
    nodes = int(degrees.count.sum())
    axes.set_title(
        f"{printable(title)}\n{nodes:,} nodes, of which {degrees.isolated:,} have no in-neighbor",
        parse_math=False,
    )
    rows = [["0", f"{degrees.isolated:,}"]]
    for low, high, nodes_in_bin in zip(bounds[:-1], bounds[1:], count, strict=True):
        rows.append([f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}", f"{nodes_in_bin:,}"])
    write_picture(figure, path, title, PageTable(["in-neighbors", "nodes"], rows))


def draw_sample(snapshot: Snapshot, trees: SampledTrees, path: Path, title: str) -> None:
    """Draw the nodes and edges that one seed's tree is made of.

    Each node of the graph is drawn once, in the colour and on the ring of the hop at which the seed meets
    it first, and each edge once, towards the node that it is an in-neighbour of. The title says how much
    larger the tree is, in which a node stands as often as it is met.

    Args:
        trees: the first tree is drawn.
        path: `.png`, or `.html` for a page that needs no other file and lists all node ids.

    Raises:
        GraphInputError: the file has another ending or cannot be written.
    """
    check_picture_path(path)
    met = _Met.of_tree(trees)
    ids = snapshot.ids.id_of(met.node)
    figure, axes = empty_figure(10, 10)
    place = rings(met.hop, met.parent)
    _draw_edges(axes, met, place)
    _draw_nodes(axes, met, place)
    if len(ids) <= _MOST_LABELS:
        for (x, y), node_id in zip(place, ids, strict=True):
            axes.annotate(
                short_name(node_id), (x, y), (4, 4), textcoords="offset points", fontsize=8, parse_math=False
            )
    num_tree_nodes = int(trees.ptr[1])
    counts = (
        f"{len(ids):,} nodes and {met.edges.shape[1]:,} edges;"
        f" as a tree {num_tree_nodes:,} nodes and {num_tree_nodes - 1:,} edges"
    )
    axes.set_title(f"{printable(title)}\n{counts}", parse_math=False)
    rows = []
    for hop in range(int(met.hop.max()) + 1):
        there = [str(ids[node]) for node in np.flatnonzero(met.hop == hop)]
        rows.append([str(hop), f"{len(there):,}", ", ".join(there)])
    write_picture(figure, path, title, PageTable(["hop", "nodes", "node ids"], rows))


@dataclass(frozen=True)
class _Met:
    """The distinct nodes and edges of a tree; nodes are numbered in the order in which they are met.

    Args:
        node: int64 [num_nodes], node indices; 0 is the seed.
        hop: int64 [num_nodes], at which each is met first.
        parent: int64 [num_nodes], the number of the node that led there; the seed's is 0.
        edges: int64 [2, num_edges], from in-neighbour to node.
    """

    node: NDArray[np.int64]
    hop: NDArray[np.int64]
    parent: NDArray[np.int64]
    edges: NDArray[np.int64]

    @classmethod
    def of_tree(cls, trees: SampledTrees) -> _Met:
        """The first tree; its order by hop makes the first time the smallest hop."""
        size = int(trees.ptr[1])
        distinct, first, inverse = np.unique(trees.node[:size], return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        ends = number[inverse][trees.edge_index[:, : size - 1]]
        tree_parent = np.concatenate([[0], ends[1]])  # edges are in the order of their children
        first = first[order]
        return cls(
            distinct[order], trees.hop[first].astype(np.int64), tree_parent[first], np.unique(ends, axis=1)
        )


def rings(hop: NDArray[np.integer], parent: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64 [num_nodes, 2]: hops as rings, and each node amid those that it led to.

    Args:
        hop: int [num_nodes], the first node's is 0.
        parent: int64 [num_nodes], of each node one that comes before it; the first one's is 0.
    """
    num_nodes = len(hop)
    leaves = np.ones(num_nodes)
    leaves[np.unique(parent[1:])] = 0
    for node in range(num_nodes - 1, 0, -1):
        leaves[parent[node]] += leaves[node]
    start = np.zeros(num_nodes)
    taken = np.zeros(num_nodes)
    for node in range(1, num_nodes):
        start[node] = start[parent[node]] + taken[parent[node]]
        taken[parent[node]] += leaves[node]
    angle = 2 * np.pi * (start + leaves / 2) / leaves[0]
    return np.stack([hop * np.cos(angle), hop * np.sin(angle)], axis=1)


def _draw_edges(axes: Any, met: _Met, place: NDArray[np.float64]) -> None:
    source, target = met.edges[:, met.edges[0] != met.edges[1]]
    if not len(source):
        return
    many = len(source) > _MANY_EDGES
    way = place[target] - place[source]
    # A little short, so that the arrow's head is not below the node.
    gap = (0.012 if many else 0.03) * met.hop.max()
    way *= np.maximum(0.5, 1 - gap / np.linalg.norm(way, axis=1, keepdims=True))
    axes.quiver(
        *place[source].T,
        *way.T,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.0008 if many else 0.0015,
        headwidth=5,
        headlength=6,
        headaxislength=6,
        color="#888888",
        alpha=0.4 if many else 0.7,
        zorder=1,
    )


def _draw_nodes(axes: Any, met: _Met, place: NDArray[np.float64]) -> None:
    import matplotlib as mpl

    colors = mpl.colormaps["viridis"]
    size = float(np.clip(6000 / len(met.node), 6, 90))
    num_hops = int(met.hop.max())
    axes.scatter(
        *place[0], s=max(3 * size, 60), c=_SEED_COLOR, marker="*", edgecolors="black", label="seed", zorder=3
    )
    for hop in range(1, num_hops + 1):
        there = met.hop == hop
        if there.any():
            color = colors((hop - 1) / max(1, num_hops - 1) * 0.9)
            label = f"hop {hop}: {there.sum():,}"
            axes.scatter(*place[there].T, s=size, color=[color], label=label, zorder=2)
    axes.legend(loc="upper right")
    limit = 1.1 * max(1, num_hops)
    axes.set_xlim(-limit, limit)
    axes.set_ylim(-limit, limit)
    axes.set_aspect("equal")
    axes.set_axis_off()


def _binned(degrees: Degrees) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64 [num_bins + 1], where bins of degrees from 1 on begin; int64 [num_bins], nodes in each."""
    highest = int(degrees.degree[-1])
    if highest == 0:
        return np.ones(1, dtype=np.int64), np.empty(0, dtype=np.int64)
    num_bounds = int(np.ceil(np.log10(highest + 1) * _BINS_PER_DECADE)) + 1
    bounds = np.unique(np.rint(np.geomspace(1, highest + 1, num_bounds)).astype(np.int64))
    count, _ = np.histogram(degrees.degree, bins=bounds, weights=degrees.count)
    return bounds, count.astype(np.int64)


def empty_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """A figure in inches, and its axes, several side by side where there are columns."""
    # Not pyplot, which keeps figures, and looks for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def short_name(node_id: NodeId) -> str:
    """An id as there is room for it."""
    text = printable(str(node_id))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def printable(text: str) -> str:
    """A text without what no font shows."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
