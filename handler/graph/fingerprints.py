"""One number for all that a model is given of a sampled tree: while it stays, the answer stays.

Nodes are named by index, which they keep for ever, edges by what the model is given of them, and features by
the mutation that set them last. So a fingerprint outlasts compactions, and is the same in every process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.fingerprint_kernels import fingerprint_trees
from handler.graph.live_features import FeatureChanges
from handler.graph.sampler import SampledTrees

#: Another way of making fingerprints must be another number: what is stored names it.
FINGERPRINT_VERSION = 1
_NONE = np.empty(0, dtype=np.float32)


def fingerprints(
    trees: SampledTrees,
    key: int,
    changes: FeatureChanges,
    *,
    edge_weight: NDArray[np.float32] | None = None,
    edge_attr: NDArray[np.float32] | None = None,
    degree: NDArray[np.float32] | None = None,
) -> NDArray[np.uint64]:
    """uint64 [num_seeds]: the fingerprint of each tree, 0 for none.

    Args:
        key: of the model and the graph, 64 bits: fingerprints of others are others.
        changes: of the features of the graph.
        edge_weight: float32 [num_edges], if the model takes them.
        edge_attr: float32 [num_edges, edge_dim], if the model takes them.
        degree: float32 [num_layers, num_tree_nodes], if the model normalises by them.
    """
    found = np.empty(trees.num_seeds, dtype=np.uint64)
    fingerprint_trees(
        np.uint64(key),
        trees.node,
        trees.hop,
        trees.edge_index[1],
        trees.ptr,
        _bits(_NONE if edge_weight is None else edge_weight),
        _bits(np.empty((trees.num_edges, 0), np.float32) if edge_attr is None else edge_attr),
        _bits(np.empty((0, 0), np.float32) if degree is None else degree),
        changes.row_of,
        changes.row_number,
        changes.base_number,
        found,
    )
    return found


def _bits(values: NDArray[np.float32]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(np.uint32)
