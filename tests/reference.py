"""The slow, obvious way: NetworkX for the graph, Python integers for hashes, float64 for the model."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from archive.example.graphsage import GraphSAGE

NodeId = int | str
_BITS = 2**64 - 1


def mix64(value: int) -> int:
    """SplitMix64."""
    z = (value + 0x9E3779B97F4A7C15) & _BITS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _BITS
    return z ^ (z >> 31)


def hash_id(node_id: NodeId) -> int:
    """The hash of an id: SplitMix64 of an integer, FNV-1a and SplitMix64 of a string."""
    if isinstance(node_id, int):
        return mix64(node_id & _BITS)
    value = 0xCBF29CE484222325
    for byte in node_id.encode():
        value = ((value ^ byte) * 0x100000001B3) & _BITS
    return mix64(value)


def edge_key(seed: int, v: NodeId, u: NodeId) -> int:
    """The place of u among the in-neighbours of v."""
    return mix64((mix64(mix64(seed) ^ hash_id(v)) + hash_id(u)) & _BITS)


Edge = tuple[NodeId, dict[str, float]]


def ordered(graph: nx.DiGraph, v: NodeId, strategy: str = "seeded", seed: int = 0) -> list[Edge]:
    """All in-neighbours of v with their edge's data, in the order of a strategy.

    In a multigraph the hash of an edge takes in its time, its weight, and its number among equals.
    """
    seen: Counter[tuple[NodeId, float | None, float | None]] = Counter()
    keyed = []
    for u, _, data in graph.in_edges(v, data=True):
        tie = edge_key(seed, v, u)
        time, weight = data.get("time"), data.get("weight")
        if graph.is_multigraph():
            if time is not None:
                tie = mix64(tie ^ struct.unpack("<Q", struct.pack("<d", time))[0])
            if weight is not None:
                tie = mix64(tie ^ struct.unpack("<I", struct.pack("<f", weight))[0])
            tie = mix64((tie + seen[u, time, weight]) & _BITS)
            seen[u, time, weight] += 1
        keyed.append((_primary(strategy, u, tie, data), tie, u, data))
    keyed.sort(key=lambda entry: entry[:2])
    return [(u, data) for _, _, u, data in keyed]


def _primary(strategy: str, u: NodeId, tie: int, data: dict[str, float]) -> float | int | bytes:
    if strategy == "weighted":
        return -math.log(((tie >> 11) + 0.5) * 2.0**-53) / data["weight"]
    if strategy == "top_weight":
        return -data["weight"]
    if strategy == "recent":
        return -data["time"]
    if strategy == "first":
        return u.encode() if isinstance(u, str) else u
    return 0


def sample(graph: nx.DiGraph, v: NodeId, fanout: int, seed: int = 0) -> list[NodeId]:
    """S(v, f): the first f of v's in-neighbours in `seeded` order."""
    return [u for u, _ in ordered(graph, v, "seeded", seed)][:fanout]


def walks(
    rows: dict[NodeId, list[NodeId]], v: NodeId, num_walks: int, walk_length: int, seed: int
) -> list[tuple[NodeId, float]]:
    """The nodes that walks from v visit, most visited first, with their share of all visits.

    Args:
        rows: each node's in-neighbours, in the order in which they are stored.
    """
    key = mix64(mix64(seed) ^ hash_id(v))
    visits: dict[NodeId, int] = {}
    for walk in range(num_walks):
        at = v
        for step in range(walk_length):
            if not rows[at]:
                break
            chance = mix64((key + walk * walk_length + step) & _BITS) >> 11
            at = rows[at][int(chance * 2.0**-53 * len(rows[at]))]
            if at != v:
                visits[at] = visits.get(at, 0) + 1
    total = sum(visits.values())
    ranked = sorted(visits, key=lambda u: (-visits[u], edge_key(seed, v, u)))
    return [(u, visits[u] / total) for u in ranked]


@dataclass
class Tree:
    """A sampled tree, as objects."""

    node: NodeId
    hop: int = 0
    children: list[Tree] = field(default_factory=list)

    def by_hop(self) -> list[list[NodeId]]:
        """Nodes of each hop, breadth first."""
        levels, level = [], [self]
        while level:
            levels.append([tree.node for tree in level])
            level = [child for tree in level for child in tree.children]
        return levels


def sample_tree(
    graph: nx.DiGraph, v: NodeId, hop_fanouts: Sequence[int], seed: int = 0, hop: int = 0
) -> Tree:
    """Expand v by the fan-out of each hop."""
    tree = Tree(v, hop)
    if hop < len(hop_fanouts):
        tree.children = [
            sample_tree(graph, u, hop_fanouts, seed, hop + 1)
            for u in sample(graph, v, hop_fanouts[hop], seed)
        ]
    return tree


def embed(
    model: GraphSAGE,
    graph: nx.DiGraph,
    x: dict[NodeId, NDArray[np.floating]],
    v: NodeId,
    layer_fanouts: Sequence[int],
    *,
    seed: int = 0,
    neighbors: Callable[[NodeId], list[Edge]] | None = None,
    num_hops: int | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Embedding and logits of v by the definition: h(l, v) from h(l-1, v) and h(l-1, u), u in S(v, f(l)).

    Args:
        neighbors: a node's neighbours in order, instead of the graph's in `seeded` order, with the `weight`
            and the `attr` of the edges as the model takes them.
        num_hops: beyond so many nothing is sampled.
    """
    weights = {name: value.numpy().astype(np.float64) for name, value in model.state_dict().items()}
    ordered_neighbors = neighbors or (lambda node: ordered(graph, node, "seeded", seed))

    def h(layer: int, node: NodeId, hop: int = 0) -> NDArray[np.float64]:
        if layer == 0:
            return x[node].astype(np.float64)
        edges = [] if hop == num_hops else ordered_neighbors(node)[: layer_fanouts[layer - 1]]
        below = [h(layer - 1, u, hop + 1) for u, _ in edges]
        own = h(layer - 1, node, hop)
        if layer > 1:
            below, own = [np.maximum(value, 0) for value in below], np.maximum(own, 0)
        name = f"layers.{layer - 1}"
        if f"{name}.lin_edge.weight" in weights:
            lin, bias = weights[f"{name}.lin_edge.weight"], weights[f"{name}.lin_edge.bias"]
            said = [np.asarray(data["attr"], dtype=np.float64) for _, data in edges]
            below = [np.maximum(value + lin @ e + bias, 0) for value, e in zip(below, said, strict=True)]
        shares = np.ones(len(edges))
        if model.takes_weights:
            shares = np.array([data["weight"] for _, data in edges])
        mean = np.zeros_like(own)
        for share, value in zip(shares, below, strict=True):
            mean += share / np.abs(shares).sum() * value
        return (
            weights[f"{name}.lin_l.weight"] @ mean
            + weights[f"{name}.lin_l.bias"]
            + weights[f"{name}.lin_r.weight"] @ own
        )

    embedding = h(len(layer_fanouts), v)
    if "head.weight" not in weights:
        return embedding, np.zeros(0)
    return embedding, weights["head.weight"] @ np.maximum(embedding, 0) + weights["head.bias"]
