"""The edges of a snapshot: each node's in-neighbours, ordered, with what is known of each edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.edges import EdgeFields
from handler.graph.ordering import Ordering, Strategy

_RANGE_EDGES = 1 << 21


@dataclass(frozen=True)
class Adjacency:
    """In-neighbours in sampling order, as compressed sparse rows.

    Args:
        indptr: int64 [num_nodes + 1], row offsets.
        indices: int32 or int64 [num_edges], node indices; row v holds v's in-neighbours, ordered.
        edge_weight: float32 [num_edges], or none.
        edge_time: float64 [num_edges], or none.
        edge_attr: float32 or float16 [num_edges, edge_dim], or none.
        ordering: of the rows.
        permutations: uint32 [num_edges] by strategy: the places within each row, in another order.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.integer]
    edge_weight: NDArray[np.float32] | None = None
    edge_time: NDArray[np.float64] | None = None
    edge_attr: NDArray[np.floating] | None = None
    ordering: Ordering = field(default_factory=lambda: Ordering("seeded"))
    permutations: Mapping[Strategy, NDArray[np.uint32]] = field(default_factory=dict)

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], ordering: Ordering) -> Adjacency:
        """From a snapshot's arrays by name, as far as they are there."""
        return cls(
            arrays["indptr"],
            arrays["indices"],
            arrays.get("edge_weight"),
            arrays.get("edge_time"),
            arrays.get("edge_attr"),
            ordering,
        )

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def fields(self) -> EdgeFields:
        """What is known of each edge."""
        attr = self.edge_attr
        return EdgeFields(
            self.edge_weight is not None,
            self.edge_time is not None,
            0 if attr is None else attr.shape[1],
            "float32" if attr is None else str(attr.dtype),
        )

    def ranges(self, num_edges: int = _RANGE_EDGES) -> Iterator[tuple[int, int]]:
        """Node ranges that cover the graph, each of about so many edges or of one node."""
        first = 0
        while first < self.num_nodes:
            limit = self.indptr[first] + num_edges
            last = int(np.searchsorted(self.indptr, limit, side="right")) - 1
            last = min(max(last, first + 1), self.num_nodes)
            yield first, last
            first = last
