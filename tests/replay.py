"""Real events as a graph that grows: the first as a file, the rest as requests, and all as a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.snapshot import Snapshot
from tests.graphs import FEATURE_DIM


@dataclass(frozen=True)
class Events:
    """Edges in the order in which they happened.

    Args:
        source, target: int64 [num_events], node ids.
        time: float64 [num_events], ascending.
        attr: float32 [num_events, 1], what else is known of each.
        node_id: int64 [num_nodes], ascending, every node that takes part.
        x: float32 [num_nodes, FEATURE_DIM], features made up for each.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    time: NDArray[np.float64]
    attr: NDArray[np.float32]
    node_id: NDArray[np.int64]
    x: NDArray[np.float32]

    @classmethod
    def read(cls, path: Path, attr: str) -> Events:
        """Those of a `.npz` file; `attr` names an array of it."""
        with np.load(path) as file:
            ends, time, values = file["edge_index"], file["edge_time"], file[attr]
            if "node_id" in file.files:
                ends = file["node_id"][ends]
        order = np.argsort(time, kind="stable")
        node_id = np.unique(ends)
        x = np.random.default_rng(len(node_id)).standard_normal((len(node_id), FEATURE_DIM))
        source, target = ends[:, order]
        return cls(
            source,
            target,
            time[order].astype(np.float64),
            values[order].astype(np.float32)[:, None],
            node_id,
            x.astype(np.float32),
        )

    def __len__(self) -> int:
        return len(self.time)

    def write(self, path: Path, num_events: int) -> Path:
        """The first events and their nodes alone, as `hopserve graph build` reads them."""
        ends = np.stack([self.source[:num_events], self.target[:num_events]])
        nodes = np.unique(ends)
        np.savez(
            path,
            edge_index=np.searchsorted(nodes, ends),
            edge_time=self.time[:num_events],
            edge_attr=self.attr[:num_events],
            node_id=nodes,
            x=self.features_of(nodes),
        )
        return path

    def features_of(self, node_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 [len(node_ids), FEATURE_DIM]."""
        return self.x[np.searchsorted(self.node_id, node_ids)]

    def requests(self, first_event: int, batch_size: int, *, create_missing: bool) -> Iterator[Any]:
        """The events from one on, as changes that make the nodes which they name.

        Args:
            create_missing: whether edges make them, and the next request sets their features; else a request
                adds the nodes that its edges need.
        """
        known = np.unique([self.source[:first_event], self.target[:first_event]])
        featureless: list[Any] = []
        for start in range(first_event, len(self), batch_size):
            chosen = slice(start, start + batch_size)
            new = np.setdiff1d([self.source[chosen], self.target[chosen]], known)
            known = np.union1d(known, new)
            x = self.features_of(new).tolist()
            nodes = [{"node_id": node_id, "x": row} for node_id, row in zip(new.tolist(), x, strict=True)]
            edges = self._edges(chosen)
            if create_missing:
                yield {"create_missing": True, "set_features": featureless, "add_edges": edges}
                featureless = nodes
            else:
                yield {"add_nodes": nodes, "add_edges": edges}
        if featureless:
            yield {"set_features": featureless}

    def _edges(self, chosen: slice) -> list[dict[str, Any]]:
        columns = (self.source, self.target, self.time, self.attr)
        return [
            {"source": source, "target": target, "time": time, "attr": attr}
            for source, target, time, attr in zip(
                *(column[chosen].tolist() for column in columns), strict=True
            )
        ]


def contents(snapshot: Snapshot) -> dict[str, NDArray[Any]]:
    """All nodes and edges of a snapshot, in an order that says nothing of node indices.

    Nodes ascend by id, and each one's edges follow one another as they do in the snapshot.
    """
    adjacency, features = snapshot.adjacency, snapshot.features
    ids = np.array(snapshot.ids.id_of(np.arange(snapshot.num_nodes)))
    order = np.argsort(ids)
    degree = np.diff(adjacency.indptr)[order]
    first = np.cumsum(degree) - degree
    edge = np.repeat(adjacency.indptr[order] - first, degree) + np.arange(degree.sum())
    found = {"node_id": ids[order], "degree": degree, "neighbor": ids[adjacency.indices[edge]]}
    if features is not None:
        found["x"] = features.gather(order)
    columns = {"weight": adjacency.edge_weight, "time": adjacency.edge_time, "attr": adjacency.edge_attr}
    return found | {name: column[edge] for name, column in columns.items() if column is not None}


def check_same(found: Snapshot, wanted: Snapshot) -> None:
    """Two snapshots are of the same graph, edge for edge and in the same order."""
    here, there = contents(found), contents(wanted)
    assert here.keys() == there.keys()
    for name, array in here.items():
        assert np.array_equal(array, there[name]), name
