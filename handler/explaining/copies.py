"""Runs a model over copies of one sample, of which each has something changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from handler.errors import NoGradients, OverBudget
from handler.explaining.objective import Objective
from handler.graph.budget import Sampled
from handler.graph.fanout import FanoutPlan
from handler.graph.layers import Layer
from handler.graph.sampler import SampledTrees
from handler.inputs import Arranged, ModelInputs
from handler.model.exported import Differentiable, Model, ModelInput

_AT_ONCE = 32
_MORE_MEMORY = 4  # than a forward that is not differentiated


@dataclass(frozen=True)
class Changes:
    """What is changed in each of some copies; nothing where it is none.

    Args:
        kept_edges: bool [num_copies, num_edges]: messages along the others are left out.
        kept_nodes: bool [num_copies, num_tree_nodes]: the features of the others are zero.
        without_feature: int64 [num_copies]: one that is zero everywhere.
        scale: float32 [num_copies]: what all features are multiplied by.
    """

    num_copies: int
    kept_edges: NDArray[np.bool_] | None = None
    kept_nodes: NDArray[np.bool_] | None = None
    without_feature: NDArray[np.int64] | None = None
    scale: NDArray[np.float32] | None = None

    def part(self, start: int, stop: int) -> Changes:
        """Those of some of the copies."""

        def cut(array: NDArray[np.generic] | None) -> NDArray[np.generic] | None:
            return None if array is None else array[start:stop]

        return Changes(
            min(stop, self.num_copies) - start,
            cut(self.kept_edges),  # type: ignore[arg-type]  # a part has the same type
            cut(self.kept_nodes),  # type: ignore[arg-type]
            cut(self.without_feature),  # type: ignore[arg-type]
            cut(self.scale),  # type: ignore[arg-type]
        )


UNCHANGED = Changes(1)


@dataclass(frozen=True)
class Subject:
    """What is explained: one node, or a pair, as it was sampled.

    Args:
        index: int64 [num_seeds], one or two nodes.
        sampled: of them, once.
    """

    index: NDArray[np.int64]
    as_of: float | None
    sampled: Sampled

    @property
    def trees(self) -> SampledTrees:
        return self.sampled.trees


class Copies:
    """Makes copies of samples of one graph, and runs a model over them.

    Args:
        inputs: of the model, from the graph.
    """

    def __init__(self, inputs: ModelInputs, model: Model) -> None:
        self._inputs = inputs
        self._model = model

    def sample(self, index: NDArray[np.int64], plan: FanoutPlan, as_of: float | None) -> Subject:
        """Sample what is to be explained.

        Raises:
            OverBudget: the samples of a pair do not fit into one forward.
            Unreadable: a part of them cannot be read.
        """
        sampled = self._inputs.sample(index, plan, _times(as_of, len(index)))
        if sampled.trees.num_seeds < len(index):
            raise OverBudget(self._inputs.budget.max_nodes, self._inputs.budget.max_nodes)
        for why in self._inputs.unreadable(sampled).values():
            raise why
        return Subject(index, as_of, sampled)

    def outputs(self, subject: Subject) -> tuple[Tensor, Tensor]:
        """Embedding and prediction of the subject as it is."""
        output = self._model.run(self._given(subject, UNCHANGED))
        return torch.from_numpy(output.embedding), torch.from_numpy(output.prediction)

    def scores(
        self, subject: Subject, objective: Objective, changes: Changes
    ) -> Iterator[NDArray[np.float64]]:
        """float64 [num_copies], in parts, of which each is computed when it is asked for."""
        for part in self._parts(subject, changes):
            output = self._model.run(self._given(subject, part))
            scores = objective(torch.from_numpy(output.embedding), torch.from_numpy(output.prediction))
            yield scores.numpy().astype(np.float64)

    def gradients(
        self, subject: Subject, objective: Objective, changes: Changes
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The scores, and their gradients by the features of each tree node.

        Returns:
            float64 [num_copies] and float64 [num_copies, num_tree_nodes, feature_dim].

        Raises:
            NoGradients: the model cannot be differentiated.
        """
        if not isinstance(self._model, Differentiable):
            raise NoGradients
        scores, gradients = [], []
        for part in self._parts(subject, changes):
            given = self._given(subject, part)
            x = given.tensors[0].detach().requires_grad_()
            found = objective(*self._model.differentiable(replace(given, tensors=(x, *given.tensors[1:]))))
            (by_row,) = torch.autograd.grad(found.sum(), x)
            scores.append(found.detach().cpu().numpy().astype(np.float64))
            gradients.append(self._by_tree_node(by_row, subject, part.num_copies))
        return np.concatenate(scores), np.concatenate(gradients)

    def features(self, subject: Subject) -> NDArray[np.float32]:
        """float32 [num_tree_nodes, feature_dim]."""
        arranged = self._inputs.arrange(subject.sampled)
        x = self._inputs.gather(arranged).tensors[0].cpu().numpy()
        rows = np.empty_like(x)
        rows[_order(arranged)] = x
        return rows

    def _parts(self, subject: Subject, changes: Changes) -> Iterator[Changes]:
        """As many copies at a time as are quick, and take no more memory than answers do."""
        fitting = self._inputs.budget.max_nodes // (_MORE_MEMORY * len(subject.trees.node))
        at_once = max(1, min(_AT_ONCE, fitting))
        for start in range(0, changes.num_copies, at_once):
            yield changes.part(start, start + at_once)

    def _given(self, subject: Subject, changes: Changes) -> ModelInput:
        """What the model is called with for some copies."""
        arranged = self._arranged(subject, changes.num_copies)
        if changes.kept_edges is not None:
            arranged = _with_edges(arranged, changes.kept_edges.ravel())
        given = self._inputs.gather(arranged)
        x = given.tensors[0]
        order, num_nodes = _order(arranged), len(subject.trees.node)
        copy = order // num_nodes
        if changes.scale is not None:
            x = x * torch.from_numpy(changes.scale[copy]).to(x.device).unsqueeze(1)
        if changes.kept_nodes is not None:
            x = x * torch.from_numpy(changes.kept_nodes.ravel()[order]).to(x.device).unsqueeze(1)
        if changes.without_feature is not None:
            x = x.clone()
            rows = torch.arange(len(x), device=x.device)
            x[rows, torch.from_numpy(changes.without_feature[copy]).to(x.device)] = 0.0
        return replace(given, tensors=(x, *given.tensors[1:]))

    def _arranged(self, subject: Subject, num_copies: int) -> Arranged:
        as_of = _times(subject.as_of, num_copies * len(subject.index))
        trees = _repeated(subject.trees, num_copies)
        return self._inputs.arrange(replace(subject.sampled, trees=trees, as_of=as_of))

    def _by_tree_node(self, by_row: Tensor, subject: Subject, num_copies: int) -> NDArray[np.float64]:
        rows = by_row.cpu().numpy()
        found = np.empty(rows.shape)
        found[_order(self._arranged(subject, num_copies))] = rows
        return found.reshape(num_copies, len(subject.trees.node), -1)


