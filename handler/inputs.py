"""What a model is given: the trees that it samples, and the data of their nodes and edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from handler.errors import GraphInputError, ModelError, Unreadable
from handler.graph.budget import BudgetedSampler, Sampled
from handler.graph.fanout import FanoutPlan
from handler.graph.fingerprints import fingerprints
from handler.graph.layers import LayeredTrees, arrange_layers
from handler.graph.readable import ReadableFeatures, ReadableGraph
from handler.graph.sampler import SampledTrees, Sampler, TreeLimits
from handler.graph.unread import Unread
from handler.model.batch import to_batch
from handler.model.device import FeatureRows, feature_rows, for_device
from handler.model.exported import ModelInput
from handler.model.signature import EdgeInput, Signature
from handler.settings import Settings

_TREE_BYTES = 45  # of the arrays of `SampledTrees`, for a node with its edge
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Arranged:
    """Sampled trees in the order in which a model takes them.

    Args:
        layered: for a layered model.
    """

    sampled: Sampled
    layered: LayeredTrees | None = None


class TreeInputs:
    """Makes of sampled trees what a model is called with.

    Args:
        sampler: by which the trees were sampled.
        rows: the features of the nodes.
        device: where the model runs.
    """

    def __init__(
        self, sampler: Sampler, rows: FeatureRows, signature: Signature, device: torch.device = _CPU
    ) -> None:
        self._sampler = sampler
        self._rows = rows
        self._signature = signature
        self._device = device

    def arrange(self, sampled: Sampled) -> Arranged:
        """Bring trees into the order that the model's contract asks for."""
        if self._signature.contract == "plain":
            return Arranged(sampled)
        return Arranged(sampled, arrange_layers(sampled.trees, sampled.plan.layer_fanouts))

    def gather(self, arranged: Arranged) -> ModelInput:
        """Read the data of nodes and edges: all that the model is called with."""
        if arranged.layered is None:
            return self._plain(arranged.sampled.trees)
        return self._layered(arranged.sampled, arranged.layered)

    def _plain(self, trees: SampledTrees) -> ModelInput:
        batch = to_batch(trees, self._rows.gather(trees.node), self._edge_values(trees))
        tensors = [batch[name] for name in self._signature.argument_names()]
        return ModelInput(tuple(tensors), trees.num_seeds, batch.ptr[:-1])

    def _layered(self, sampled: Sampled, layered: LayeredTrees) -> ModelInput:
        trees = sampled.trees
        tensors = [self._rows.gather(trees.node[layered.order])]
        edge_values = self._edge_values(trees)
        degree = self._degree(sampled)
        for number, layer in enumerate(layered.layers):
            arrays: list[NDArray[Any]] = [layer.edge_index, layer.ptr]
            arrays += [edge_values[name][layer.edge] for name in self._signature.edge_inputs]
            if degree is not None:
                arrays.append(degree[number, layered.order[: layer.num_sources]])
            tensors += [for_device(array, self._device) for array in arrays]
        return ModelInput(tuple(tensors), trees.num_seeds)

    def _edge_values(self, trees: SampledTrees) -> dict[EdgeInput, NDArray[np.float32]]:
        """What the model takes of edges, in the order of the trees' edges."""
        values: dict[EdgeInput, NDArray[np.float32]] = {}
        for name in self._signature.edge_inputs:
            read = self._sampler.edge_weight if name == "edge_weight" else self._sampler.edge_attr
            found = read(trees)
            if found is None:
                raise ModelError(f"the graph has no {name}, the model takes it")
            values[name] = found
        return values

    def _degree(self, sampled: Sampled) -> NDArray[np.float32] | None:
        if not self._signature.takes_degree:
            return None
        weighted = "edge_weight" in self._signature.edge_inputs
        return self._sampler.sampled_degree(
            sampled.trees, sampled.plan.layer_fanouts, sampled.as_of, weighted=weighted
        )


