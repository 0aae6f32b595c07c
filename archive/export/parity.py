"""Proof that an exported file answers as the eager model does, on graphs and batches of many shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from handler.errors import ModelError, in_one_line
from handler.graph.budget import Sampled
from handler.graph.edges import EdgeArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures
from handler.graph.ids import RangeIds
from handler.graph.rows import ordered_adjacency
from handler.graph.sampler import SampledTrees, Sampler
from handler.inputs import TreeInputs
from handler.model.device import HostFeatures
from handler.model.exported import Model, ModelInput
from handler.model.runtime import as_outputs
from handler.model.signature import Signature

TOLERANCE = 1e-5
_NUM_NODES, _NUM_EDGES, _NUM_ISOLATED = 200, 1500, 20
_SEED_COUNTS = (1, 2, 3, 7, 32, 64, 256)
_MAX_TREE_NODES = 500_000  # of one batch: of very deep models a few seeds will do
_ROUNDS = 3  # TorchScript compiles anew on early calls: each shape is tried before, in and after
_CPU = torch.device("cpu")

Outputs = Sequence[Tensor]


@dataclass(frozen=True)
class ParityReport:
    """How far the exported file was from the eager model, at worst over all shapes."""

    num_shapes: int
    worst_difference: float


class SweepGraph:
    """A random graph with hubs, chains that end early, and nodes without edges; and data for it.

    Self-loops it has none: layers that add their own would count them otherwise.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        generator = np.random.default_rng(0)
        linked = _NUM_NODES - _NUM_ISOLATED
        hubs = (generator.random(_NUM_EDGES) ** 3 * (linked - 20)).astype(np.int64)
        ends = np.stack([generator.integers(0, linked, _NUM_EDGES), hubs])
        ends = ends[:, ends[0] != ends[1]]
        count = ends.shape[1]
        weight = generator.standard_normal((count,))
        # Roots are taken of degrees; of a plain model nobody knows whether it computes any.
        if signature.takes_degree or signature.contract == "plain":
            weight = np.abs(weight) + 0.1
        attr = generator.standard_normal((count, max(1, signature.edge_dim))).astype(np.float32)
        edges = EdgeArrays(ends, weight.astype(np.float32), None, attr)
        self.x = generator.standard_normal((_NUM_NODES, signature.feature_dim)).astype(np.float32)
        self.sampler = Sampler(ordered_adjacency(edges, RangeIds(_NUM_NODES)))
        rows = HostFeatures(DenseFeatures(self.x), _CPU)
        self._inputs = TreeInputs(self.sampler, rows, signature)

    def samples(self) -> Iterator[Sampled]:
        """Batches of seeds: a node without edges, a hub, one seed to many, each seed of the graph."""
        plan = FanoutPlan.of(self._signature.layer_fanouts)
        generator = np.random.default_rng(0)
        batches = [np.array([_NUM_NODES - 1]), np.array([0]), np.array([0, _NUM_NODES - 1, 0])]
        batches += [generator.integers(0, _NUM_NODES, count) for count in _SEED_COUNTS]
        for seeds in batches:
            if len(seeds) > 3 and len(seeds) * plan.max_tree_nodes > _MAX_TREE_NODES:
                continue
            yield Sampled(self.sampler.trees(seeds, plan), plan)

    def example(self) -> ModelInput:
        """What a served model is called with for a batch of middling size."""
        return self.given(list(self.samples())[-4])

    def given(self, sampled: Sampled) -> ModelInput:
        """What a served model is called with."""
        return self._inputs.gather(self._inputs.arrange(sampled))

    @cached_property
    def sampled_edges(self) -> SampledTrees:
        """Each node's whole sample, as trees of one hop."""
        widest = max(self._signature.layer_fanouts)
        return self.sampler.trees(np.arange(_NUM_NODES), FanoutPlan.of((widest,)))

    def edge_values(self, trees: SampledTrees) -> dict[str, Tensor]:
        """What the model takes of the edges of some trees, by name."""
        read = {"edge_weight": self.sampler.edge_weight, "edge_attr": self.sampler.edge_attr}
        values: dict[str, Any] = {name: read[name](trees) for name in self._signature.edge_inputs}
        return {name: torch.from_numpy(value) for name, value in values.items()}


def check_layered(
    model: nn.Module, depths: dict[str, list[int]], exported: Model, graph: SweepGraph
) -> ParityReport:
    """Compare with the eager model on the graph of all nodes and all sampled edges at once.

    That is the definition of the answer: each layer over every node, with each node's sample. So it is also
    proof that an answer does not depend on its company, and that offline equals online.

    Args:
        depths: for each message-passing layer, by name, the numbers of the layers that its calls are.

    Raises:
        ModelError: they differ; says by how much, and on what shape.
    """
    edges = graph.sampled_edges
    edge_index = torch.from_numpy(edges.node[edges.edge_index])
    rank = torch.from_numpy(edges.edge_rank)
    used = [rank < fanout for fanout in exported.signature.layer_fanouts]
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(_SampleOfLayer(used, numbers), with_kwargs=True)
        for name, numbers in depths.items()
    ]
    try:
        with torch.no_grad():
            x = torch.from_numpy(graph.x.copy())  # some models change it in place
            everyone = as_outputs(model(x, edge_index, **graph.edge_values(edges)))
    finally:
        for hook in hooks:
            hook.remove()

    def wanted(trees: SampledTrees) -> Outputs:
        seeds = torch.from_numpy(trees.node[trees.ptr[:-1]])
        return [output[seeds] for output in everyone]

    return _compare(exported, graph, wanted)


