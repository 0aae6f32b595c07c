"""Which nodes were touched last, since a snapshot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.mutations import Mutations

#: So many are known at least.
MAX_RECENT = 4096


class RecentNodes:
    """The nodes that mutations touched last: new ones, those with new features, and ends of edges.

    Args:
        both_ends: whether an edge touches its source too: it counts both ways.
    """

    def __init__(self, *, both_ends: bool) -> None:
        self._both_ends = both_ends
        #: In the order of the mutations; nodes may repeat.
        self._touched: list[NDArray[np.integer[Any]]] = [np.empty(0, dtype=np.int64)]
        self._num_touched = 0

    def last(self, count: int) -> NDArray[np.integer[Any]]:
        """Integers [at most `count`, which is at most `MAX_RECENT`]: each once, the latest last."""
        self._make_unique()
        (nodes,) = self._touched
        return nodes[max(0, len(nodes) - count) :]

    def note(self, mutations: Mutations) -> None:
        """Mutations were applied."""
        first = mutations.first_node
        new = np.arange(first, first + len(mutations.node_ids))
        ends = [edges.target for edges in (mutations.removed, mutations.added)]
        if self._both_ends:
            ends += [edges.source for edges in (mutations.removed, mutations.added)]
        for nodes in (new, mutations.featured, *ends):
            if len(nodes):
                self._touched.append(nodes)
                self._num_touched += len(nodes)
        if self._num_touched > 4 * MAX_RECENT:  # seldom, as it sorts
            self._make_unique()

    def _make_unique(self) -> None:
        if len(self._touched) == 1:
            return
        latest = np.concatenate(self._touched)[::-1]
        _, place = np.unique(latest, return_index=True)
        self._touched = [latest[np.sort(place)[:MAX_RECENT]][::-1].copy()]
        self._num_touched = len(self._touched[0])