def _repeated(trees: SampledTrees, times: int) -> SampledTrees:
    """The same trees again and again."""
    num_nodes = len(trees.node)
    start = np.repeat(np.arange(times) * num_nodes, trees.num_edges)
    ends = [(trees.ptr[1:] + copy * num_nodes) for copy in range(times)]
    return SampledTrees(
        np.tile(trees.node, times),
        np.tile(trees.hop, times),
        np.tile(trees.edge_index, times) + start,
        np.tile(trees.edge_rank, times),
        np.tile(trees.edge, times),
        np.concatenate([trees.ptr[:1], *ends]),
        None if trees.share is None else np.tile(trees.share, times),
    )


def _times(as_of: float | None, count: int) -> NDArray[np.float64] | None:
    return None if as_of is None else np.full(count, as_of)


def _order(arranged: Arranged) -> NDArray[np.int64]:
    """int64 [num_rows]: the tree node that each row of the model's features is."""
    if arranged.layered is None:
        return np.arange(len(arranged.sampled.trees.node))
    return arranged.layered.order


def _with_edges(arranged: Arranged, kept: NDArray[np.bool_]) -> Arranged:
    """The same without some edges of the trees: no others take their places, and degrees stay."""
    if arranged.layered is None:
        trees = arranged.sampled.trees
        fewer = replace(
            trees,
            edge_index=np.ascontiguousarray(trees.edge_index[:, kept]),
            edge_rank=trees.edge_rank[kept],
            edge=trees.edge[kept],
            share=None if trees.share is None else trees.share[kept],
        )
        return replace(arranged, sampled=replace(arranged.sampled, trees=fewer))
    layers = tuple(_layer_with_edges(layer, kept[layer.edge]) for layer in arranged.layered.layers)
    return replace(arranged, layered=replace(arranged.layered, layers=layers))


def _layer_with_edges(layer: Layer, kept: NDArray[np.bool_]) -> Layer:
    edge_index, num_targets = np.ascontiguousarray(layer.edge_index[:, kept]), len(layer.ptr) - 1
    ptr = np.zeros(num_targets + 1, dtype=np.int64)
    np.cumsum(np.bincount(edge_index[1], minlength=num_targets), out=ptr[1:])
    return Layer(edge_index, ptr, layer.edge[kept], layer.num_sources)
