"""Composes the row that answers one node from its sampled tree and the model's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.errors import NonFiniteOutput, RequestError
from handler.graph.budget import Sampled
from handler.graph.ids import NodeIds
from handler.graph.sampler import SampledTrees
from handler.model.runtime import ModelOutput
from handler.model.signature import Signature
from handler.requests import Query

Row = dict[str, Any] | RequestError


class Composer:
    """Makes answers of one model on one graph.

    Args:
        about: what every answer says of the model and the graph.
    """

    def __init__(self, signature: Signature, ids: NodeIds, about: dict[str, Any]) -> None:
        self._labels = signature.labels
        self._ids = ids
        self._about = about
        self._default_returned = ("embedding", "label") if signature.labels else ("embedding",)

    def rows(self, queries: Sequence[Query], sampled: Sampled, output: ModelOutput) -> list[Row]:
        """One row per query; `sampled` and `output` hold the queries' nodes in the same order."""
        trees = sampled.trees
        outputs = np.concatenate([output.embedding, output.logits], axis=1)
        finite: list[bool] = np.isfinite(outputs).all(axis=1).tolist()
        tree_nodes = np.diff(trees.ptr).tolist()
        classes = self._classes(queries, output)
        rows: list[Row] = []
        for place, query in enumerate(queries):
            if not finite[place]:
                rows.append(NonFiniteOutput(query.node_id))
                continue
            returned = query.options.returned or self._default_returned
            row: dict[str, Any] = {"node_id": query.node_id}
            if "embedding" in returned:
                row["embedding"] = output.embedding[place]
            for name, values in classes.items():
                if name in returned:
                    row[name] = values[place]
            if "neighbors" in returned:
                row["neighbors"] = self._neighbors(trees, place)
            nodes = tree_nodes[place]
            row |= {"source": "live"} | self._about
            row |= {
                "age_ms": 0,
                "sampled": {"nodes": nodes, "edges": nodes - 1, "truncated": sampled.truncated},
            }
            rows.append(row)
        return rows

    def _classes(self, queries: Sequence[Query], output: ModelOutput) -> dict[str, list[Any]]:
        """The values of each field that speaks of classes, for all queries at once."""
        if not self._labels:
            return {}
        fields: dict[str, list[Any]] = {
            "label": [self._labels[place] for place in output.logits.argmax(axis=1).tolist()]
        }
        if any("probabilities" in (query.options.returned or ()) for query in queries):
            fields["probabilities"] = [
                dict(zip(self._labels, row, strict=True)) for row in _softmax(output.logits).tolist()
            ]
        return fields

    def _neighbors(self, trees: SampledTrees, place: int) -> list[list[Any]]:
        """The ids sampled for one seed, hop by hop."""
        tree = slice(trees.ptr[place], trees.ptr[place + 1])
        node, hop = trees.node[tree], trees.hop[tree]
        return [self._ids.id_of(node[hop == depth]) for depth in range(1, int(hop[-1]) + 1)]


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return probabilities
