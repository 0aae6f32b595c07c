"""What a model is given: the trees that it samples, and the data of their nodes and edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError, ModelError
from handler.graph.budget import BudgetedSampler, Sampled
from handler.graph.fanout import FanoutPlan
from handler.graph.features import Features
from handler.graph.sampler import SampledTrees, Sampler, TreeLimits
from handler.graph.snapshot import Snapshot
from handler.model.signature import EdgeInput, Signature
from handler.settings import Settings

_TREE_BYTES = 45  # of the arrays of `SampledTrees`, for a node with its edge


@dataclass(frozen=True)
class Gathered:
    """The data of some trees: `x` float32 [num_tree_nodes, feature_dim], and what each edge has."""

    x: NDArray[np.float32]
    edge_inputs: dict[EdgeInput, NDArray[np.float32]]


class ModelInputs:
    """Samples and gathers from one graph for one model.

    Raises:
        ModelError: the graph has not what the model takes.
    """

    def __init__(self, snapshot: Snapshot, signature: Signature, settings: Settings) -> None:
        self._features = _matching_features(snapshot, signature)
        self._edge_inputs = signature.edge_inputs
        try:
            self._sampler = snapshot.sampler(signature.sampling)
        except GraphInputError as error:
            raise ModelError(f"{snapshot.folder}: {error}") from None
        _check_edges(snapshot, signature, self._sampler)
        node_bytes = _TREE_BYTES + 4 * (signature.feature_dim + signature.edge_dim)
        fitting = max(1, settings.max_bytes_per_forward // node_bytes)
        limits = TreeLimits(min(settings.max_nodes_per_forward, fitting), settings.max_edges_per_forward)
        self._budgeted = BudgetedSampler(self._sampler, limits, settings.over_budget == "truncate")
        self.strategy: str = signature.sampling.strategy or snapshot.manifest.ordering.strategy

    @property
    def knows_time(self) -> bool:
        """Whether `as_of` has a meaning."""
        return self._sampler.knows_time

    def sample(
        self, seeds: NDArray[np.int64], plan: FanoutPlan, as_of: NDArray[np.float64] | None = None
    ) -> Sampled:
        """Trees of as many of the first seeds as one forward may hold; see `BudgetedSampler.sample`."""
        return self._budgeted.sample(seeds, plan, as_of)

    def gather(self, trees: SampledTrees) -> Gathered:
        """The data that the model takes of the trees' nodes and edges."""
        edge_inputs: dict[EdgeInput, NDArray[np.float32]] = {}
        for name in self._edge_inputs:
            read = self._sampler.edge_weight if name == "edge_weight" else self._sampler.edge_attr
            values = read(trees)
            if values is not None:
                edge_inputs[name] = values
        return Gathered(self._features.gather(trees.node), edge_inputs)


def _matching_features(snapshot: Snapshot, signature: Signature) -> Features:
    wanted = signature.feature_dim
    if snapshot.features is None:
        raise ModelError(f"{snapshot.folder}: has no node features, the model takes {wanted}")
    found = snapshot.features.shape[1]
    if found != wanted:
        raise ModelError(f"{snapshot.folder}: has {found} features per node, the model takes {wanted}")
    return snapshot.features


def _check_edges(snapshot: Snapshot, signature: Signature, sampler: Sampler) -> None:
    walks = sampler.sampling.strategy == "walk"
    if "edge_weight" in signature.edge_inputs and not walks and snapshot.adjacency.edge_weight is None:
        raise ModelError(f"{snapshot.folder}: has no edge weights, the model takes them")
    if "edge_attr" not in signature.edge_inputs:
        return
    if walks:
        raise ModelError("a model that samples by walks cannot take edge features: a walk is no edge")
    found = snapshot.manifest.edge_dim
    if found != signature.edge_dim:
        raise ModelError(
            f"{snapshot.folder}: has {found} features per edge, the model takes {signature.edge_dim}"
        )
