"""The inner loop that makes one number of all that a model is given of a sampled tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.hashing import mix64
from handler.graph.kernels import compiled

_OF_NODE = np.uint64(0x9FB21C651E98DF25)
_OF_PLACE = np.uint64(0xA0761D6478BD642F)
_OF_PARENT = np.uint64(0xE7037ED1A0B428DB)


@compiled
def fingerprint_trees(
    key: np.uint64,
    node: NDArray[np.int64],
    hop: NDArray[np.int8],
    parent: NDArray[np.int64],
    ptr: NDArray[np.int64],
    weight: NDArray[np.uint32],
    attr: NDArray[np.uint32],
    degree: NDArray[np.uint32],
    row_of: NDArray[np.int32],
    row_number: NDArray[np.int64],
    base_number: NDArray[np.int64],
    fingerprint: NDArray[np.uint64],
) -> None:
    """Write the fingerprint of each tree; never 0, which stands for none.

    It is a sum over the nodes of hashes of the node, its place, its parent's place, and what else the model
    is given of it: so no hash waits for another. Floats come as their bits; what it is not given is empty.
    """
    num_layers = len(degree)
    for tree in range(len(ptr) - 1):
        start = ptr[tree]
        total = key
        for place in range(start, ptr[tree + 1]):
            v = node[place]
            value = np.uint64(v) * _OF_NODE + np.uint64(place - start) * _OF_PLACE
            edge = place - tree - 1
            if place > start:
                value += np.uint64(parent[edge] - start) * _OF_PARENT
            value = mix64(value)
            number = base_number[v] if v < len(base_number) else 0
            if len(row_of) and row_of[v]:
                number = row_number[row_of[v] - 1]
            if number:
                value = mix64(value ^ np.uint64(number))
            if place > start:
                if len(weight):
                    value = mix64(value ^ np.uint64(weight[edge]))
                for column in range(attr.shape[1]):
                    value = mix64(value ^ np.uint64(attr[edge, column]))
            # A node at hop k is read by the layers up to L - k + 1.
            for layer in range(min(num_layers, num_layers - hop[place] + 1)):
                value = mix64(value ^ np.uint64(degree[layer, place]))
            total += value
        total = mix64(total)
        fingerprint[tree] = total if total else np.uint64(1)  # noqa: FURB110 - Numba wants both of one type
