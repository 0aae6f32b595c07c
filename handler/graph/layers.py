"""Arranges sampled trees for models that compute layer by layer only what the next layer needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handler.graph.layer_kernels import arrange_by_hop
from handler.graph.sampler import SampledTrees


@dataclass(frozen=True)
class Layer:
    """What one layer aggregates: its sources are the first rows of the layer before, its targets the first
    of these.

    Args:
        edge_index: int64 [2, num_edges], source and target; ascending by target.
        ptr: int64 [num_targets + 1], where each target's edges begin.
        edge: int64 [num_edges], position of each edge among those of the trees.
        num_sources: rows of the layer before that this one reads.
    """

    edge_index: NDArray[np.int64]
    ptr: NDArray[np.int64]
    edge: NDArray[np.int64]
    num_sources: int


@dataclass(frozen=True)
class LayeredTrees:
    """Trees by hop: all seeds first, then all nodes of hop 1, and so on, each hop in the trees' order.

    Layer l of L computes the nodes of hops 0 to L - l, which are thus the first rows of what it reads (PyG
    calls this trimming; DGL calls each layer a block). The last layer's targets are the seeds.

    Args:
        order: int64 [num_tree_nodes], position in the trees of each row.
        layers: for the layer applied first to the one applied last.
    """

    order: NDArray[np.int64]
    layers: tuple[Layer, ...]


def arrange_layers(trees: SampledTrees, layer_fanouts: tuple[int, ...]) -> LayeredTrees:
    """Arrange trees that were sampled with these fan-outs, or with smaller ones or fewer hops."""
    num_layers, num_nodes, num_edges = len(layer_fanouts), len(trees.node), trees.num_edges
    hop_start = np.zeros(num_layers + 2, dtype=np.int64)
    order = np.empty(num_nodes, dtype=np.int64)
    edge_order = np.empty(num_edges, dtype=np.int64)
    edge_index = np.empty((2, num_edges), dtype=np.int64)
    edge_rank = np.empty(num_edges, dtype=np.int32)
    child_ptr = np.zeros(num_nodes + 1, dtype=np.int64)
    arrange_by_hop(
        trees.hop, trees.edge_index[1], trees.edge_rank, trees.ptr,
        hop_start, order, edge_order, edge_index, edge_rank, child_ptr,
    )  # fmt: skip
    widest = max(layer_fanouts)
    layers = []
    for number, fanout in enumerate(layer_fanouts, start=1):
        num_sources, num_targets = hop_start[num_layers - number + 2], hop_start[num_layers - number + 1]
        used = num_sources - trees.num_seeds  # one edge for each source that is no seed
        edges, edge, ptr = edge_index[:, :used], edge_order[:used], child_ptr[: num_targets + 1]
        if fanout < widest and (kept := edge_rank[:used] < fanout).sum() < used:
            edges, edge = edges[:, kept], edge[kept]
            ptr = np.zeros(num_targets + 1, dtype=np.int64)
            np.cumsum(np.bincount(edges[1], minlength=num_targets), out=ptr[1:])
        layers.append(Layer(np.ascontiguousarray(edges), ptr, edge, int(num_sources)))
    return LayeredTrees(order, tuple(layers))
