"""Composes the row that answers one node, or one pair, from sampled trees and the model's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from handler.errors import MalformedRequest, NonFiniteOutput, RequestError
from handler.graph.budget import Sampled
from handler.graph.readable import ReadableGraph
from handler.graph.sampler import SampledTrees
from handler.model.output import ModelOutput
from handler.model.signature import Signature
from handler.requests import Options, PairReturned, Query

Row = dict[str, Any] | RequestError
_MULTI_LABEL_THRESHOLD = 0.5


#: Where an answer is from, the one that says least of the graph as it is now last.
Source = Literal["live", "expanded", "features", "cache", "precomputed", "fallback"]
_SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True)
class Answered:
    """What the model says of some seeds, now or when it was asked before.

    Args:
        num_nodes: int [num_seeds], nodes of each sampled tree.
        sampled: the trees; none where an answer was allowed to be of another time.
        seq: int64 [num_seeds], the mutation up to which each is known to hold; none for the latest.
        age_ms: int64 [num_seeds], how long ago each was computed; none for now.
    """

    output: ModelOutput
    num_nodes: NDArray[np.integer]
    sampled: Sampled | None
    source: Source = "live"
    seq: NDArray[np.int64] | None = None
    age_ms: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Place:
    """Where the answer for one node is: its place among the seeds that were answered together."""

    among: Answered
    seed: int

    @property
    def embedding(self) -> NDArray[np.float32]:
        """float32 [embedding_dim]."""
        embedding: NDArray[np.float32] = self.among.output.embedding[self.seed]
        return embedding

    @property
    def sampled(self) -> dict[str, Any]:
        """What an answer says of the sample."""
        nodes, trees = int(self.among.num_nodes[self.seed]), self.among.sampled
        return {"nodes": nodes, "edges": nodes - 1, "truncated": trees is not None and trees.truncated}

    @property
    def seq(self) -> int | None:
        """The mutation up to which the answer is known to hold; none for the latest."""
        return None if self.among.seq is None else int(self.among.seq[self.seed])

    @property
    def age_ms(self) -> int:
        """How long ago it was computed."""
        return 0 if self.among.age_ms is None else int(self.among.age_ms[self.seed])


class Composer:
    """Makes answers of one model on one graph.

    Args:
        model_version: as every answer names it.
    """

    def __init__(self, signature: Signature, graph: ReadableGraph, model_version: str) -> None:
        self._signature = signature
        self._labels = signature.labels
        self._graph = graph
        self._snapshot_id = graph.manifest.snapshot_id
        self._model_version = model_version
        gives: dict[str, object] = {
            "embedding": signature.embedding_dim,
            "label": signature.labels,
            "probabilities": signature.labels,
            "values": signature.targets,
        }
        self._gives = [name for name, given in gives.items() if given]
        self._default_returned = tuple(name for name in self._gives if name != "probabilities")
        least = _MULTI_LABEL_THRESHOLD if signature.multi_label else 0.0
        self._thresholds = np.array([signature.thresholds.get(label, least) for label in self._labels])

    def check(self, options: Options) -> None:
        """Raise a `MalformedRequest` if this model cannot give what is asked for."""
        for name in options.returned or ():
            if name not in self._gives and name != "neighbors":
                raise MalformedRequest(f"this model gives no {name}, only {', '.join(self._gives)}")
        if options.threshold is not None and not self._labels:
            raise MalformedRequest("this model gives no labels, which a threshold could decide")

    def rows(self, queries: Sequence[Query], places: Sequence[int], among: Answered) -> list[Row]:
        """One row per query, whose answers are at these places among others."""
        output = among.output
        finite: list[bool] = np.all(np.isfinite(output.side_by_side), axis=1).tolist()
        predicted = self._predicted(queries, places, output.prediction)
        now = self.about(among.source)
        rows: list[Row] = []
        for number, (query, place) in enumerate(zip(queries, places, strict=True)):
            if not finite[place]:
                rows.append(NonFiniteOutput(query.node_id))
                continue
            at = Place(among, place)
            returned = query.options.returned or (
                self._default_returned if query.options.top_k is None else ()
            )
            row: dict[str, Any] = {"node_id": query.node_id}
            if "embedding" in returned:
                row["embedding"] = at.embedding
            for name, fields in predicted.items():
                if name in returned:
                    row |= fields[number]
            if "neighbors" in returned and among.sampled is not None:
                row["neighbors"] = self._neighbors(among.sampled.trees, place)
            row |= now if among.seq is None else self.about(among.source, at.seq, at.age_ms)
            row["age_ms"] = at.age_ms
            row["sampled"] = at.sampled
            rows.append(row)
        return rows

    def pair_row(
        self, ends: Sequence[Query], places: Sequence[Place], score: float, returned: Sequence[PairReturned]
    ) -> dict[str, Any]:
        """The row that answers one pair of nodes."""
        row: dict[str, Any] = {"pair": [end.node_id for end in ends]}
        if "score" in returned:
            row["score"] = score
        if "probability" in returned:
            row["probability"] = float(_sigmoid(np.float64(score)))
        source = max((place.among.source for place in places), key=_SOURCES.index)
        seqs = [place.seq for place in places if place.seq is not None]
        about = self.about(source, min(seqs, default=None), max(place.age_ms for place in places))
        return row | about | {"sampled": [place.sampled for place in places]}

    def about(self, source: Source, seq: int | None = None, age_ms: int = 0) -> dict[str, Any]:
        """What every answer says of the model, and of the graph that it holds for."""
        graph = {"snapshot": self._snapshot_id, "seq": self._graph.seq if seq is None else seq}
        return {"source": source, "model_version": self._model_version, "graph": graph, "age_ms": age_ms}

    def _predicted(
        self, queries: Sequence[Query], places: Sequence[int], prediction: NDArray[np.float32]
    ) -> dict[str, list[dict[str, Any]]]:
        """For each thing that may be returned, the fields that say it, of all queries at once."""
        if self._signature.targets:
            named = [dict(zip(self._signature.targets, row, strict=True)) for row in prediction.tolist()]
            return {"values": [{"values": named[place]} for place in places]}
        if not self._labels:
            return {}
        raw = prediction[places]
        thresholds = [query.options.threshold for query in queries]
        asked = any("probabilities" in (query.options.returned or ()) for query in queries)
        if not asked and not self._thresholds.any() and not any(thresholds):
            # What is largest needs no probabilities.
            return {"label": [{"label": self._labels[best]} for best in raw.argmax(axis=1).tolist()]}
        with np.errstate(invalid="ignore"):  # rows that are not finite are errors already
            probability = _sigmoid(raw) if self._signature.multi_label else _softmax(raw)
        least = np.stack(
            [self._thresholds if own is None else np.full(len(self._labels), own) for own in thresholds]
        )
        return {
            "label": self._decided(probability, least),
            "probabilities": [
                {"probabilities": dict(zip(self._labels, row, strict=True))} for row in probability.tolist()
            ],
        }

    def _decided(self, probability: NDArray[np.float32], least: NDArray[np.float64]) -> list[dict[str, Any]]:
        """The labels that reach their thresholds; of classes that exclude each other the most probable."""
        reached = probability >= least
        if self._signature.multi_label:
            return [{"labels": [self._labels[place] for place in np.flatnonzero(row)]} for row in reached]
        best = np.where(reached, probability, -1.0).argmax(axis=1)
        return [
            {"label": self._labels[place] if ok else None}
            for place, ok in zip(best.tolist(), [bool(row.any()) for row in reached], strict=True)
        ]

    def _neighbors(self, trees: SampledTrees, place: int) -> list[list[Any]]:
        """The ids sampled for one seed, hop by hop."""
        tree = slice(trees.ptr[place], trees.ptr[place + 1])
        node, hop = trees.node[tree], trees.hop[tree]
        return [self._graph.ids.id_of(node[hop == depth]) for depth in range(1, int(hop[-1]) + 1)]


def check_pairs(signature: Signature, returned: Sequence[PairReturned]) -> None:
    """Raise a `MalformedRequest` if a model cannot score pairs, or not in this way."""
    if signature.link_score is None:
        raise MalformedRequest("this model scores no pairs of nodes; its task is not `link`")
    if "probability" in returned and signature.link_score == "cosine":
        raise MalformedRequest("this model scores by the cosine, which is no log-odds: no probability")


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return probabilities


def _sigmoid(logits: Any) -> Any:
    return 0.5 * (1.0 + np.tanh(0.5 * logits))  # which does not overflow