class ModelInputs(TreeInputs):
    """Samples from one graph for one model, within a budget, and makes what it is called with.

    Args:
        device: where the model runs.
        unread: what of the graph is not there, though it should be; none of it.

    Raises:
        ModelError: the graph has not what the model takes.
    """

    def __init__(
        self,
        graph: ReadableGraph,
        signature: Signature,
        settings: Settings,
        device: torch.device = _CPU,
        unread: Unread | None = None,
    ) -> None:
        features = _matching_features(graph, signature)
        try:
            sampler = graph.sampler(signature.sampling)
        except GraphInputError as error:
            raise ModelError(f"{graph.folder}: {error}") from None
        _check_edges(graph, signature, sampler)
        self._graph = graph
        self._unread = unread
        super().__init__(
            sampler, feature_rows(features, device, settings.max_resident_bytes), signature, device
        )
        #: What a forward needs for each tree node at least: what it is given.
        self.node_bytes = _TREE_BYTES + 4 * (signature.feature_dim + signature.edge_dim)
        self.budget = BudgetedSampler(
            sampler,
            TreeLimits(settings.max_nodes_per_forward, settings.max_edges_per_forward),
            truncate=settings.over_budget == "truncate",
        )
        self.knows_time: bool = sampler.knows_time
        self.strategy: str = signature.sampling.strategy or graph.manifest.ordering.strategy

    def sample(
        self, seeds: NDArray[np.int64], plan: FanoutPlan, as_of: NDArray[np.float64] | None = None
    ) -> Sampled:
        """Trees of as many of the first seeds as one forward may hold; see `BudgetedSampler.sample`."""
        return self.budget.sample(seeds, plan, as_of)

    def unreadable(self, sampled: Sampled) -> dict[int, Unreadable]:
        """Errors for seeds whose trees are not as they should be, by their places; none may be answered."""
        if self._unread is None:
            return {}
        touched = self._unread.touched(sampled.trees, sampled.plan.num_hops)
        return {place: Unreadable(self._unread.why) for place in np.flatnonzero(touched).tolist()}

    def check_readable(self, index: NDArray[np.int64], plan: FanoutPlan) -> None:
        """Raise `Unreadable` unless the trees of nodes are as they should be, whatever the budget."""
        for why in self.unreadable(Sampled(self._sampler.trees(index, plan), plan)).values():
            raise why

    def fingerprints(self, sampled: Sampled, key: int) -> NDArray[np.uint64]:
        """uint64 [num_seeds]: of all that the model would be given of each tree; see `fingerprints`.

        Args:
            key: of the model and the graph.
        """
        values = self._edge_values(sampled.trees)
        return fingerprints(
            sampled.trees,
            key,
            self._graph.feature_changes,
            edge_weight=values.get("edge_weight"),
            edge_attr=values.get("edge_attr"),
            degree=self._degree(sampled),
        )


def _matching_features(graph: ReadableGraph, signature: Signature) -> ReadableFeatures:
    wanted = signature.feature_dim
    if graph.features is None:
        raise ModelError(f"{graph.folder}: has no node features, the model takes {wanted}")
    found = graph.features.shape[1]
    if found != wanted:
        raise ModelError(f"{graph.folder}: has {found} features per node, the model takes {wanted}")
    return graph.features


def _check_edges(graph: ReadableGraph, signature: Signature, sampler: Sampler) -> None:
    computed = signature.sampling.strategy in {"walk", "random"}
    walks = signature.sampling.strategy == "walk"
    if signature.takes_degree and computed:
        raise ModelError(
            f"a model that normalises by degrees cannot sample by `{signature.sampling.strategy}`:"
            " the neighbors of its neighbors would have to be sampled too"
        )
    if "edge_weight" in signature.edge_inputs and not walks and not graph.edge_fields.weight:
        raise ModelError(f"{graph.folder}: has no edge weights, the model takes them")
    if "edge_attr" not in signature.edge_inputs:
        return
    if walks:
        raise ModelError("a model that samples by walks cannot take edge features: a walk is no edge")
    found = graph.edge_fields.attr_dim
    if found != signature.edge_dim:
        raise ModelError(
            f"{graph.folder}: has {found} features per edge, the model takes {signature.edge_dim}"
        )
