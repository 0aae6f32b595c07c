"""Writes explanations as JSON objects."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.explaining.explainer import Explanation, distinct_edges
from handler.graph.readable import ReadableGraph


def explained_row(explanation: Explanation, graph: ReadableGraph, top: int) -> dict[str, Any]:
    """What an answer says of one explanation.

    A node or an edge that stands in the sample several times is told once, with the sum.

    Args:
        top: so many nodes, edges and features at most.
    """
    return {
        "explained": explanation.objective.told,
        "score": explanation.score,
        "baseline": explanation.baseline,
        "method": explanation.method,
        "complete": explanation.importance.complete,
        "nodes": _nodes(explanation, graph, top),
        "edges": _edges(explanation, graph, top),
        "features": _features(explanation.importance.features, top),
        "fidelity": {
            "edges": explanation.fidelity.num_edges,
            "without": explanation.fidelity.without,
            "only": explanation.fidelity.only,
        },
    }


def _nodes(explanation: Explanation, graph: ReadableGraph, top: int) -> list[dict[str, Any]]:
    trees = explanation.subject.trees
    node, first, inverse = np.unique(trees.node, return_index=True, return_inverse=True)
    importance = np.bincount(inverse, explanation.importance.nodes, minlength=len(node))
    hop = np.full(len(node), 127, dtype=np.int8)
    np.minimum.at(hop, inverse, trees.hop)
    chosen = _most_important(importance, first, top)
    return [
        {"node_id": node_id, "hop": depth, "importance": value}
        for node_id, depth, value in zip(
            graph.ids.id_of(node[chosen]), hop[chosen].tolist(), importance[chosen].tolist(), strict=True
        )
    ]


def _edges(explanation: Explanation, graph: ReadableGraph, top: int) -> list[dict[str, Any]]:
    trees = explanation.subject.trees
    number, count = distinct_edges(explanation.subject)
    if not count:
        return []
    importance = np.bincount(number, explanation.importance.edges, minlength=count)
    _, first = np.unique(number, return_index=True)
    chosen = _most_important(importance, first, top)
    ends = trees.node[trees.edge_index[:, first[chosen]]]
    hops = trees.hop[trees.edge_index[0, first[chosen]]].tolist()
    sources, targets = graph.ids.id_of(ends[0]), graph.ids.id_of(ends[1])
    return [
        {"source": source, "target": target, "hop": hop, "importance": value}
        for source, target, hop, value in zip(
            sources, targets, hops, importance[chosen].tolist(), strict=True
        )
    ]


def _features(importance: NDArray[np.float64], top: int) -> list[dict[str, Any]]:
    chosen = _most_important(importance, np.arange(len(importance)), top)
    return [
        {"feature": feature, "importance": value}
        for feature, value in zip(chosen.tolist(), importance[chosen].tolist(), strict=True)
        if value
    ]


def _most_important(importance: NDArray[Any], met: NDArray[Any], top: int) -> NDArray[np.int64]:
    """The places of the largest, whatever their sign; of equal ones those that are met first."""
    return np.lexsort((met, -np.abs(importance)))[:top]