def check_plain(model: nn.Module, exported: Model, graph: SweepGraph) -> ParityReport:
    """Compare with the eager model on the tree of each seed alone; see `check_layered`."""

    def wanted(trees: SampledTrees) -> Outputs:
        seeds = trees.node[trees.ptr[:-1]]
        plan = FanoutPlan.of(exported.signature.layer_fanouts)
        alone = [graph.sampler.trees(seeds[place : place + 1], plan) for place in range(len(seeds))]
        with torch.no_grad():
            each = [_eager_alone(model, tree, graph) for tree in alone]
        return [torch.cat(rows) for rows in zip(*each, strict=True)]

    return _compare(exported, graph, wanted)


def check_company(exported: Model, graph: SweepGraph) -> ParityReport:
    """Compare a file that has no eager model with itself: each seed in a batch, and alone.

    Raises:
        ModelError: they differ, or an output is not finite.
    """

    def wanted(trees: SampledTrees) -> Outputs:
        seeds = trees.node[trees.ptr[:-1]]
        plan = FanoutPlan.of(exported.signature.layer_fanouts)
        alone = [
            exported.run(graph.given(Sampled(graph.sampler.trees(seeds[place : place + 1], plan), plan)))
            for place in range(len(seeds))
        ]
        outputs = {
            name: torch.from_numpy(np.concatenate([getattr(output, name) for output in alone]))
            for name in ("embedding", "prediction")
        }
        return [outputs[name] for name in exported.signature.outputs]

    return _compare(exported, graph, wanted)


class _SampleOfLayer:
    """Leaves a layer of an eager model only the edges within its own fan-out."""

    def __init__(self, used: Sequence[Tensor], numbers: Sequence[int]) -> None:
        self._used = used
        self._numbers = iter(numbers)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        used = self._used[next(self._numbers) - 1]

        def sampled(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim() or value.size(-1) == 0:
                return value
            if value.dim() == 2 and value.size(0) == 2 and value.size(1) == len(used):
                return value[:, used]
            return value[used] if value.size(0) == len(used) else value

        return tuple(map(sampled, args)), {name: sampled(value) for name, value in kwargs.items()}


def _eager_alone(model: nn.Module, tree: SampledTrees, graph: SweepGraph) -> list[Tensor]:
    x, edge_index = torch.from_numpy(graph.x[tree.node]), torch.from_numpy(tree.edge_index)
    try:
        outputs = as_outputs(model(x, edge_index, **graph.edge_values(tree)))
    except Exception as error:
        raise ModelError(
            f"the eager model itself fails on {len(x)} nodes with {tree.num_edges} edges:"
            f" {in_one_line(error)}"
        ) from error
    return [output[:1] for output in outputs]


def _compare(exported: Model, graph: SweepGraph, wanted: Callable[[SampledTrees], Outputs]) -> ParityReport:
    worst, num_shapes = 0.0, 0
    for sampled in graph.samples():
        trees = sampled.trees
        expected = dict(zip(exported.signature.outputs, wanted(trees), strict=True))
        given = graph.given(sampled)
        shape = f"{trees.num_seeds} seeds with {len(trees.node)} nodes and {trees.num_edges} edges"
        for _ in range(_ROUNDS):
            try:
                found = exported.run(_copy_of(given))
            except ModelError:
                raise
            except Exception as error:
                raise ModelError(f"the exported model fails on {shape}: {in_one_line(error)}") from error
            difference = max(
                relative_difference(getattr(found, name), values.numpy()) for name, values in expected.items()
            )
            if not difference <= TOLERANCE:
                raise ModelError(
                    f"the exported model differs from the eager one by {difference:.1e} (at most"
                    f" {TOLERANCE:.0e} is allowed) on {shape}"
                )
            worst = max(worst, difference)
        num_shapes += 1
    return ParityReport(num_shapes, worst)


def _copy_of(given: ModelInput) -> ModelInput:
    return dataclasses.replace(given, tensors=tuple(tensor.clone() for tensor in given.tensors))


def relative_difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """The largest difference, as a share of the largest value that is wanted."""
    wanted = wanted.reshape(found.shape) if wanted.size == found.size else wanted
    if found.shape != wanted.shape:
        return float("inf")
    if not wanted.size:
        return 0.0
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-12))
