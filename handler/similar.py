"""Finds the nodes whose embeddings are most similar to those of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler import metrics
from handler.answers import Place, Row
from handler.cache.similar import Metric
from handler.cache.store import Store
from handler.errors import NoIndex, RequestError, as_value
from handler.graph.live_graph import LiveGraph
from handler.requests import Options, Query

#: Where the answers for nodes are.
Answer = Callable[[Sequence[Query]], Sequence[Place | RequestError]]


class SimilarNodes:
    """Finds similar nodes in one graph as it is now.

    An index knows candidates by what the table has of them. Nodes that the log has touched since may have
    come nearer, or are not in the table: they are candidates too. All candidates are then answered as if
    they were asked for, and compared by that.

    Args:
        store: with the table and its indexes; none: there are no similar nodes.
        num_recent: so many of the nodes touched last are candidates.
    """

    def __init__(
        self, graph: LiveGraph, store: Store | None, num_recent: int, counters: metrics.Counters
    ) -> None:
        self._graph = graph
        self._store = store
        self._num_recent = num_recent
        self._counters = counters

    def add(
        self,
        queries: Sequence[Query],
        places: Sequence[Place | RequestError],
        rows: dict[int, Row],
        answer: Answer,
    ) -> None:
        """Add similar nodes to the rows of the queries that ask for them.

        Args:
            places: where the answer for each query is.
            rows: by the positions of queries.
            answer: what tells of other nodes where their answers are.
        """
        asked: defaultdict[tuple[Metric, int, Options], dict[int, Place]] = defaultdict(dict)
        for position, (query, place) in enumerate(zip(queries, places, strict=True)):
            options = query.options
            if options.top_k is not None and isinstance(place, Place) and isinstance(rows[position], dict):
                # As the node itself, in the same graph: a mutation that must count does so already.
                others = Options(
                    max_staleness_ms=options.max_staleness_ms, min_seq=None if options.min_seq is None else 0
                )
                asked[options.metric or "cosine", options.top_k, others][position] = place
        for (metric, top_k, others), found in asked.items():
            own = self._indices([queries[position] for position in found])
            vectors = np.stack([place.embedding for place in found.values()])
            try:
                similar = self._find(own, vectors, metric, top_k, others, answer)
            except RequestError as error:
                rows |= dict.fromkeys(found, as_value(error))
                continue
            for position, nodes in zip(found, similar, strict=True):
                row = rows[position]
                if isinstance(row, dict):
                    row["similar"] = nodes

    def _find(
        self,
        own: NDArray[np.int64],
        vectors: NDArray[np.float32],
        metric: Metric,
        top_k: int,
        options: Options,
        answer: Answer,
    ) -> list[list[dict[str, Any]]]:
        """For each node the ids and scores of up to `top_k` others, the most similar first.

        Args:
            own: int64 [num_nodes], their indices, which are left out; -1 for nodes that the graph has not.
            vectors: float32 [num_nodes, embedding_dim], their embeddings.
            options: by which other nodes are answered.

        Raises:
            NoIndex: of this metric.
        """
        kept = None if self._store is None else self._store.kept
        index = None if kept is None else kept.similar.get(metric)
        if kept is None or index is None:
            raise NoIndex(metric)
        with self._counters.timed("similar"):
            near = index.search(vectors, top_k + 1)
            recent = self._recent(kept.table.manifest.num_nodes)
            nodes = np.union1d(near[near >= 0], recent)
            others = [Query(node_id, options) for node_id in self._graph.ids.id_of(nodes)]
        there, embedding = _embeddings(answer(others), vectors.shape[1])
        with self._counters.timed("similar"):
            self._counters.add(metrics.SIMILAR, len(own), metric)
            nodes = nodes[there]
            best: list[NDArray[np.int64]] = []
            scores: list[list[float]] = []
            for node, vector, found in zip(own.tolist(), vectors, near, strict=True):
                mine = _places(np.setdiff1d(np.union1d(found, recent), [node]), nodes)
                score = _scores(embedding[mine], vector, metric)
                order = np.argsort(-score, kind="stable")[:top_k]
                best.append(nodes[mine[order]])
                scores.append(score[order].tolist())
            ids = iter(self._graph.ids.id_of(np.concatenate(best)))
            return [[{"node_id": next(ids), "score": score} for score in each] for each in scores]

    def _recent(self, num_known: int) -> NDArray[np.int64]:
        """int64 [num_recent], ascending: the nodes touched last, and the last that the table has not."""
        num_nodes = self._graph.num_nodes
        new = np.arange(max(num_known, num_nodes - self._num_recent), num_nodes)
        return np.union1d(self._graph.recent.last(self._num_recent), new)

    def _indices(self, queries: Sequence[Query]) -> NDArray[np.int64]:
        """int64 [num_queries]; -1 for described nodes, which were in the graph for a moment."""
        index = np.full(len(queries), -1, dtype=np.int64)
        known = {place: query.node_id for place, query in enumerate(queries) if query.described is None}
        index[list(known)] = self._graph.ids.index_of(list(known.values()))  # type: ignore[arg-type]  # answered
        return index


def _embeddings(
    places: Sequence[Place | RequestError], dim: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which places have a finite embedding, and float64 [num_there, dim]."""
    there = [number for number, place in enumerate(places) if isinstance(place, Place)]
    rows = [place.embedding for place in places if isinstance(place, Place)]
    embedding = np.array(rows, dtype=np.float64).reshape(len(rows), dim)
    finite = np.isfinite(embedding).all(axis=1)
    return np.array(there, dtype=np.int64)[finite], embedding[finite]


def _places(wanted: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64: where those of the wanted nodes that are there are; both ascending."""
    place = np.searchsorted(nodes, wanted).astype(np.int64)
    place, wanted = place[place < len(nodes)], wanted[place < len(nodes)]
    found: NDArray[np.int64] = place[nodes[place] == wanted]
    return found


def _scores(
    embedding: NDArray[np.float64], vector: NDArray[np.float32], metric: Metric
) -> NDArray[np.float64]:
    """float64 [len(embedding)]; a cosine with a vector of length 0 is 0."""
    wide = vector.astype(np.float64)
    score: NDArray[np.float64] = embedding @ wide
    if metric == "cosine":
        length = np.linalg.norm(embedding, axis=1) * np.linalg.norm(wide)
        score = score / np.where(length > 0, length, 1.0)
    return score
