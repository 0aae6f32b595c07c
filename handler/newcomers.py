"""Answers new nodes as the policy for the cold start has it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from handler import metrics
from handler.answers import Answered, Place
from handler.cache.store import Store
from handler.coldstart import ColdStart, Decision
from handler.errors import InternalError, RequestError
from handler.forwards import Group, Seed
from handler.graph.fanout import FanoutPlan
from handler.graph.live_graph import LiveGraph
from handler.inputs import ModelInputs
from handler.model.output import ModelOutput
from handler.model.signature import Signature
from handler.settings import Settings

_ONE_NEIGHBOR = FanoutPlan.of((1,))


class Newcomers:
    """Decides how the new nodes of one graph are answered.

    Args:
        inputs: of the model, from the graph.
        store: whose table the mean is taken of.
    """

    def __init__(
        self,
        graph: LiveGraph,
        inputs: ModelInputs,
        signature: Signature,
        settings: Settings,
        store: Store | None,
        counters: metrics.Counters,
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._policy = ColdStart(settings.cold_start)
        self._store = store
        self._counters = counters
        self._fanouts = signature.layer_fanouts
        self._embedding_dim = signature.embedding_dim

    def group(self, index: int, now: float) -> Group | None:
        """How a node is to be answered; none: as all others are.

        Args:
            now: seconds since 1970.
        """
        if self._policy.is_empty:
            return None
        decision = self.decide(index, now)
        if decision.stage == "old":
            return None
        self._counters.add(metrics.COLD_START, 1, decision.stage)
        if decision.method == "mean":
            return Group(FanoutPlan(self._fanouts, 0), has_time=False, source="fallback")
        if decision.method == "features":
            return Group(FanoutPlan(self._fanouts, 0), has_time=False, source="features")
        if decision.method == "expanded":
            wider = tuple(decision.factor * fanout for fanout in self._fanouts)
            return Group(FanoutPlan.of(wider), has_time=False, source="expanded")
        return None

    def decide(self, index: int, now: float) -> Decision:
        """What the policy says of a node, and why."""
        return self._policy.decide(
            self._graph.created_at(index), now, _Facts(self._graph, self._inputs, self._store, index)
        )

    def give_mean(self, seeds: Sequence[Seed], places: list[Place | RequestError]) -> None:
        """Answer seeds with the mean of all precomputed answers."""
        kept = None if self._store is None else self._store.kept
        if kept is None or kept.mean is None:  # it was there when the decision was taken
            for seed in seeds:
                for position in seed.positions:
                    places[position] = InternalError()
            return
        mean = kept.mean[None]
        output = ModelOutput(mean[:, : self._embedding_dim], mean[:, self._embedding_dim :])
        answered = Answered(output, np.ones(1, dtype=np.int64), None, "fallback")
        for seed in seeds:
            self._counters.add(metrics.NODES, len(seed.positions), "fallback")
            for position in seed.positions:
                places[position] = Place(answered, 0)


class _Facts:
    """See `handler.coldstart.NodeFacts`."""

    def __init__(self, graph: LiveGraph, inputs: ModelInputs, store: Store | None, index: int) -> None:
        self._graph, self._inputs, self._store = graph, inputs, store
        self._node = np.array([index])

    def has_features(self) -> bool:
        features = self._graph.features
        return features is not None and bool(features.gather(self._node).any())

    def has_neighbors(self) -> bool:
        return len(self._inputs.sample(self._node, _ONE_NEIGHBOR).trees.node) > 1

    def has_mean(self) -> bool:
        kept = None if self._store is None else self._store.kept
        return kept is not None and kept.mean is not None
