"""Turns what clients say of a graph into mutations of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.changes import Change
from handler.errors import MalformedRequest, UnknownNode
from handler.graph.edges import EdgeBlock
from handler.graph.ids import NodeId
from handler.graph.live_graph import LiveGraph
from handler.graph.mutations import Mutations

_Where = Callable[[int], str]


class Resolver:
    """Turns what a client says into mutations of a graph, or says what is wrong with it.

    Args:
        new_nodes: nodes that the graph is about to have, and their indices.
    """

    def __init__(self, graph: LiveGraph, new_nodes: dict[NodeId, int] | None = None) -> None:
        self._graph = graph
        self._later = new_nodes or {}
        self._first = graph.num_nodes + len(self._later)
        self._new: dict[NodeId, int] = {}
        manifest = graph.manifest
        self._fields = graph.edge_fields
        self._positive = "weighted" in manifest.orderings()

    def resolve(self, change: Change) -> Mutations:
        """The mutations of one change.

        Raises:
            MalformedRequest: types, dimensions or values are not those of the graph; names the place.
            UnknownNode: a node is not there.
        """
        for place, node in enumerate(change.add_nodes):
            self._check_type(node.node_id, f"add_nodes[{place}].node_id")
        self._add([node.node_id for node in change.add_nodes])
        given = [(node.node_id, node.x) for node in change.add_nodes if node.x is not None]
        named = [f"add_nodes[{place}]" for place, node in enumerate(change.add_nodes) if node.x is not None]
        featured = [self._index([node_id for node_id, _ in given], "", create=False)]
        for place, feature in enumerate(change.set_features):
            self._check_type(feature.node_id, f"set_features[{place}].node_id")
            named.append(f"set_features[{place}]")
        given += [(feature.node_id, feature.x) for feature in change.set_features]
        featured.append(
            self._index([feature.node_id for feature in change.set_features], "set_features", create=False)
        )
        features = self._features([x for _, x in given if x is not None], named)
        removed = self._removed(change)
        added = self._added(change)
        return Mutations(
            created=time.time(),
            first_node=self._first,
            node_ids=list(self._new),
            featured=np.concatenate(featured),
            features=features,
            removed=removed,
            added=added,
        )

    def _removed(self, change: Change) -> EdgeBlock:
        edges = change.remove_edges
        source, target = self._ends(edges, "remove_edges", create=False)
        time_given = [edge.time for edge in edges]
        if not self._fields.time:
            _refuse_given(time_given, "remove_edges", "time")
        times = np.array([np.nan if value is None else value for value in time_given], dtype=np.float64)
        return EdgeBlock(source, target, None, times)

    def _added(self, change: Change) -> EdgeBlock:
        edges, fields = change.add_edges, self._fields
        source, target = self._ends(edges, "add_edges", create=change.create_missing)
        weight: NDArray[np.float32] | None = None
        time_: NDArray[np.float64] | None = None
        attr: NDArray[np.float32] | None = None
        weights, times, attrs = (
            [edge.weight for edge in edges],
            [edge.time for edge in edges],
            [edge.attr for edge in edges],
        )
        if fields.weight:
            given = np.array([1.0 if value is None else value for value in weights], dtype=np.float64)
            weight = _as_float32(given, lambda place: f"add_edges[{place}].weight")
            if self._positive and len(weight) and not weight.min() > 0:
                bad = int(np.argmin(weight > 0))
                raise MalformedRequest(
                    f"add_edges[{bad}].weight is {weight[bad]:g}, but the graph is ordered by `weighted`,"
                    " which needs positive weights"
                )
        else:
            _refuse_given(weights, "add_edges", "weight")
        if fields.time:
            time_ = np.array(_all_given(times, "add_edges", "time"), dtype=np.float64)
        else:
            _refuse_given(times, "add_edges", "time")
        if fields.attr_dim:
            rows = _all_given(attrs, "add_edges", "attr")
            attr = _matrix(rows, fields.attr_dim, lambda place: f"add_edges[{place}].attr")
        else:
            _refuse_given(attrs, "add_edges", "attr")
        return EdgeBlock(source, target, weight, time_, attr)

    def _ends(
        self, edges: Sequence[Any], where: str, *, create: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        sources, targets = [edge.source for edge in edges], [edge.target for edge in edges]
        for name, ids in (("source", sources), ("target", targets)):
            if set(map(type, ids)) - {self._graph.ids.id_type}:
                for place, node_id in enumerate(ids):
                    self._check_type(node_id, f"{where}[{place}].{name}")
        index = self._index([*sources, *targets], where, create=create)
        return index[: len(edges)], index[len(edges) :]

    def _index(self, node_ids: list[NodeId], where: str, *, create: bool) -> NDArray[np.int64]:
        """int64 [len(node_ids)]; nodes that are missing are added, or refused by their place."""
        index = self._graph.ids.index_of(node_ids)
        for place in np.flatnonzero(index < 0).tolist():
            node_id = node_ids[place]
            if node_id not in self._later and node_id not in self._new:
                if not create:
                    edges = len(node_ids) // 2
                    raise UnknownNode(node_id, f"{where}[{place % edges if 'edges' in where else place}]")
                self._new[node_id] = self._first + len(self._new)
            index[place] = self._later.get(node_id, self._new.get(node_id, -1))
        return index

    def _add(self, node_ids: list[NodeId]) -> None:
        self._index(node_ids, "add_nodes", create=True)

    def _check_type(self, node_id: NodeId, where: str) -> None:
        id_type = self._graph.ids.id_type
        if type(node_id) is not id_type:
            kinds = {int: "integers", str: "strings"}
            raise MalformedRequest(f"{where} is {node_id!r:.80}: this graph's node ids are {kinds[id_type]}")
        if isinstance(node_id, str) and not node_id.isascii():
            try:
                node_id.encode()
            except UnicodeEncodeError:
                raise MalformedRequest(f"{where} is no valid text") from None

    def _features(self, rows: Sequence[list[float]], named: Sequence[str]) -> NDArray[np.float32]:
        features = self._graph.features
        if features is None:
            if rows:
                raise MalformedRequest(f"{named[0]}.x: the nodes of this graph have no features")
            return np.empty((0, 0), dtype=np.float32)
        x = _matrix(rows, features.shape[1], lambda place: f"{named[place]}.x")
        if features.dtype == np.float16 and not np.isfinite(x.astype(np.float16)).all():
            bad = int(np.argmin(np.isfinite(x.astype(np.float16)).all(axis=1)))
            raise MalformedRequest(f"{named[bad]}.x has a number that float16, the graph's, cannot hold")
        return x


def _refuse_given(values: Sequence[object], where: str, name: str) -> None:
    if values.count(None) != len(values):
        place = next(place for place, value in enumerate(values) if value is not None)
        raise MalformedRequest(f"{where}[{place}].{name}: the edges of this graph have no {name}")


def _all_given(values: list[Any], where: str, name: str) -> list[Any]:
    if None in values:
        raise MalformedRequest(f"{where}[{values.index(None)}] has no {name}, the edges of this graph have")
    return values


def _matrix(rows: Sequence[list[float]], width: int, where: _Where) -> NDArray[np.float32]:
    """float32 [len(rows), width]; `where` names a row."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if (lengths != width).any():
        bad = int(np.argmax(lengths != width))
        raise MalformedRequest(f"{where(bad)} has {lengths[bad]} numbers, the graph has {width}")
    return _as_float32(np.array(rows, dtype=np.float64).reshape(len(rows), width), where)


def _as_float32(values: NDArray[np.float64], where: _Where) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    finite = np.isfinite(narrow)
    if not finite.all():
        bad = int(np.argmin(finite.reshape(len(narrow), -1).all(axis=1)))
        raise MalformedRequest(f"{where(bad)} has a number that float32 cannot hold")
    return narrow
